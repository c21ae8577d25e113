//! The path and query of a result lookup.

use std::time::Duration;

use crate::domain::{Sku, Uuid};

/// What `/v1/seckill/activities/{activity_id}/skus/{sku_id}/requests/{request_id}` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) sku: Sku,
    pub(super) request_id: Uuid,
}

/// Reads the path; `None` when it is another one or its ids are none: such a resource does not exist.
pub(super) fn target(path: &str) -> Option<Target> {
    let rest = path.strip_prefix("/v1/seckill/activities/")?;
    let (activity, rest) = rest.split_once("/skus/")?;
    let (sku, request) = rest.split_once("/requests/")?;
    let sku = Sku::new(id(activity)?, id(sku)?)?;
    Some(Target { sku, request_id: Uuid::parse(request.as_bytes())? })
}

/// Digits only: `parse` alone would take a sign.
fn id(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `?wait=` in milliseconds, zero when absent; `None` when it is no number or comes twice. Other parameters are
/// ignored, as links gather them.
pub(super) fn wait(query: Option<&str>) -> Option<Duration> {
    let mut waits = query.unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("wait="));
    match (waits.next(), waits.next()) {
        (None, _) => Some(Duration::ZERO),
        (Some(text), None) => {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten().map(Duration::from_millis)
        }
        (Some(_), Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "019f2db9-8af0-7a21-88e1-2df337730003";

    #[test]
    fn the_three_ids_are_read() {
        let path = format!("/v1/seckill/activities/1001/skus/2001/requests/{REQUEST}");
        let found = target(&path).unwrap();
        assert_eq!(found.sku, Sku::new(1001, 2001).unwrap());
        assert_eq!(found.request_id.to_string(), REQUEST);
    }

    #[test]
    fn anything_else_is_another_path() {
        for (activity, sku, request) in [
            ("+1", "2", REQUEST),
            ("0", "2", REQUEST),
            ("", "2", REQUEST),
            ("1", "9223372036854775808", REQUEST),
            ("1", "2", "x"),
            ("1", "2", ""),
            ("1/2", "2", REQUEST),
        ] {
            let path = format!("/v1/seckill/activities/{activity}/skus/{sku}/requests/{request}");
            assert_eq!(target(&path), None, "{path}");
        }
        assert_eq!(target("/v1/seckill/orders"), None);
        assert_eq!(target(&format!("/v1/seckill/activities/1/skus/2/requests/{REQUEST}/")), None);
    }

    #[test]
    fn wait_is_a_plain_number_of_milliseconds() {
        assert_eq!(wait(None), Some(Duration::ZERO));
        assert_eq!(wait(Some("")), Some(Duration::ZERO));
        assert_eq!(wait(Some("utm=x&wait=250")), Some(Duration::from_millis(250)));
        for bad in ["wait=", "wait=-1", "wait=+1", "wait=1s", "wait=1&wait=2", "wait=18446744073709551616"] {
            assert_eq!(wait(Some(bad)), None, "{bad}");
        }
    }
}

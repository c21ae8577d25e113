//! PULL: reading a queue by offset without consuming anything, as one looks through a dead-letter topic.

use super::frame::{Frame, Request};
use super::record::{self, Record};
use super::{MqError, code};

/// The most messages of one pull.
pub const MESSAGES_MAX: u32 = 32;
/// sysFlag: the subscription is in the request. No commit of an offset, no waiting.
const SUBSCRIPTION: u32 = 4;

/// One pull's messages and where the queue goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The messages, by offset.
    pub records: Vec<Record>,
    /// Where the next pull starts.
    pub next: u64,
    /// First offset that is still there.
    pub min: u64,
    /// First offset that is not there yet.
    pub max: u64,
}

/// The request for up to `max` messages of one queue from `offset` on.
pub fn request(group: &str, topic: &str, queue: u32, offset: u64, max: u32) -> Request {
    let ext = vec![
        ("consumerGroup", group.to_owned()),
        ("topic", topic.to_owned()),
        ("queueId", queue.to_string()),
        ("queueOffset", offset.to_string()),
        ("maxMsgNums", max.clamp(1, MESSAGES_MAX).to_string()),
        ("sysFlag", SUBSCRIPTION.to_string()),
        ("commitOffset", "0".to_owned()),
        ("suspendTimeoutMillis", "0".to_owned()),
        ("subscription", "*".to_owned()),
        ("subVersion", "0".to_owned()),
        ("expressionType", "TAG".to_owned()),
    ];
    Request::new(code::PULL_MESSAGE, ext)
}

/// The page in an answer. An offset outside the queue gives no messages and the offset to go on from.
///
/// # Errors
/// [`MqError`].
pub fn page(answer: &Frame) -> Result<Page, MqError> {
    let records = match answer.code {
        code::SUCCESS => {
            record::parse_all(answer.body.clone()).map_err(|_| MqError::Answer("its records cannot be read"))?
        }
        code::PULL_NOT_FOUND | code::PULL_RETRY_IMMEDIATELY | code::PULL_OFFSET_MOVED => Vec::new(),
        code => return Err(MqError::Code { code, remark: answer.remark.clone() }),
    };
    let number = |name: &str| answer.field(name).and_then(|text| text.parse::<u64>().ok());
    match (number("nextBeginOffset"), number("minOffset"), number("maxOffset")) {
        (Some(next), Some(min), Some(max)) => Ok(Page { records, next, min, max }),
        _ => Err(MqError::Answer("a pull without its offsets")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};

    fn answer(code: i32, ext: &[(&'static str, &str)], body: &'static [u8]) -> Frame {
        // An answer looks like a request but for its flag.
        let ext = ext.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut out = BytesMut::new();
        Request { body: Bytes::from_static(body), ..Request::new(code, ext) }.encode(1, &mut out);
        super::super::frame::next(&mut out, 1 << 20).unwrap().unwrap()
    }

    #[test]
    fn an_empty_queue_and_a_moved_offset_say_where_to_go_on() {
        let offsets = [("nextBeginOffset", "7"), ("minOffset", "7"), ("maxOffset", "9")];
        for code in [code::PULL_NOT_FOUND, code::PULL_RETRY_IMMEDIATELY, code::PULL_OFFSET_MOVED] {
            assert_eq!(page(&answer(code, &offsets, b"")), Ok(Page { records: Vec::new(), next: 7, min: 7, max: 9 }));
        }
    }

    #[test]
    fn other_answers_are_errors() {
        assert!(matches!(page(&answer(code::NO_PERMISSION, &[], b"")), Err(MqError::Code { code: 16, .. })));
        assert!(matches!(page(&answer(code::SUCCESS, &[], b"")), Err(MqError::Answer(_))));
        let offsets = [("nextBeginOffset", "1"), ("minOffset", "0"), ("maxOffset", "1")];
        assert!(matches!(page(&answer(code::SUCCESS, &offsets, b"no record")), Err(MqError::Answer(_))));
    }
}

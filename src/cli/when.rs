//! Times on the command line: RFC 3339, Unix seconds, `now`, or an offset from now (`+2h`, `-10m`, `+1h30m`).

use std::str::FromStr;

use crate::domain::parse_rfc3339_micros;

/// The last second of the year 9999: the last moment RFC 3339 can write.
const UNIX_S_MAX: u64 = 253_402_300_799;
/// The same end in milliseconds.
const UNIX_MS_MAX: u64 = UNIX_S_MAX * 1_000 + 999;

/// A moment, fixed or counted from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Unix milliseconds.
    At(u64),
    /// Milliseconds from now, negative for the past.
    FromNow(i64),
}

/// Why a time cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhenError {
    /// None of the forms.
    #[error(
        "not a time: write RFC 3339 (2026-06-25T20:00:00+08:00), Unix seconds, now, or an offset such as +2h or -10m"
    )]
    Form,
    /// A number too large for seconds; it is most often milliseconds.
    #[error("{0} is past the year 9999: Unix time is taken in seconds, not milliseconds")]
    NotSeconds(String),
    /// Before 1970 or after 9999.
    #[error("the time lies outside the years 1970 to 9999")]
    OutOfRange,
    /// The sale would not last.
    #[error("the sale must start before it ends: starts_at = {start_ms} ms, ends_at = {end_ms} ms")]
    EmptyWindow {
        /// Start, Unix milliseconds.
        start_ms: u64,
        /// End, Unix milliseconds.
        end_ms: u64,
    },
}

impl FromStr for When {
    type Err = WhenError;

    fn from_str(text: &str) -> Result<Self, WhenError> {
        if text.eq_ignore_ascii_case("now") {
            return Ok(Self::FromNow(0));
        }
        if let Some(offset) = text.strip_prefix('+') {
            return Ok(Self::FromNow(span_ms(offset)?));
        }
        if let Some(offset) = text.strip_prefix('-') {
            return Ok(Self::FromNow(-span_ms(offset)?));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let seconds = text.parse::<u64>().ok().filter(|&seconds| seconds <= UNIX_S_MAX);
            return seconds
                .map(|seconds| Self::At(seconds * 1_000))
                .ok_or_else(|| WhenError::NotSeconds(text.to_string()));
        }
        let micros = parse_rfc3339_micros(text.as_bytes()).ok_or(WhenError::Form)?;
        Ok(Self::At(micros / 1_000))
    }
}

/// `1h30m` in milliseconds: numbers with units d, h, m, s or ms, each unit at most once and larger ones first. At most
/// the length of [`UNIX_MS_MAX`].
fn span_ms(text: &str) -> Result<i64, WhenError> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut unit_before = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, tail) = tail.split_at(letters);
        let unit_ms = match unit {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(WhenError::Form),
        };
        if digits == 0 || unit_ms >= unit_before {
            return Err(WhenError::Form);
        }
        // Only digits are in it: it fails to parse only when it is too large.
        let number: u64 = number.parse().map_err(|_| WhenError::OutOfRange)?;
        let part = number.checked_mul(unit_ms).ok_or(WhenError::OutOfRange)?;
        total = total.checked_add(part).filter(|&total| total <= UNIX_MS_MAX).ok_or(WhenError::OutOfRange)?;
        unit_before = unit_ms;
        rest = tail;
    }
    if text.is_empty() { Err(WhenError::Form) } else { i64::try_from(total).map_err(|_| WhenError::OutOfRange) }
}

impl When {
    /// Unix milliseconds, offsets counted from `now_ms`.
    ///
    /// # Errors
    /// [`WhenError::OutOfRange`] outside the years 1970 to 9999.
    pub fn unix_ms(self, now_ms: u64) -> Result<u64, WhenError> {
        let at = match self {
            Self::At(ms) => Some(ms),
            Self::FromNow(offset) => now_ms.checked_add_signed(offset),
        };
        at.filter(|&ms| ms <= UNIX_MS_MAX).ok_or(WhenError::OutOfRange)
    }
}

/// A sale window, `start_ms` included, `end_ms` not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First moment of the sale, Unix milliseconds.
    pub start_ms: u64,
    /// First moment after it, Unix milliseconds.
    pub end_ms: u64,
}

impl Window {
    /// From both ends, offsets counted from `now_ms`.
    ///
    /// # Errors
    /// [`WhenError`] when an end is out of range or the window is empty.
    pub fn new(starts: When, ends: When, now_ms: u64) -> Result<Self, WhenError> {
        let (start_ms, end_ms) = (starts.unix_ms(now_ms)?, ends.unix_ms(now_ms)?);
        if start_ms < end_ms { Ok(Self { start_ms, end_ms }) } else { Err(WhenError::EmptyWindow { start_ms, end_ms }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_782_388_800_000;

    fn at(text: &str) -> Result<u64, WhenError> {
        text.parse::<When>()?.unix_ms(NOW)
    }

    #[test]
    fn every_form_is_read() {
        for (text, expected) in [
            ("now", NOW),
            ("NOW", NOW),
            ("+2h", NOW + 7_200_000),
            ("-10m", NOW - 600_000),
            ("+1h30m", NOW + 5_400_000),
            ("+1d2h3m4s5ms", NOW + 93_784_005),
            ("+0s", NOW),
            ("1782388800", NOW),
            ("0", 0),
            ("2026-06-25T12:00:00Z", NOW),
            ("2026-06-25T20:00:00.5+08:00", NOW + 500),
        ] {
            assert_eq!(at(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "+",
            "-",
            "+h",
            "+2",
            "2h",
            "+2h2h",
            "+1m1h",
            "+2x",
            "+2H",
            "+ 2h",
            "+2h ",
            "+-2h",
            "tomorrow",
            "1782388800.5",
            "2026-06-25",
            "2026-06-25T12:00:00",
            "+2µs",
        ] {
            assert_eq!(text.parse::<When>(), Err(WhenError::Form), "{text:?}");
        }
        assert_eq!("1782388800000".parse::<When>(), Err(WhenError::NotSeconds("1782388800000".into())));
        assert_eq!("+99999999999999999999h".parse::<When>(), Err(WhenError::OutOfRange));
        assert_eq!("+9999999999999h".parse::<When>(), Err(WhenError::OutOfRange));
        assert_eq!(at("-30000d"), Err(WhenError::OutOfRange), "before 1970");
        assert_eq!(at("+2920000d"), Err(WhenError::OutOfRange), "after 9999");
    }

    #[test]
    fn a_window_starts_before_it_ends() {
        let window = |starts: &str, ends: &str| Window::new(starts.parse().unwrap(), ends.parse().unwrap(), NOW);
        assert_eq!(window("now", "+1ms"), Ok(Window { start_ms: NOW, end_ms: NOW + 1 }));
        assert_eq!(window("now", "now"), Err(WhenError::EmptyWindow { start_ms: NOW, end_ms: NOW }));
        assert!(matches!(window("+2h", "+1h"), Err(WhenError::EmptyWindow { .. })));
    }

    proptest! {
        #[test]
        fn offsets_mean_what_they_say(hours in 0u64..100_000, minutes in 0u64..1_000) {
            prop_assert_eq!(at(&format!("+{hours}h{minutes}m")), Ok(NOW + hours * 3_600_000 + minutes * 60_000));
        }

        #[test]
        fn any_text_is_answered_within_range(text in "[-+0-9a-zT:. ]{0,24}") {
            if let Ok(ms) = at(&text) {
                prop_assert!(ms <= UNIX_MS_MAX);
            }
        }
    }
}

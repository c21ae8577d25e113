//! RFC 3339 timestamps in UTC with microseconds, the form of `created_at` in the order event.

/// Length of the text [`format_rfc3339_micros`] makes.
const TEXT_LEN: usize = 27;
/// The last microsecond of the year 9999, the end of what the four-digit year can say.
const UNIX_MICROS_MAX: u64 = 253_402_300_799_999_999;

/// Days since 1970-01-01 to year, month, day of the Gregorian calendar.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    // Years counted from March make the leap day the last one; 719_468 days lie between 0000-03-01 and 1970-01-01.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Year, month, day to days since 1970-01-01.
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year / 400;
    let year_of_era = year % 400;
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn put_digits(out: &mut [u8], mut value: u64) {
    for slot in out.iter_mut().rev() {
        *slot = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// `2026-06-25T12:00:00.123456Z`. Times past the year 9999 are held at its last microsecond.
pub fn format_rfc3339_micros(unix_micros: u64) -> [u8; TEXT_LEN] {
    let unix_micros = unix_micros.min(UNIX_MICROS_MAX);
    let (seconds, micros) = (unix_micros / 1_000_000, unix_micros % 1_000_000);
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let second_of_day = seconds % 86_400;
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    put_digits(&mut text[0..4], year);
    put_digits(&mut text[5..7], month);
    put_digits(&mut text[8..10], day);
    put_digits(&mut text[11..13], second_of_day / 3_600);
    put_digits(&mut text[14..16], second_of_day / 60 % 60);
    put_digits(&mut text[17..19], second_of_day % 60);
    put_digits(&mut text[20..26], micros);
    text
}

fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0u64, |value, byte| byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0')))
}

/// Reads an RFC 3339 time with any offset and up to nine fraction digits; what is finer than a microsecond is cut
/// off. `None` for anything else, for times before 1970, and for a leap second's `:60`.
pub fn parse_rfc3339_micros(text: &[u8]) -> Option<u64> {
    if text.len() < 20 || text[4] != b'-' || text[7] != b'-' || !matches!(text[10], b'T' | b't') {
        return None;
    }
    if text[13] != b':' || text[16] != b':' {
        return None;
    }
    let (year, month, day) = (digits(&text[0..4])?, digits(&text[5..7])?, digits(&text[8..10])?);
    let (hour, minute, second) = (digits(&text[11..13])?, digits(&text[14..16])?, digits(&text[17..19])?);
    if year < 1970 || !(1..=12).contains(&month) || day < 1 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_from_civil(year, month, day);
    // A day that the month does not have (02-30) comes back as another date.
    if civil_from_days(days) != (year, month, day) {
        return None;
    }
    let (micros, zone) = parse_fraction(&text[19..])?;
    let offset_minutes = parse_offset(zone)?;
    let seconds = (days * 86_400 + hour * 3_600 + minute * 60 + second) as i64 - offset_minutes * 60;
    u64::try_from(seconds).ok().map(|seconds| seconds * 1_000_000 + micros)
}

/// The optional `.123456` in front of the zone: microseconds and the rest.
fn parse_fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(rest) = text.strip_prefix(b".") else { return Some((0, text)) };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 || length > 9 {
        return None;
    }
    let kept = length.min(6);
    let micros = digits(&rest[..kept])? * 10u64.pow(6 - kept as u32);
    Some((micros, &rest[length..]))
}

/// `Z`, `+hh:mm` or `-hh:mm`, as minutes east of UTC.
fn parse_offset(zone: &[u8]) -> Option<i64> {
    match zone {
        b"Z" | b"z" => Some(0),
        [sign @ (b'+' | b'-'), hour @ .., b':', _, _] if hour.len() == 2 => {
            let (hours, minutes) = (digits(hour)?, digits(&zone[4..6])?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let total = (hours * 60 + minutes) as i64;
            Some(if *sign == b'-' { -total } else { total })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (text, micros) in [
            ("1970-01-01T00:00:00.000000Z", 0),
            ("2026-06-25T12:00:00.123456Z", 1_782_388_800_123_456),
            ("2024-02-29T23:59:59.999999Z", 1_709_251_199_999_999),
            ("9999-12-31T23:59:59.999999Z", UNIX_MICROS_MAX),
        ] {
            assert_eq!(std::str::from_utf8(&format_rfc3339_micros(micros)).unwrap(), text);
            assert_eq!(parse_rfc3339_micros(text.as_bytes()), Some(micros), "{text}");
        }
    }

    #[test]
    fn offsets_and_fractions_of_other_writers() {
        let noon = parse_rfc3339_micros(b"2026-06-25T12:00:00Z");
        assert_eq!(parse_rfc3339_micros(b"2026-06-25T20:00:00+08:00"), noon);
        assert_eq!(parse_rfc3339_micros(b"2026-06-25T06:30:00.0-05:30"), noon);
        assert_eq!(parse_rfc3339_micros(b"2026-06-25T12:00:00.000000999Z"), noon);
        for bad in [
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-06-25 12:00:00Z",
            "2026-06-25T12:00:00",
            "2026-06-25T12:00:00.Z",
            "2026-06-25T12:00:00+0800",
            "1969-12-31T23:59:59Z",
            "2026-06-25T12:00:60Z",
            "",
        ] {
            assert_eq!(parse_rfc3339_micros(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(micros in 0..=UNIX_MICROS_MAX) {
            prop_assert_eq!(parse_rfc3339_micros(&format_rfc3339_micros(micros)), Some(micros));
        }

        #[test]
        fn garbage_is_refused_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_rfc3339_micros(&text);
        }
    }
}

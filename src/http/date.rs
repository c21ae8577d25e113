//! The `Date` field (RFC 9110 section 5.6.7), written once a second instead of once an answer.

use std::cell::Cell;

/// Length of an IMF-fixdate such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) const DATE_BYTES: usize = 29;

const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// The current date as text. Whoever owns it calls [`DateCache::refresh`] at least once a second.
#[derive(Debug)]
pub struct DateCache {
    second: Cell<u64>,
    text: Cell<[u8; DATE_BYTES]>,
}

impl Default for DateCache {
    fn default() -> Self {
        Self { second: Cell::new(0), text: Cell::new(imf_fixdate(0)) }
    }
}

impl DateCache {
    /// Sets the time, in seconds since 1970-01-01 UTC. Costs nothing while the second is the same.
    pub fn refresh(&self, unix_seconds: u64) {
        if self.second.replace(unix_seconds) != unix_seconds {
            self.text.set(imf_fixdate(unix_seconds));
        }
    }

    pub(super) fn text(&self) -> [u8; DATE_BYTES] {
        self.text.get()
    }
}

/// `unix_seconds` as text; years beyond 9999 wrap round.
fn imf_fixdate(unix_seconds: u64) -> [u8; DATE_BYTES] {
    let (days, second) = (unix_seconds / 86_400, (unix_seconds % 86_400) as usize);
    let (year, month, day) = civil(days);
    let weekday = (days % 7) as usize * 3;
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    text[8..11].copy_from_slice(&MONTHS[month * 3..month * 3 + 3]);
    let two = |text: &mut [u8], value: usize| {
        text[0] = b'0' + (value / 10 % 10) as u8;
        text[1] = b'0' + (value % 10) as u8;
    };
    two(&mut text[5..7], day);
    two(&mut text[12..14], year / 100);
    two(&mut text[14..16], year % 100);
    two(&mut text[17..19], second / 3_600);
    two(&mut text[20..22], second / 60 % 60);
    two(&mut text[23..25], second % 60);
    text
}

/// Year, month from 0 and day of the month of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (usize, usize, usize) {
    // Counted from 1 March of the year 0, so that the leap day ends a year; 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 2 } else { from_march - 10 };
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year as usize, month as usize, day as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_in_the_fixed_form() {
        let text = |second| String::from_utf8(imf_fixdate(second).to_vec()).unwrap();
        assert_eq!(text(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(951_782_399), "Mon, 28 Feb 2000 23:59:59 GMT");
        assert_eq!(text(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(text(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
    }

    #[test]
    fn the_cache_follows_the_clock_both_ways() {
        let cache = DateCache::default();
        cache.refresh(784_111_777);
        assert_eq!(&cache.text(), b"Sun, 06 Nov 1994 08:49:37 GMT");
        cache.refresh(784_111_776);
        assert_eq!(&cache.text(), b"Sun, 06 Nov 1994 08:49:36 GMT");
    }
}

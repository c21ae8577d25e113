//! UUIDs (RFC 9562): the canonical text form and version 7 generation.

use std::fmt;

/// A UUID as 16 bytes. Text is read in any case and written in lower case (RFC 9562 section 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub [u8; 16]);

/// Where the four hyphens stand in the 36-character form.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const HEX: &[u8; 16] = b"0123456789abcdef";

impl Uuid {
    /// Length of the canonical text, in bytes.
    pub const TEXT_LEN: usize = 36;

    /// Reads the bare 36-character form; `None` for anything else (braces, `urn:uuid:`, no hyphens).
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != Self::TEXT_LEN {
            return None;
        }
        let mut bytes = [0u8; 16];
        let mut nibbles = 0;
        for (position, &byte) in text.iter().enumerate() {
            if HYPHENS.contains(&position) {
                if byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = (byte as char).to_digit(16)? as u8;
            bytes[nibbles / 2] = bytes[nibbles / 2] << 4 | digit;
            nibbles += 1;
        }
        Some(Self(bytes))
    }

    /// The canonical lower-case text, on the stack.
    pub fn text(&self) -> [u8; Self::TEXT_LEN] {
        let mut text = [b'-'; Self::TEXT_LEN];
        let mut at = 0;
        for byte in self.0 {
            while HYPHENS.contains(&at) {
                at += 1;
            }
            text[at] = HEX[(byte >> 4) as usize];
            text[at + 1] = HEX[(byte & 15) as usize];
            at += 2;
        }
        text
    }

    /// Appends the canonical text to `out`.
    pub fn append_to(&self, out: &mut impl Extend<u8>) {
        out.extend(self.text());
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes version 7 UUIDs (RFC 9562 section 5.7): 48 bits of milliseconds, a 12-bit counter that keeps ids of one
/// source in order within a millisecond, 62 random bits.
///
/// If the clock steps back, the source stays at the latest millisecond it has seen, so its ids never go backwards.
#[derive(Debug, Default)]
pub struct UuidV7Source {
    last_ms: u64,
    counter: u16,
}

impl UuidV7Source {
    /// The next id for the wall clock `unix_ms`, taking 64 bits of randomness from the caller.
    pub fn next(&mut self, unix_ms: u64, random: u64) -> Uuid {
        if unix_ms > self.last_ms {
            self.last_ms = unix_ms;
            self.counter = 0;
        } else if self.counter < 0xfff {
            self.counter += 1;
        } else {
            // 4096 ids in one millisecond: borrow the next one, as RFC 9562 section 6.2 allows.
            self.last_ms += 1;
            self.counter = 0;
        }
        let high = self.last_ms << 16 | 0x7000 | u64::from(self.counter);
        let low = random & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000;
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        Uuid(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_bare_form_is_read_in_any_case() {
        let lower = Uuid::parse(b"0190f3a2-1111-7222-9333-0123456789ab").unwrap();
        assert_eq!(Uuid::parse(b"0190F3A2-1111-7222-9333-0123456789AB"), Some(lower));
        assert_eq!(lower.to_string(), "0190f3a2-1111-7222-9333-0123456789ab");
        for bad in [
            &b"0190f3a2111172229333012345678 9ab"[..],
            b"{0190f3a2-1111-7222-9333-0123456789ab}",
            b"0190f3a2-1111-7222-9333-0123456789ag",
            b"0190f3a2-1111-7222-93330-123456789ab",
            b"0190f3a2+1111-7222-9333-0123456789ab",
            b"",
        ] {
            assert_eq!(Uuid::parse(bad), None);
        }
    }

    #[test]
    fn version_7_ids_stay_in_order_when_the_clock_steps_back() {
        let mut source = UuidV7Source::default();
        let mut last = source.next(1_000_000, 7);
        for (unix_ms, random) in [(1_000_000, 1), (999_000, 9), (1_000_001, 0), (1, u64::MAX)] {
            let next = source.next(unix_ms, random);
            assert!(next > last, "{next} after {last}");
            assert_eq!(next.0[6] >> 4, 7, "version");
            assert_eq!(next.0[8] >> 6, 0b10, "variant");
            last = next;
        }
    }

    #[test]
    fn the_counter_borrows_a_millisecond_when_it_runs_over() {
        let mut source = UuidV7Source::default();
        let mut last = source.next(5, 0);
        for _ in 0..10_000 {
            let next = source.next(5, 0);
            assert!(next > last);
            last = next;
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(bytes in any::<[u8; 16]>()) {
            let id = Uuid(bytes);
            prop_assert_eq!(Uuid::parse(&id.text()), Some(id));
            prop_assert_eq!(Uuid::parse(id.to_string().to_uppercase().as_bytes()), Some(id));
        }
    }
}

//! A token bucket: so many a second, a second's worth at once.

use std::time::Instant;

/// Counts in thousandths of a token, so that slow rates refill without fractions.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_second: u64,
    milli_tokens: u64,
    refilled_at: Instant,
}

impl RateLimit {
    /// A full bucket. A rate of 0 allows nothing.
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = u64::from(per_second);
        Self { per_second, milli_tokens: per_second * 1_000, refilled_at: now }
    }

    /// Takes one token if there is one.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let elapsed_ms = u64::try_from(now.saturating_duration_since(self.refilled_at).as_millis()).unwrap_or(u64::MAX);
        if elapsed_ms > 0 {
            let refill = elapsed_ms.saturating_mul(self.per_second);
            self.milli_tokens = self.milli_tokens.saturating_add(refill).min(self.per_second * 1_000);
            self.refilled_at = now;
        }
        if self.milli_tokens < 1_000 {
            return false;
        }
        self.milli_tokens -= 1_000;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_of_one_second_then_the_rate() {
        let start = shards::now();
        let mut limit = RateLimit::new(10, start);
        assert_eq!((0..100).filter(|_| limit.allow(start)).count(), 10);
        assert!(!limit.allow(start + Duration::from_millis(99)));
        assert!(limit.allow(start + Duration::from_millis(100)));
        assert!(!limit.allow(start + Duration::from_millis(101)));
        assert!(!RateLimit::new(0, start).allow(start + Duration::from_secs(9)));
    }
}

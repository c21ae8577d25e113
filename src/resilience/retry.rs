//! Bounded retries with exponential back-off and full jitter (spec section 7).

use std::time::{Duration, Instant};

/// Tries of one call, the first included.
const TRIES_MAX: u32 = 3;
const BASE: Duration = Duration::from_millis(20);
const CAP: Duration = Duration::from_millis(200);
/// Time for all tries together.
const BUDGET: Duration = Duration::from_millis(800);

/// The tries of one operation.
#[derive(Debug)]
pub struct Retry {
    tries: u32,
    tries_max: u32,
    give_up: Instant,
}

impl Retry {
    /// The first try starts at `now`.
    pub fn started(now: Instant) -> Self {
        Self { tries: 1, tries_max: TRIES_MAX, give_up: now + BUDGET }
    }

    /// Another number of tries.
    pub fn tries(mut self, max: u32) -> Self {
        self.tries_max = max;
        self
    }

    /// The pause before the next try: uniform between zero and a doubling bound. `None`: no more tries, or no time for one.
    pub fn next(&mut self, now: Instant, random: u64) -> Option<Duration> {
        if self.tries >= self.tries_max {
            return None;
        }
        let bound = BASE.saturating_mul(1 << (self.tries - 1).min(16)).min(CAP);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let pause = Duration::from_nanos(random % nanos.saturating_add(1));
        self.tries += 1;
        (now + pause < self.give_up).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_below_their_doubling_bound_and_the_cap() {
        let now = shards::now();
        for random in [0, 1, 12_345_678_901, u64::MAX] {
            let mut retry = Retry::started(now).tries(9);
            for bound_ms in [20, 40, 80, 160, 200, 200, 200, 200] {
                assert!(retry.next(now, random).unwrap() <= Duration::from_millis(bound_ms));
            }
            assert_eq!(retry.next(now, random), None);
        }
    }

    #[test]
    fn three_tries_within_800_ms() {
        let now = shards::now();
        let mut retry = Retry::started(now);
        assert!(retry.next(now, 0).is_some() && retry.next(now, 0).is_some());
        assert_eq!(retry.next(now, 0), None);
        assert_eq!(Retry::started(now).next(now + Duration::from_millis(800), 0), None);
    }
}

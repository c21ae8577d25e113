//! Bounded retries with exponential back-off and full jitter (spec section 7).

use std::time::Duration;

/// Tries of one transaction, the first included.
pub(super) const TRIES_MAX: u32 = 3;
const BASE: Duration = Duration::from_millis(20);
const CAP: Duration = Duration::from_millis(200);

/// The pause before try `attempt` (from 1 for the first repetition): uniform between zero and a doubling bound.
pub(super) fn pause(attempt: u32, random: u64) -> Duration {
    let bound = BASE.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(CAP);
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random % nanos.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_below_their_doubling_bound_and_the_cap() {
        for (attempt, bound_ms) in [(1, 20), (2, 40), (3, 80), (4, 160), (5, 200), (60, 200)] {
            for random in [0, 1, 12_345_678_901, u64::MAX] {
                assert!(pause(attempt, random) <= Duration::from_millis(bound_ms));
            }
        }
    }
}

//! The retry budget: of the calls of the last minute only so many may be repetitions (spec section 7), so that an outage is not
//! answered with more load than health was.

use std::time::Instant;

const SECONDS: usize = 60;

#[derive(Debug, Clone, Copy, Default)]
struct Second {
    calls: u64,
    retries: u64,
}

/// Calls and retries of the last minute, second by second.
#[derive(Debug)]
pub struct RetryBudget {
    percent: u64,
    floor: u64,
    seconds: [Second; SECONDS],
    total: Second,
    began: Option<Instant>,
    /// The second of the newest entry, counted from `began`.
    newest: u64,
}

impl RetryBudget {
    /// Retries up to `percent` of the first tries of a minute; `floor` a minute are free while the dependency answers.
    pub fn new(percent: u32, floor: u32) -> Self {
        Self {
            percent: u64::from(percent),
            floor: u64::from(floor),
            seconds: [Second::default(); SECONDS],
            total: Second::default(),
            began: None,
            newest: 0,
        }
    }

    /// A call is made, a first try or a granted retry.
    pub fn call(&mut self, now: Instant) {
        let second = self.turn(now);
        self.seconds[second].calls += 1;
        self.total.calls += 1;
    }

    /// Whether one more retry fits; counts it if so. The floor counts only for an `answered` call, say one that met a deadlock:
    /// what failed for want of the dependency is repeated within the share and not beyond it.
    pub fn retry(&mut self, now: Instant, answered: bool) -> bool {
        let second = self.turn(now);
        let first_tries = self.total.calls.saturating_sub(self.total.retries);
        let retries = self.total.retries + 1;
        let free = answered && retries <= self.floor;
        if !free && retries * 100 > self.percent * first_tries {
            return false;
        }
        self.seconds[second].retries += 1;
        self.total.retries = retries;
        true
    }

    /// Moves on to `now`, forgetting what is older than a minute; the index of the current second.
    fn turn(&mut self, now: Instant) -> usize {
        let began = *self.began.get_or_insert(now);
        let second = now.saturating_duration_since(began).as_secs();
        let steps = second.saturating_sub(self.newest).min(SECONDS as u64);
        for step in 1..=steps {
            let slot = &mut self.seconds[(self.newest + step) as usize % SECONDS];
            self.total.calls -= slot.calls;
            self.total.retries -= slot.retries;
            *slot = Second::default();
        }
        if steps > 0 {
            // After a pause of more than a minute every slot is empty, so any start will do.
            self.newest = second;
        }
        self.newest as usize % SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// A retry as callers make it: asked for, then called.
    fn retry(budget: &mut RetryBudget, now: Instant) -> bool {
        let granted = budget.retry(now, true);
        if granted {
            budget.call(now);
        }
        granted
    }

    #[test]
    fn five_in_a_hundred_and_the_floor_before_that() {
        let now = shards::now();
        let mut budget = RetryBudget::new(5, 2);
        assert_eq!((0..10).filter(|_| retry(&mut budget, now)).count(), 2);
        (0..1_000).for_each(|_| budget.call(now));
        assert_eq!((0..100).filter(|_| retry(&mut budget, now)).count(), 48, "50 of 1,000");
        assert!(!budget.retry(now + Duration::from_secs(59), true));
        assert!(budget.retry(now + Duration::from_secs(61), true), "a minute later it starts anew");
    }

    #[test]
    fn without_an_answer_there_is_no_floor() {
        let now = shards::now();
        let mut budget = RetryBudget::new(5, 2);
        (0..19).for_each(|_| budget.call(now));
        assert!(!budget.retry(now, false));
        budget.call(now);
        assert!(budget.retry(now, false) && !budget.retry(now, false), "one of twenty");
    }

    proptest! {
        /// Against a plain list of what happened in which second.
        #[test]
        fn never_more_than_the_share(steps in prop::collection::vec((0u64..3_000, 0u8..4), 1..400)) {
            let start = shards::now();
            let mut budget = RetryBudget::new(5, 3);
            let mut log: Vec<(u64, bool)> = Vec::new();
            let mut millis = 0;
            for (index, (pause, kind)) in steps.into_iter().enumerate() {
                millis += if index == 0 { 0 } else { pause };
                let (now, second) = (start + Duration::from_millis(millis), millis / 1_000);
                log.retain(|(at, _)| at + 60 > second);
                let count = |retry: bool| log.iter().filter(|entry| entry.1 == retry).count() as u64;
                if kind > 0 {
                    budget.call(now);
                    log.push((second, false));
                    continue;
                }
                let retries = count(true) + 1;
                let fits = retries <= 3 || retries * 100 <= 5 * count(false);
                prop_assert_eq!(retry(&mut budget, now), fits);
                if fits {
                    log.push((second, true));
                }
            }
        }
    }
}

//! When each request is due.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many a second, evenly, whether or not the answers come.
    Open {
        /// Requests a second.
        rate: f64,
    },
    /// Each connection sends the next request when it has its answer: for work per request, never for latency.
    Closed,
}

/// Hands out requests one after the other.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: Pace,
    start: Instant,
    next: Cell<u64>,
    /// How many requests there are.
    count: u64,
    /// No request is due from here on.
    end: Option<Instant>,
}

/// A request to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) index: u64,
    pub(super) at: Instant,
}

impl Schedule {
    pub(super) fn new(pace: Pace, start: Instant, count: u64, lasts: Option<Duration>) -> Self {
        Self { pace, start, next: Cell::new(0), count, end: lasts.map(|lasts| start + lasts) }
    }

    /// The next request; `None` when there is no more.
    pub(super) fn take(&self, now: Instant) -> Option<Due> {
        let index = self.next.get();
        if index >= self.count {
            return None;
        }
        let at = match self.pace {
            // From the index and not from the one before, so that nothing adds up over a long run.
            Pace::Open { rate } => self.start + Duration::from_secs_f64(index as f64 / rate),
            Pace::Closed => now,
        };
        if self.end.is_some_and(|end| at >= end) {
            return None;
        }
        self.next.set(index + 1);
        Some(Due { index, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_neither_drifts_nor_waits_for_answers() {
        let start = Instant::now();
        let schedule = Schedule::new(Pace::Open { rate: 3_334.0 }, start, 1_000_000, None);
        for _ in 0..100_020 {
            schedule.take(start).unwrap();
        }
        let due = schedule.take(start).unwrap();
        assert_eq!(due.index, 100_020);
        assert!((due.at - start).abs_diff(Duration::from_secs(30)) < Duration::from_micros(1));
    }

    #[test]
    fn it_ends_by_count_or_by_time() {
        let start = Instant::now();
        let count = |schedule: Schedule| std::iter::from_fn(|| schedule.take(start)).count();
        assert_eq!(count(Schedule::new(Pace::Closed, start, 7, None)), 7);
        let lasts = Some(Duration::from_secs(2));
        assert_eq!(count(Schedule::new(Pace::Open { rate: 100.0 }, start, u64::MAX, lasts)), 200);
        let over = Schedule::new(Pace::Closed, start, 7, lasts);
        assert!(over.take(start + Duration::from_secs(2)).is_none());
    }
}

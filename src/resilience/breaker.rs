//! The circuit breaker as a state machine without clock or I/O (spec section 7; reference 9.12).
//!
//! ```text
//! CLOSED --(faults)--> OPEN --(cool-down over)--> HALF_OPEN --(probe answered)--> CLOSED
//!                       ^                             |
//!                       +-------(probe failed)--------+
//! ```

use std::time::{Duration, Instant};

use crate::config::Resilience;

/// Calls looked back on for the share of faults.
const WINDOW: u32 = 32;

/// When it opens and for how long.
#[derive(Debug, Clone, Copy)]
pub struct BreakerLimits {
    /// Faults in a row that open it.
    pub failures: u32,
    /// First cool-down.
    pub open: Duration,
    /// Longest cool-down: it doubles with every failed probe.
    pub open_max: Duration,
}

impl From<&Resilience> for BreakerLimits {
    fn from(settings: &Resilience) -> Self {
        Self {
            failures: settings.breaker_failures,
            open: Duration::from_millis(settings.breaker_open_ms),
            open_max: Duration::from_millis(settings.breaker_open_max_ms),
        }
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Calls go through.
    Closed,
    /// Calls are refused.
    Open,
    /// One call at a time finds out whether the dependency is back.
    HalfOpen,
}

impl State {
    /// As logs and metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Open => "OPEN",
            Self::HalfOpen => "HALF_OPEN",
        }
    }
}

/// The breaker of one dependency.
///
/// It opens after so many faults in a row, and when at least half of the last 32 calls were faults: a dependency that
/// answers now and then is ill too. Calls that were under way when it opened may report late; they do not close it.
#[derive(Debug)]
pub struct Breaker {
    limits: BreakerLimits,
    state: State,
    /// The last calls, newest lowest; 1 is a fault.
    window: u32,
    seen: u32,
    open_until: Option<Instant>,
    cool_down: Duration,
    probing: bool,
}

impl Breaker {
    /// A closed one.
    pub fn new(limits: BreakerLimits) -> Self {
        Self {
            limits,
            state: State::Closed,
            window: 0,
            seen: 0,
            open_until: None,
            cool_down: Duration::ZERO,
            probing: false,
        }
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the last call that was heard of was answered.
    pub const fn is_answering(&self) -> bool {
        matches!(self.state, State::Closed) && self.window & 1 == 0
    }

    /// Whether [`admit`](Self::admit) would say no, without asking for a call.
    pub fn refuses(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => false,
            State::Open => self.open_until.is_some_and(|until| now < until),
            State::HalfOpen => self.probing,
        }
    }

    /// Whether a call may be made now. Whoever gets `true` reports back with one of the three methods below.
    pub fn admit(&mut self, now: Instant) -> bool {
        match self.state {
            _ if self.refuses(now) => false,
            State::Closed => true,
            State::Open | State::HalfOpen => {
                self.state = State::HalfOpen;
                self.probing = true;
                true
            }
        }
    }

    /// An admitted call was answered.
    pub fn succeeded(&mut self) {
        match self.state {
            State::Closed => self.note(false),
            State::HalfOpen => {
                (self.state, self.window, self.seen) = (State::Closed, 0, 0);
                (self.open_until, self.cool_down, self.probing) = (None, Duration::ZERO, false);
            }
            State::Open => {}
        }
    }

    /// An admitted call failed for a reason of the dependency. `random` spreads the probes of many shards.
    pub fn failed(&mut self, now: Instant, random: u64) {
        match self.state {
            State::Closed => {
                self.note(true);
                let row = self.window.trailing_ones();
                let half = self.seen >= WINDOW && self.window.count_ones() * 2 >= WINDOW;
                if row >= self.limits.failures || half {
                    self.open(now, random);
                }
            }
            State::HalfOpen => self.open(now, random),
            State::Open => {}
        }
    }

    /// An admitted call has ended without an answer that says anything.
    pub fn abandoned(&mut self) {
        self.probing = false;
    }

    fn note(&mut self, fault: bool) {
        self.window = self.window << 1 | u32::from(fault);
        self.seen = (self.seen + 1).min(WINDOW);
    }

    fn open(&mut self, now: Instant, random: u64) {
        self.state = State::Open;
        self.probing = false;
        self.cool_down = (self.cool_down * 2).clamp(self.limits.open, self.limits.open_max);
        // Half of it is fixed, half is chance.
        let half = u64::try_from(self.cool_down.as_nanos() / 2).unwrap_or(u64::MAX);
        self.open_until = Some(now + self.cool_down / 2 + Duration::from_nanos(random % half.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BreakerLimits =
        BreakerLimits { failures: 5, open: Duration::from_millis(200), open_max: Duration::from_millis(1_000) };

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(LIMITS);
        (0..5).for_each(|_| breaker.failed(now, 0));
        breaker
    }

    #[test]
    fn faults_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let now = shards::now();
        let mut breaker = Breaker::new(LIMITS);
        for _ in 0..3 {
            (0..4).for_each(|_| breaker.failed(now, 0));
            assert!(!breaker.is_answering());
            breaker.succeeded();
            assert!(breaker.is_answering());
        }
        assert_eq!(breaker.state(), State::Closed);
        assert!(!opened(now).is_answering());
        assert_eq!(opened(now).state(), State::Open);
    }

    #[test]
    fn half_of_the_last_calls_open_it() {
        let now = shards::now();
        let mut breaker = Breaker::new(LIMITS);
        for call in 0..32 {
            assert_eq!(breaker.state(), State::Closed, "call {call}");
            if call % 2 == 1 { breaker.failed(now, 0) } else { breaker.succeeded() }
        }
        assert_eq!(breaker.state(), State::Open);
    }

    #[test]
    fn one_probe_at_a_time_decides() {
        let start = shards::now();
        let mut breaker = opened(start);
        assert!(!breaker.admit(start + Duration::from_millis(99)));
        let later = start + Duration::from_millis(100);
        assert!(!breaker.refuses(later), "who asks first is the probe");
        assert!(breaker.admit(later), "the probe");
        assert_eq!(breaker.state(), State::HalfOpen);
        assert!(!breaker.admit(later), "and nobody else");
        breaker.abandoned();
        assert!(breaker.admit(later), "a probe whose caller left is none");
        breaker.failed(later, 0);
        assert_eq!(breaker.state(), State::Open);
        assert!(!breaker.admit(later + Duration::from_millis(199)), "the cool-down doubles");
        assert!(breaker.admit(later + Duration::from_millis(200)));
        breaker.succeeded();
        assert_eq!(breaker.state(), State::Closed);
        assert!(breaker.admit(later) && breaker.admit(later));
    }

    #[test]
    fn cool_downs_stay_below_their_bound() {
        let mut now = shards::now();
        let mut breaker = opened(now);
        for _ in 0..20 {
            now += LIMITS.open_max;
            assert!(breaker.admit(now));
            breaker.failed(now, u64::MAX);
        }
        assert!(breaker.admit(now + LIMITS.open_max));
    }

    #[test]
    fn a_late_answer_does_not_close_it() {
        let now = shards::now();
        let mut breaker = opened(now);
        breaker.succeeded();
        breaker.failed(now, 0);
        assert_eq!(breaker.state(), State::Open);
    }
}

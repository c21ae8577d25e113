//! Deadlines of all connections of a shard, checked together by one task.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Never.
const NEVER: u64 = u64::MAX;

/// One connection's line. Lines lie side by side, so a sweep reads memory in order.
#[derive(Debug)]
struct Line {
    /// The tick it expires at.
    deadline: u64,
    expired: bool,
    waker: Option<Waker>,
}

/// A table of deadlines counted in ticks. Setting one is a store; only an expiry or a stop wakes a task.
#[derive(Debug)]
pub(super) struct Sweep {
    started: Instant,
    tick_length: Duration,
    tick: Cell<u64>,
    lines: RefCell<Vec<Line>>,
    free: RefCell<Vec<usize>>,
}

impl Sweep {
    /// A table that starts at `now`.
    pub(super) fn new(tick_length: Duration, now: Instant) -> Self {
        let lines = RefCell::new(Vec::new());
        Self { started: now, tick_length, tick: Cell::new(0), lines, free: RefCell::new(Vec::new()) }
    }

    pub(super) fn tick_length(&self) -> Duration {
        self.tick_length
    }

    /// Moves the clock to `now` and wakes what has expired.
    pub(super) fn advance(&self, now: Instant) {
        let ticks = now.duration_since(self.started).as_nanos() / self.tick_length.as_nanos().max(1);
        let tick = u64::try_from(ticks).unwrap_or(NEVER - 1);
        self.tick.set(tick);
        let mut lines = self.lines.borrow_mut();
        for line in lines.iter_mut().filter(|line| line.deadline <= tick) {
            line.deadline = NEVER;
            line.expired = true;
            if let Some(waker) = line.waker.take() {
                waker.wake();
            }
        }
    }

    /// Wakes every connection's task, so that it looks whether to stop.
    pub(super) fn wake_all(&self) {
        for line in self.lines.borrow_mut().iter_mut() {
            if let Some(waker) = line.waker.take() {
                waker.wake();
            }
        }
    }
}

/// One connection's deadline.
#[derive(Debug)]
pub(super) struct Watch {
    sweep: Rc<Sweep>,
    index: usize,
}

impl Watch {
    /// A line without a deadline.
    pub(super) fn new(sweep: &Rc<Sweep>) -> Self {
        let line = Line { deadline: NEVER, expired: false, waker: None };
        let mut lines = sweep.lines.borrow_mut();
        let index = match sweep.free.borrow_mut().pop() {
            Some(index) => {
                lines[index] = line;
                index
            }
            None => {
                lines.push(line);
                lines.len() - 1
            }
        };
        drop(lines);
        Self { sweep: Rc::clone(sweep), index }
    }

    /// Sets the deadline `after` from now, up to two ticks late and never early.
    pub(super) fn arm(&self, after: Duration) {
        let ticks = after.as_nanos().div_ceil(self.sweep.tick_length.as_nanos().max(1));
        let deadline = u64::try_from(ticks).unwrap_or(NEVER).saturating_add(self.sweep.tick.get()).saturating_add(1);
        let line = &mut self.sweep.lines.borrow_mut()[self.index];
        (line.deadline, line.expired) = (deadline, false);
    }

    /// Takes the deadline away.
    pub(super) fn disarm(&self) {
        let line = &mut self.sweep.lines.borrow_mut()[self.index];
        (line.deadline, line.expired) = (NEVER, false);
    }

    /// Whether the deadline has passed since it was set; if not, the task is woken when it does, or at a stop.
    pub(super) fn poll_expired(&self, context: &Context<'_>) -> bool {
        let line = &mut self.sweep.lines.borrow_mut()[self.index];
        if !line.expired && !line.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            line.waker = Some(context.waker().clone());
        }
        line.expired
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let line = &mut self.sweep.lines.borrow_mut()[self.index];
        (line.deadline, line.waker) = (NEVER, None);
        self.sweep.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_expires_after_its_time_and_never_before() {
        let (tick, start) = (Duration::from_millis(10), Instant::now());
        let sweep = Rc::new(Sweep::new(tick, start));
        let (watch, other) = (Watch::new(&sweep), Watch::new(&sweep));
        let context = Context::from_waker(Waker::noop());
        sweep.advance(start + Duration::from_millis(19));
        watch.arm(Duration::from_millis(25));
        other.arm(Duration::from_millis(500));
        sweep.advance(start + Duration::from_millis(19 + 25));
        assert!(!watch.poll_expired(&context));
        sweep.advance(start + Duration::from_millis(19 + 25 + 20));
        assert!(watch.poll_expired(&context));
        assert!(!other.poll_expired(&context));
        watch.arm(Duration::from_millis(1));
        assert!(!watch.poll_expired(&context), "arming again starts anew");
        watch.disarm();
        sweep.advance(start + Duration::from_secs(1));
        assert!(!watch.poll_expired(&context));
        assert!(other.poll_expired(&context));
    }

    #[test]
    fn lines_are_used_again() {
        let start = Instant::now();
        let sweep = Rc::new(Sweep::new(Duration::from_millis(10), start));
        for _ in 0..10 {
            let watch = Watch::new(&sweep);
            watch.arm(Duration::ZERO);
        }
        sweep.advance(start + Duration::from_secs(1));
        let watch = Watch::new(&sweep);
        assert!(!watch.poll_expired(&Context::from_waker(Waker::noop())), "a new line knows nothing of the old one");
        assert_eq!(sweep.lines.borrow().len(), 1);
    }
}

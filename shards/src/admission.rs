//! A limit on how much may be under way at once on one shard.

use std::cell::Cell;
use std::rc::Rc;

/// Hands out at most `limit` permits at a time; whoever gets none is turned away, nobody waits.
#[derive(Debug, Clone)]
pub struct Admission(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    limit: usize,
    in_use: Cell<usize>,
    peak: Cell<usize>,
}

/// A place taken; given back when dropped.
#[derive(Debug)]
pub struct Permit(Rc<Counts>);

impl Admission {
    /// At most `limit` permits at a time; zero admits nobody.
    pub fn new(limit: usize) -> Self {
        Self(Rc::new(Counts { limit, in_use: Cell::new(0), peak: Cell::new(0) }))
    }

    /// A permit, or `None` when all are taken.
    pub fn try_acquire(&self) -> Option<Permit> {
        let in_use = self.0.in_use.get();
        if in_use >= self.0.limit {
            return None;
        }
        self.0.in_use.set(in_use + 1);
        self.0.peak.set(self.0.peak.get().max(in_use + 1));
        Some(Permit(Rc::clone(&self.0)))
    }

    /// Permits out now.
    pub fn in_use(&self) -> usize {
        self.0.in_use.get()
    }

    /// The most permits at a time.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// The most permits that were ever out at a time.
    pub fn peak(&self) -> usize {
        self.0.peak.get()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.in_use.set(self.0.in_use.get() - 1);
    }
}

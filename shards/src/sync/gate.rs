//! One-way cancellation.

use std::cell::Cell;
use std::rc::Rc;

use super::Notify;

/// Open until closed, then closed for good. Clones are the same gate.
#[derive(Debug, Clone, Default)]
pub struct Gate(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    closed: Cell<bool>,
    notify: Notify,
}

impl Gate {
    /// An open gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`Gate::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Completes once the gate is closed; at once if it is already.
    pub async fn closed(&self) {
        while !self.is_closed() {
            self.0.notify.notified().await;
        }
    }

    /// Closes the gate and wakes everybody who waits. Closing twice is harmless.
    pub fn close(&self) {
        if !self.0.closed.replace(true) {
            self.0.notify.notify_all();
        }
    }
}

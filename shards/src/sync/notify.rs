//! A wake-up signal between tasks of one shard.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Wakes tasks that wait in [`Notify::notified`]. One permit is remembered when nobody waits.
#[derive(Debug, Default)]
pub struct Notify {
    permit: Cell<bool>,
    waiting: RefCell<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next_id: u64,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    waker: Waker,
    /// Set when this waiter was chosen; it stays queued until its future has seen it.
    chosen: bool,
}

impl Notify {
    /// A signal without a permit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the task that has waited longest, or remembers one permit for the next that comes.
    pub fn notify_one(&self) {
        let waker = {
            let mut waiting = self.waiting.borrow_mut();
            match waiting.queue.iter_mut().find(|w| !w.chosen) {
                Some(waiter) => {
                    waiter.chosen = true;
                    waiter.waker.clone()
                }
                None => {
                    self.permit.set(true);
                    return;
                }
            }
        };
        waker.wake();
    }

    /// Wakes every task that waits now; remembers nothing.
    pub fn notify_all(&self) {
        let wakers: Vec<Waker> = {
            let mut waiting = self.waiting.borrow_mut();
            let pending = waiting.queue.iter_mut().filter(|w| !w.chosen);
            pending
                .map(|w| {
                    w.chosen = true;
                    w.waker.clone()
                })
                .collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Completes when notified. A permit left by [`Notify::notify_one`] is used up at once.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, id: None }
    }
}

/// See [`Notify::notified`]. Dropping it after it was chosen passes the wake-up on.
#[derive(Debug)]
pub struct Notified<'a> {
    notify: &'a Notify,
    id: Option<u64>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let mut waiting = notify.waiting.borrow_mut();
        let Some(id) = self.id else {
            if notify.permit.replace(false) {
                return Poll::Ready(());
            }
            let id = waiting.next_id;
            waiting.next_id += 1;
            waiting.queue.push_back(Waiter { id, waker: cx.waker().clone(), chosen: false });
            self.id = Some(id);
            return Poll::Pending;
        };
        let Some(at) = waiting.queue.iter().position(|w| w.id == id) else {
            return Poll::Ready(());
        };
        if waiting.queue[at].chosen {
            waiting.queue.remove(at);
            self.id = None;
            return Poll::Ready(());
        }
        if !waiting.queue[at].waker.will_wake(cx.waker()) {
            waiting.queue[at].waker = cx.waker().clone();
        }
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let removed = {
            let mut waiting = self.notify.waiting.borrow_mut();
            waiting.queue.iter().position(|w| w.id == id).and_then(|at| waiting.queue.remove(at))
        };
        if removed.is_some_and(|w| w.chosen) {
            self.notify.notify_one();
        }
    }
}

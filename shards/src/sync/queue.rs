//! A bounded queue between tasks of one shard.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Why a value could not be queued; it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// The queue holds as many values as it may.
    #[error("the queue is full")]
    Full(T),
    /// The queue was closed.
    #[error("the queue is closed")]
    Closed(T),
}

/// A first-in first-out queue with a fixed capacity. Share it with `Rc`.
#[derive(Debug)]
pub struct Queue<T> {
    inner: RefCell<Inner<T>>,
    capacity: usize,
}

#[derive(Debug)]
struct Inner<T> {
    values: VecDeque<T>,
    closed: bool,
    waiting: Vec<Waker>,
}

impl<T> Queue<T> {
    /// A queue for at most `capacity` values; memory grows with use, up to that.
    pub fn new(capacity: usize) -> Self {
        let inner = Inner { values: VecDeque::new(), closed: false, waiting: Vec::new() };
        Self { inner: RefCell::new(inner), capacity }
    }

    /// Adds a value at the end and wakes who waits in [`Queue::pop`].
    pub fn try_push(&self, value: T) -> Result<(), PushError<T>> {
        let mut inner = self.inner.borrow_mut();
        if inner.closed {
            return Err(PushError::Closed(value));
        }
        if inner.values.len() >= self.capacity {
            return Err(PushError::Full(value));
        }
        inner.values.push_back(value);
        let waker = inner.waiting.pop();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// The oldest value; waits for one. `None` once the queue is closed and empty.
    pub async fn pop(&self) -> Option<T> {
        poll_fn(|cx| self.poll_pop(cx)).await
    }

    /// [`Queue::pop`] for hand-written futures.
    pub fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut inner = self.inner.borrow_mut();
        if let Some(value) = inner.values.pop_front() {
            return Poll::Ready(Some(value));
        }
        if inner.closed {
            return Poll::Ready(None);
        }
        if !inner.waiting.iter().any(|w| w.will_wake(cx.waker())) {
            inner.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The oldest value if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.inner.borrow_mut().values.pop_front()
    }

    /// Moves up to `max` values to the end of `into`, oldest first; returns how many.
    pub fn drain_into(&self, into: &mut Vec<T>, max: usize) -> usize {
        let mut inner = self.inner.borrow_mut();
        let count = inner.values.len().min(max);
        into.extend(inner.values.drain(..count));
        count
    }

    /// How many values wait.
    pub fn len(&self) -> usize {
        self.inner.borrow().values.len()
    }

    /// Whether no value waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most values it may hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Refuses further pushes. What is queued can still be taken.
    pub fn close(&self) {
        let waiting = {
            let mut inner = self.inner.borrow_mut();
            inner.closed = true;
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.borrow().closed
    }
}

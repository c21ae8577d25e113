//! One value from one task to another, once. A channel is one allocation.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The other half is gone and no value will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sender was dropped without sending")]
pub struct Closed;

enum State<T> {
    /// Nothing sent; the receiver's waker once it has been polled.
    Empty(Option<Waker>),
    Sent(T),
    /// Taken by the receiver, or one half dropped.
    Closed,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender<T>(Rc<RefCell<State<T>>>);

/// The receiving half: a future of the value.
#[derive(Debug)]
pub struct Receiver<T>(Rc<RefCell<State<T>>>);

/// A channel for one value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State::Empty(None)));
    (Sender(Rc::clone(&state)), Receiver(state))
}

impl<T> std::fmt::Debug for State<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Empty(_) => "Empty",
            State::Sent(_) => "Sent",
            State::Closed => "Closed",
        })
    }
}

impl<T> Sender<T> {
    /// Hands the value over; gives it back when the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let previous = {
            let mut state = self.0.borrow_mut();
            if matches!(*state, State::Closed) {
                return Err(value);
            }
            std::mem::replace(&mut *state, State::Sent(value))
        };
        if let State::Empty(Some(waker)) = previous {
            waker.wake();
        }
        Ok(())
    }

    /// Whether the receiver has been dropped, so that nobody waits for the value any more.
    pub fn is_closed(&self) -> bool {
        matches!(*self.0.borrow(), State::Closed)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        if let State::Empty(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Closed;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Receiver<T> {
    /// The value if it is there already; `None` while it may still come.
    pub fn try_recv(&mut self) -> Option<Result<T, Closed>> {
        let mut state = self.0.borrow_mut();
        if matches!(*state, State::Empty(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Sent(value) => Some(Ok(value)),
            _ => Some(Err(Closed)),
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.try_recv() {
            return Poll::Ready(outcome);
        }
        if let State::Empty(waker) = &mut *self.0.borrow_mut() {
            match waker {
                Some(known) if known.will_wake(cx.waker()) => {}
                _ => *waker = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // The value is dropped outside the borrow: its own drop may reach this channel's sender.
        let state = self.0.replace(State::Closed);
        drop(state);
    }
}

//! Bounded queues between shards: the only state two shards share.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crossbeam::queue::ArrayQueue;

use crate::bell::Bell;
use crate::shard;

/// The mailbox holds as many values as it may, or its receiver is gone; the value comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is full or its receiver is gone")]
pub struct Full<T>(pub T);

#[derive(Debug)]
struct Shared<T> {
    values: ArrayQueue<T>,
    senders: AtomicUsize,
    receiver_gone: AtomicBool,
    /// True while the receiver waits; saves senders the lock when it does not.
    waiting: AtomicBool,
    /// Of the shard that receives.
    bell: Mutex<Option<Arc<Bell>>>,
}

impl<T> Shared<T> {
    fn wake(&self) {
        if self.waiting.swap(false, Ordering::SeqCst)
            && let Some(bell) = &*self.bell.lock().unwrap_or_else(PoisonError::into_inner)
        {
            bell.ring();
        }
    }
}

/// The sending half; clone it for each shard that sends.
#[derive(Debug)]
pub struct Sender<T: Send>(Arc<Shared<T>>);

/// The receiving half, bound to the shard that first polls it.
#[derive(Debug)]
pub struct Receiver<T: Send> {
    shared: Arc<Shared<T>>,
    seat: Option<Seat>,
    /// May move to another thread before it is used, but is not shared between threads.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// The receiver's place among those whom its shard's bell wakes.
#[derive(Debug, Clone, Copy)]
struct Seat {
    shard: u64,
    at: usize,
}

impl Seat {
    /// Gives the place up. On another thread than its shard's it is left behind, with no task in it any more.
    fn leave(self) {
        if let Some(shard) = shard::try_current().filter(|shard| shard.id == self.shard) {
            shard.listeners.leave(self.at);
        }
    }
}

/// A mailbox for at most `capacity` values (at least one).
pub fn bounded<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        values: ArrayQueue::new(capacity.max(1)),
        senders: AtomicUsize::new(1),
        receiver_gone: AtomicBool::new(false),
        waiting: AtomicBool::new(false),
        bell: Mutex::new(None),
    });
    (Sender(Arc::clone(&shared)), Receiver { shared, seat: None, _not_sync: PhantomData })
}

impl<T: Send> Sender<T> {
    /// Puts a value in and wakes the shard that owns the mailbox. Never waits.
    pub fn try_send(&self, value: T) -> Result<(), Full<T>> {
        if self.0.receiver_gone.load(Ordering::Acquire) {
            return Err(Full(value));
        }
        self.0.values.push(value).map_err(Full)?;
        std::sync::atomic::fence(Ordering::SeqCst);
        self.0.wake();
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.receiver_gone.load(Ordering::Acquire)
    }
}

impl<T: Send> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.wake();
        }
    }
}

impl<T: Send> Receiver<T> {
    /// The next value; `None` once every sender is gone and the mailbox is empty.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`Receiver::recv`] for hand-written futures.
    ///
    /// # Panics
    /// Outside a shard, when there is nothing to give at once.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.shared.values.pop() {
            return Poll::Ready(Some(value));
        }
        self.listen(cx);
        self.shared.waiting.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        // A value pushed between the first look and the flag would otherwise be slept over.
        if let Some(value) = self.shared.values.pop() {
            self.shared.waiting.store(false, Ordering::SeqCst);
            return Poll::Ready(Some(value));
        }
        if self.shared.senders.load(Ordering::SeqCst) == 0 {
            return Poll::Ready(self.shared.values.pop());
        }
        Poll::Pending
    }

    fn listen(&mut self, cx: &mut Context<'_>) {
        let shard = shard::current();
        let seat = match self.seat {
            Some(seat) if seat.shard == shard.id => seat,
            _ => {
                let bell = Some(Arc::clone(&shard.bell));
                *self.shared.bell.lock().unwrap_or_else(PoisonError::into_inner) = bell;
                Seat { shard: shard.id, at: shard.listeners.sit_down() }
            }
        };
        self.seat = Some(seat);
        shard.listeners.wait(seat.at, cx.waker());
    }

    /// The next value if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        self.shared.values.pop()
    }

    /// How many values wait.
    pub fn len(&self) -> usize {
        self.shared.values.len()
    }

    /// Whether no value waits.
    pub fn is_empty(&self) -> bool {
        self.shared.values.is_empty()
    }
}

impl<T: Send> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receiver_gone.store(true, Ordering::Release);
        self.shared.waiting.store(false, Ordering::SeqCst);
        if let Some(seat) = self.seat.take() {
            seat.leave();
        }
        while self.shared.values.pop().is_some() {}
    }
}

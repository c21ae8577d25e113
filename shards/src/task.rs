//! Tasks of one shard: spawning, panic capture, and giving way.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::backend;
use crate::shard::{self, ShardState};

/// A task ended without a result: it panicked, or its shard stopped first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("task ended without a result: {message}")]
pub struct Panicked {
    message: String,
}

impl Panicked {
    /// The panic's message, or why the task was given up.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn from_payload(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self { message: text.unwrap_or_else(|| "panic without a message".to_owned()) }
    }

    pub(crate) fn never_started() -> Self {
        Self { message: "the shard never started".to_owned() }
    }

    pub(crate) fn no_line(e: &std::io::Error) -> Self {
        Self { message: format!("no socket pair could be made: {e}") }
    }

    fn stopped() -> Self {
        Self { message: "the shard stopped".to_owned() }
    }
}

/// Waits for a task's result. Dropping it lets the task run on by itself.
pub struct JoinHandle<T> {
    raw: backend::RawJoin<Result<T, Panicked>>,
}

impl<T> JoinHandle<T> {
    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.raw.is_finished()
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.raw).poll(cx)
    }
}

/// Starts a task on the current shard. A panic in it is caught and reported through the handle; the shard lives on.
///
/// # Panics
/// When called outside a shard ([`crate::run`] or [`crate::Shards::start`]).
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    let task = Guarded::new(future, shard::current());
    JoinHandle { raw: backend::spawn(task) }
}

/// Lets every other task that is ready run first.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        shard::with(|s| s.tasks.give_way(cx.waker()));
        Poll::Pending
    })
    .await;
}

/// Turns of yielding tasks before the ring gets one. A turn through the ring costs a system call, which this many
/// turns share; the sockets of a shard whose tasks yield without end wait no longer than these turns take.
const TURNS_WITHOUT_IO: u32 = 16;

/// What a shard knows of its tasks: enough to end them all, and to let them take turns.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    /// One waker a live task, to reach it when the shard stops.
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
    live: Cell<usize>,
    stopping: Cell<bool>,
    stopped: RefCell<Option<Waker>>,
    /// Tasks in [`yield_now`], and the helper task that wakes them.
    yielding: RefCell<Vec<Waker>>,
    usher: RefCell<Option<Waker>>,
}

impl TaskSet {
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    fn give_way(&self, waker: &Waker) {
        self.yielding.borrow_mut().push(waker.clone());
        if let Some(usher) = &*self.usher.borrow() {
            usher.wake_by_ref();
        }
    }

    /// Wakes yielding tasks from outside their own poll: a task that wakes itself goes to the front of the
    /// backend's queue and would run again at once. Ends when the shard has stopped.
    ///
    /// Every [`TURNS_WITHOUT_IO`]th turn goes through the ring first. The backend takes completions and timers only
    /// when no task is ready, and tasks that yield in turn would see to it that this never happens.
    pub(crate) async fn usher(&self, ring: &mut backend::RingTurn) {
        let mut turns = 0;
        while !self.has_stopped() {
            poll_fn(|cx| self.poll_yielding(cx)).await;
            turns += 1;
            if turns == TURNS_WITHOUT_IO {
                turns = 0;
                ring.take().await;
            }
            let yielding = std::mem::take(&mut *self.yielding.borrow_mut());
            yielding.into_iter().for_each(Waker::wake);
        }
    }

    fn poll_yielding(&self, cx: &mut Context<'_>) -> Poll<()> {
        *self.usher.borrow_mut() = Some(cx.waker().clone());
        if self.has_stopped() || !self.yielding.borrow().is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether the shard was stopped and none of its tasks is left.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopping.get() && self.live.get() == 0
    }

    fn register(&self, waker: &Waker) -> usize {
        let mut wakers = self.wakers.borrow_mut();
        match self.free.borrow_mut().pop() {
            Some(slot) => {
                wakers[slot] = Some(waker.clone());
                slot
            }
            None => {
                wakers.push(Some(waker.clone()));
                wakers.len() - 1
            }
        }
    }

    fn forget(&self, slot: usize) {
        let waker = self.wakers.borrow_mut()[slot].take();
        drop(waker);
        self.free.borrow_mut().push(slot);
    }

    fn ended(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0
            && let Some(waker) = self.stopped.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Ends every task by dropping its future inside the shard, so that what it owns is released there.
    pub(crate) async fn stop(&self) {
        self.stopping.set(true);
        let wakers: Vec<Waker> = self.wakers.borrow().iter().flatten().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
        poll_fn(|cx| {
            if self.live.get() == 0 {
                return Poll::Ready(());
            }
            *self.stopped.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if let Some(usher) = &*self.usher.borrow() {
            usher.wake_by_ref();
        }
    }
}

pin_project_lite::pin_project! {
    /// A task's future with its panics caught, which ends early when the shard stops.
    pub(crate) struct Guarded<F: Future> {
        #[pin]
        future: Option<F>,
        presence: Presence,
    }
}

/// Counts a task among the live ones, however it ends.
struct Presence {
    shard: Rc<ShardState>,
    slot: Option<usize>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shard.tasks.forget(slot);
        }
        self.shard.tasks.ended();
    }
}

impl<F: Future> Guarded<F> {
    pub(crate) fn new(future: F, shard: Rc<ShardState>) -> Self {
        shard.tasks.live.set(shard.tasks.live.get() + 1);
        Self { future: Some(future), presence: Presence { shard, slot: None } }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let tasks = &this.presence.shard.tasks;
        if tasks.stopping.get() {
            drop_quietly(this.future);
            return Poll::Ready(Err(Panicked::stopped()));
        }
        if this.presence.slot.is_none() {
            this.presence.slot = Some(tasks.register(cx.waker()));
        }
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(Panicked::stopped()));
        };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => {
                drop_quietly(this.future);
                Poll::Ready(Ok(output))
            }
            Err(payload) => {
                drop_quietly(this.future);
                Poll::Ready(Err(Panicked::from_payload(&*payload)))
            }
        }
    }
}

/// Drops a future whose destructor may panic too; the panic hook has reported it, the shard must not fall with it.
fn drop_quietly<F>(mut slot: Pin<&mut Option<F>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| slot.set(None)));
}

//! What a thread knows while it is a shard.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bell::{Bell, Listeners};
use crate::task::TaskSet;

/// The state of the shard that runs on this thread.
#[derive(Debug)]
pub(crate) struct ShardState {
    /// Tells shards apart, among all that this process ever had.
    pub(crate) id: u64,
    pub(crate) tasks: TaskSet,
    pub(crate) bell: Arc<Bell>,
    pub(crate) listeners: Listeners,
}

impl ShardState {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { id, tasks: TaskSet::default(), bell, listeners: Listeners::default() }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<ShardState>>> = const { RefCell::new(None) };
}

/// Makes this thread a shard until dropped.
pub(crate) struct Entered;

impl Entered {
    /// # Panics
    /// When this thread is a shard already.
    pub(crate) fn new(state: Rc<ShardState>) -> Self {
        CURRENT.with(|current| {
            let previous = current.borrow_mut().replace(state);
            assert!(previous.is_none(), "a shard cannot be started inside a shard");
        });
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
    }
}

/// The current shard.
///
/// # Panics
/// When this thread is not a shard: a programming error, like using any runtime from outside.
pub(crate) fn current() -> Rc<ShardState> {
    try_current().expect("not inside a shard: use shards::run or Shards::start")
}

/// The current shard, or `None` on a thread that is none.
pub(crate) fn try_current() -> Option<Rc<ShardState>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

pub(crate) fn with<R>(f: impl FnOnce(&ShardState) -> R) -> R {
    f(&current())
}

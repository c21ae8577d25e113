//! What a thread knows while it is a shard.

use std::cell::RefCell;
use std::rc::Rc;

use crate::task::TaskSet;

/// The state of the shard that runs on this thread.
#[derive(Debug, Default)]
pub(crate) struct ShardState {
    pub(crate) tasks: TaskSet,
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
    CURRENT.with(|current| current.borrow().clone().expect("not inside a shard: use shards::run or Shards::start"))
}

pub(crate) fn with<R>(f: impl FnOnce(&ShardState) -> R) -> R {
    f(&current())
}

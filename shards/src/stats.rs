//! What the shard of this thread does, in numbers.

use std::cell::Cell;

thread_local! {
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Operations on sockets and files that this thread's shard has begun: what it handed to its ring, or did itself under epoll.
/// Timers and wake-ups are not among them.
pub fn operations() -> u64 {
    OPERATIONS.get()
}

/// Tasks of this thread's shard that have not ended; zero on a thread that is no shard.
pub fn tasks() -> usize {
    crate::shard::try_current().map_or(0, |shard| shard.tasks.live())
}

pub(crate) fn begun() {
    OPERATIONS.set(OPERATIONS.get().wrapping_add(1));
}

//! A thread-per-core runtime face: one independent shard a core, no state shared between them but mailboxes.
//!
//! Everything that touches the outside world goes through here: tasks, time, randomness, sockets and files. The
//! crate knows nothing of protocols and nothing of sales. Futures are `!Send`: inside a shard plain `Rc`, `Cell`
//! and `RefCell` are enough, and an atomic is only ever paid for by [`mailbox`], the one way between shards.
//!
//! The work is done by a backend module (`backend/`), chosen when the crate is built; the public signatures do not
//! change with it. Each backend must pass the suite in `tests/conformance.rs`.

mod admission;
mod backend;
mod bell;
mod buffers;
pub mod faults;
pub mod fs;
pub mod mailbox;
pub mod net;
mod pinning;
mod random;
mod runtime;
mod shard;
pub mod signal;
pub mod stats;
pub mod sync;
mod sys;
mod task;
pub mod time;

pub use admission::{Admission, Permit};
pub use buffers::BufferPool;
pub use pinning::Pinning;
pub use random::random_u64;
pub use runtime::{
    DriverChoice, DriverKind, DriverReport, RingFlags, ShardConfig, ShardContext, Shards, run, run_with,
};
pub use task::{JoinHandle, Panicked, spawn, yield_now};
pub use time::{Elapsed, now, sleep, sleep_until, timeout, timeout_at, unix_micros};

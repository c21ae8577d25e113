//! Coordination between the tasks of one shard. Nothing here is `Send`; nothing here locks.

mod gate;
mod notify;
pub mod oneshot;
mod queue;

pub use gate::Gate;
pub use notify::{Notified, Notify};
pub use queue::{PushError, Queue};

//! Redis: RESP2 and RESP3.
//!
//! The core is [`Command`], [`Parser`] and [`Script`]: bytes in, values out, no I/O. [`Pool`] drives it over the sockets of
//! a shard: few connections, each pipelined, so that all callers of a shard share a round trip.

mod command;
pub mod dump;
#[cfg(feature = "drivers")]
mod error;
#[cfg(feature = "drivers")]
mod handshake;
#[cfg(feature = "drivers")]
mod link;
mod parser;
#[cfg(feature = "drivers")]
mod pool;
mod reply;
mod script;

pub use command::Command;
#[cfg(feature = "drivers")]
pub use error::{CallError, NotSent, Unknown};
pub use parser::{Incoming, Parser, ProtocolError};
#[cfg(feature = "drivers")]
pub use pool::{Pool, PoolConfig, PoolStats};
pub use reply::{ErrorKind, Reply, ServerError};
pub use script::Script;

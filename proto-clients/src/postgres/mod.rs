//! PostgreSQL, frontend/backend protocol 3.0.
//!
//! The core is [`message`], [`startup`] and [`exchange`]: messages in, outcomes out, no I/O. [`Pool`] drives it over the
//! sockets of a shard. A connection belongs to one [`Client`] at a time; one whose state is not known is closed.

#[cfg(feature = "drivers")]
mod call_error;
#[cfg(feature = "drivers")]
mod client;
#[cfg(feature = "drivers")]
mod connection;
mod error;
pub mod exchange;
mod frontend;
pub mod message;
mod params;
#[cfg(feature = "drivers")]
mod pool;
mod rows;
pub mod startup;
mod types;
#[cfg(feature = "drivers")]
mod url;

#[cfg(feature = "drivers")]
pub use call_error::{CallError, CommitError, NotSent, PipelineError, Unknown};
#[cfg(feature = "drivers")]
pub use client::{Client, Transaction};
pub use error::{ErrorClass, PgError, SqlState};
pub use params::Params;
#[cfg(feature = "drivers")]
pub use pool::{Pool, PoolConfig, PoolStats};
pub use rows::{Column, DecodeError, Row, Rows};
pub use types::{Statement, Type};
#[cfg(feature = "drivers")]
pub use url::UrlError;

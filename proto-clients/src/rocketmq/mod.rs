//! RocketMQ remoting, straight to name server and broker (5.x).
//!
//! The core is [`frame`], [`route`], [`record`], [`send`], [`pop`], [`pull`] and [`ack`]: bytes in, values out, no I/O. [`Client`]
//! drives it over the sockets of a shard.

mod access;
pub mod ack;
#[cfg(feature = "drivers")]
mod client;
pub mod code;
#[cfg(feature = "drivers")]
mod consume;
mod error;
pub mod frame;
mod handle;
#[cfg(feature = "drivers")]
mod link;
pub mod pop;
mod properties;
pub mod pull;
pub mod record;
pub mod route;
pub mod send;

pub use access::AccessKey;
#[cfg(feature = "drivers")]
pub use client::{Client, ClientConfig, ClientStats};
pub use error::MqError;
pub use handle::Handle;
pub use pop::Popped;
pub use send::{Outgoing, SendOutcome, SendResult};

//! An HTTP/1.1 server on one shard (RFC 9110, RFC 9112): a strict parser without I/O, an answer writer, and the
//! connection loop between them.

mod chunked;
mod config;
mod connection;
mod date;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod gone;
mod head;
mod lexis;
pub mod parser;
mod pump;
mod reject;
mod request;
mod response;
mod server;
mod sweep;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{HttpConfig, Timeouts};
pub use date::DateCache;
pub use format::{put_decimal, put_hex, put_uuid};
pub use gone::ClientGone;
pub use reject::Reject;
pub use request::{Header, Method, Request};
pub use response::{Answered, ErrorIds, ROUTE_NONE, Responder};
pub use server::{Handler, Observer, serve};
pub use wire::Phase;

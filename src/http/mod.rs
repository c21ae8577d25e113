//! An HTTP/1.1 server on one shard (RFC 9110, RFC 9112): a strict parser without I/O, an answer writer, and the
//! connection loop between them.

mod chunked;
mod date;
mod format;
mod head;
mod lexis;
pub mod parser;
mod reject;
mod request;
mod response;

pub use date::DateCache;
pub use format::{put_decimal, put_hex, put_uuid};
pub use reject::Reject;
pub use request::{Header, Method, Request};
pub use response::{Answered, ErrorIds, ROUTE_NONE, Responder};

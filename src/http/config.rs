//! What the server may use.

use std::time::Duration;

use super::parser::Limits;

/// Longest request target, in bytes.
const TARGET_BYTES_MAX: usize = 2048;
/// Smallest buffer that makes sense: most requests fit.
const BUFFER_BYTES_MIN: usize = 512;
/// Bounds for what is counted in 32 bits inside the parser, and for memory a connection can take.
const PART_BYTES_MAX: usize = 16 << 20;

/// How long a client may take. Each time runs from the start of its part, not from the last byte, so that a client
/// that sends a byte now and then gains nothing. They are checked by a sweep and may be exceeded by up to 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a head to its end; on a new connection, from its acceptance.
    pub head: Duration,
    /// From the end of the head to the end of the body.
    pub body: Duration,
    /// From an answer to the first byte of the next request.
    pub idle: Duration,
    /// For taking in the answers of one write.
    pub write: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(10), body: seconds(10), idle: seconds(60), write: seconds(10) }
    }
}

/// Settings of one shard's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Bytes of request line and fields together; more is answered 431.
    pub head_bytes_max: usize,
    /// Fields of one head; more is answered 431.
    pub fields_max: usize,
    /// Bytes of a body; more is answered 413.
    pub body_bytes_max: usize,
    /// Open connections; one more is answered 503 and closed.
    pub connections_max: usize,
    /// Size of the input and output buffers; they grow for a request that needs more, and shrink again after it.
    pub buffer_bytes: usize,
    /// Buffers kept for reuse.
    pub buffers_kept: usize,
    /// The field in which a trusted gateway names the user.
    pub user_field: Option<String>,
    /// How long a client may take.
    pub timeouts: Timeouts,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            head_bytes_max: 8192,
            fields_max: 64,
            body_bytes_max: 4096,
            connections_max: 10_000,
            buffer_bytes: 4096,
            buffers_kept: 1024,
            user_field: None,
            timeouts: Timeouts::default(),
        }
    }
}

impl HttpConfig {
    /// The parser's part. Sizes over 16 MiB are taken as 16 MiB.
    pub fn limits(&self) -> Limits {
        Limits {
            head_bytes_max: self.head_bytes_max.min(PART_BYTES_MAX),
            fields_max: self.fields_max,
            target_bytes_max: TARGET_BYTES_MAX,
            body_bytes_max: self.body_bytes_max.min(PART_BYTES_MAX),
            user_field: self.user_field.clone(),
        }
    }

    pub(super) fn buffer_size(&self) -> usize {
        self.buffer_bytes.clamp(BUFFER_BYTES_MIN, PART_BYTES_MAX)
    }
}

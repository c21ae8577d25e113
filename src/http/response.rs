//! Writing an answer into the connection's output buffer.

use std::cell::Cell;

use bytes::{BufMut, BytesMut};

use super::date::DateCache;
use super::format::{put_decimal, put_hex, put_uuid};
use super::request::{Method, Request};

/// `route` of an answer whose handler named none.
pub const ROUTE_NONE: usize = usize::MAX;

/// What an error body names besides its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorIds {
    /// The request id, where a valid one was sent.
    pub request_id: Option<[u8; 16]>,
    /// The trace the request belongs to.
    pub trace_id: [u8; 16],
}

/// Proof that an answer was written; only a [`Responder`] makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a handler returns it"]
pub struct Answered {
    pub(super) status: u16,
    pub(super) route: usize,
    pub(super) close: bool,
}

impl Answered {
    /// The status that was answered.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The route index given, [`ROUTE_NONE`] if none.
    pub fn route(&self) -> usize {
        self.route
    }
}

/// Writes one answer. The first group of methods adds to it, the second completes it.
#[derive(Debug)]
#[must_use = "a request without an answer leaves the client waiting"]
pub struct Responder<'a> {
    out: &'a mut BytesMut,
    date: &'a DateCache,
    body_wanted: bool,
    /// HTTP/1.0: staying open must be said.
    old: bool,
    close: bool,
    /// The server stops: looked at when the answer is written, which may be long after the request came.
    stopping: Option<&'a Cell<bool>>,
    no_store: bool,
    route: usize,
    retry_after: Option<u32>,
    allow: Option<&'static str>,
}

impl<'a> Responder<'a> {
    /// An answer to `request`, appended to `out`; with `close` the connection ends after it whatever the client wants.
    pub fn new(out: &'a mut BytesMut, date: &'a DateCache, request: &Request<'_>, close: bool) -> Self {
        Self {
            body_wanted: request.method() != Method::Head,
            old: request.minor_version() == 0,
            close: close || !request.keep_alive(),
            ..Self::refusing(out, date)
        }
    }

    /// An answer to what could not be read as a request; the connection ends after it.
    pub(super) fn refusing(out: &'a mut BytesMut, date: &'a DateCache) -> Self {
        Self {
            out,
            date,
            body_wanted: true,
            old: false,
            close: true,
            stopping: None,
            no_store: false,
            route: ROUTE_NONE,
            retry_after: None,
            allow: None,
        }
    }

    /// Ends the connection after this answer if `stopping` is set by then.
    pub(super) fn close_when(mut self, stopping: &'a Cell<bool>) -> Self {
        self.stopping = Some(stopping);
        self
    }

    /// Names the route, a small index for the metrics.
    pub fn route(mut self, route: usize) -> Self {
        self.route = route;
        self
    }

    /// Adds `Retry-After: seconds`.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Adds `Cache-Control: no-store`.
    pub fn no_store(mut self) -> Self {
        self.no_store = true;
        self
    }

    /// Ends the connection after this answer.
    pub fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Adds `Allow: methods`, a list such as `GET, HEAD`.
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Answers with a JSON text.
    pub fn json(self, status: u16, body: &[u8]) -> Answered {
        self.text(status, "application/json", body)
    }

    /// Answers with the JSON text that `write` appends to the buffer it is given.
    pub fn json_with(self, status: u16, write: impl FnOnce(&mut BytesMut)) -> Answered {
        self.finish(status, "application/json", write)
    }

    /// Answers with `{"code":..,"request_id":..,"trace_id":..}`. A `code` is upper-case letters, digits and `_`;
    /// anything else in it is written as `_`.
    pub fn error(self, status: u16, code: &str, ids: &ErrorIds) -> Answered {
        self.json_with(status, |buf| {
            buf.put_slice(b"{\"code\":\"");
            for byte in code.bytes() {
                buf.put_u8(if byte.is_ascii_uppercase() || byte.is_ascii_digit() { byte } else { b'_' });
            }
            buf.put_slice(b"\",\"request_id\":");
            match &ids.request_id {
                Some(id) => {
                    buf.put_u8(b'"');
                    put_uuid(buf, id);
                    buf.put_u8(b'"');
                }
                None => buf.put_slice(b"null"),
            }
            buf.put_slice(b",\"trace_id\":\"");
            put_hex(buf, &ids.trace_id);
            buf.put_slice(b"\"}");
        })
    }

    /// 405 with `Allow`.
    pub fn method_not_allowed(self, allow: &'static str, ids: &ErrorIds) -> Answered {
        self.allow(allow).error(405, "METHOD_NOT_ALLOWED", ids)
    }

    /// 404.
    pub fn not_found(self, ids: &ErrorIds) -> Answered {
        self.error(404, "NOT_FOUND", ids)
    }

    /// 415.
    pub fn unsupported_media_type(self, ids: &ErrorIds) -> Answered {
        self.error(415, "UNSUPPORTED_MEDIA_TYPE", ids)
    }

    /// Answers with any text.
    pub fn text(self, status: u16, content_type: &str, body: &[u8]) -> Answered {
        self.finish(status, content_type, |buf| buf.put_slice(body))
    }

    fn finish(self, status: u16, content_type: &str, write: impl FnOnce(&mut BytesMut)) -> Answered {
        let out = self.out;
        let close = self.close || self.stopping.is_some_and(Cell::get);
        put_status_line(out, status);
        out.put_slice(b"Date: ");
        out.put_slice(&self.date.text());
        out.put_slice(b"\r\nContent-Type: ");
        out.put_slice(content_type.as_bytes());
        out.put_slice(b"\r\n");
        if close {
            out.put_slice(b"Connection: close\r\n");
        } else if self.old {
            out.put_slice(b"Connection: keep-alive\r\n");
        }
        if let Some(seconds) = self.retry_after {
            out.put_slice(b"Retry-After: ");
            put_decimal(out, u64::from(seconds));
            out.put_slice(b"\r\n");
        }
        if self.no_store {
            out.put_slice(b"Cache-Control: no-store\r\n");
        }
        if let Some(methods) = self.allow {
            out.put_slice(b"Allow: ");
            out.put_slice(methods.as_bytes());
            out.put_slice(b"\r\n");
        }
        put_body(out, self.body_wanted, write);
        Answered { status, route: self.route, close }
    }
}

/// Ends the head with `Content-Length` and writes the body. The length is known only afterwards: three digits are
/// left free for it, and a body that needs fewer or more is moved.
fn put_body(out: &mut BytesMut, wanted: bool, write: impl FnOnce(&mut BytesMut)) {
    const GUESS: usize = 3;
    const END: &[u8] = b"\r\n\r\n";
    out.put_slice(b"Content-Length: ");
    let at = out.len();
    out.put_slice(b"000");
    out.put_slice(END);
    let from = out.len();
    write(out);
    // A writer can only append; one that cut the buffer shorter has made an empty body.
    out.resize(out.len().max(from), b' ');
    let length = out.len() - from;
    let digits = length.checked_ilog10().unwrap_or(0) as usize + 1;
    let tail = at + digits + END.len();
    out.resize(out.len().max(tail + length), 0);
    out.copy_within(from..from + length, tail);
    out.truncate(tail + length);
    let mut rest = length;
    for slot in out[at..at + digits].iter_mut().rev() {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if digits != GUESS {
        out[at + digits..tail].copy_from_slice(END);
    }
    if !wanted {
        out.truncate(tail);
    }
}

fn put_status_line(out: &mut BytesMut, status: u16) {
    let reason: &[u8] = match status {
        200 => b"OK",
        202 => b"Accepted",
        400 => b"Bad Request",
        401 => b"Unauthorized",
        403 => b"Forbidden",
        404 => b"Not Found",
        405 => b"Method Not Allowed",
        408 => b"Request Timeout",
        409 => b"Conflict",
        413 => b"Content Too Large",
        414 => b"URI Too Long",
        415 => b"Unsupported Media Type",
        417 => b"Expectation Failed",
        422 => b"Unprocessable Content",
        429 => b"Too Many Requests",
        431 => b"Request Header Fields Too Large",
        500 => b"Internal Server Error",
        501 => b"Not Implemented",
        503 => b"Service Unavailable",
        504 => b"Gateway Timeout",
        505 => b"HTTP Version Not Supported",
        _ => b"",
    };
    out.put_slice(b"HTTP/1.1 ");
    put_decimal(out, u64::from(status));
    out.put_u8(b' ');
    out.put_slice(reason);
    out.put_slice(b"\r\n");
}

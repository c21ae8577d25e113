//! A request as handlers see it: slices of the connection's buffer.

use super::head::Head;
use super::lexis;

/// A request method. Methods are case-sensitive; unknown ones are all [`Method::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each variant is the method of that name")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
    /// Any other token.
    Other,
}

impl Method {
    pub(super) fn of(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"PATCH" => Self::Patch,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            _ => Self::Other,
        }
    }
}

/// The value of a field that may stand only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header<'a> {
    /// The field is not there.
    Missing,
    /// Its value, without surrounding white space; may be empty.
    One(&'a [u8]),
    /// It stands there more than once; which one is meant cannot be told.
    Repeated,
}

impl<'a> Header<'a> {
    /// The value if there is exactly one.
    pub fn one(self) -> Option<&'a [u8]> {
        match self {
            Self::One(value) => Some(value),
            Self::Missing | Self::Repeated => None,
        }
    }
}

/// A range of the request's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Heads are bounded far below 4 GiB: [`super::HttpConfig`] is checked for it.
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) fn bounds(self) -> (usize, usize) {
        (self.start as usize, self.end as usize)
    }

    pub(super) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }
}

/// Where the value of a field stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Slot {
    #[default]
    Missing,
    One(Span),
    Repeated,
}

impl Slot {
    pub(super) fn fill(&mut self, span: Span) {
        *self = if *self == Self::Missing { Self::One(span) } else { Self::Repeated };
    }
}

/// The fields whose values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Host,
    ContentType,
    Authorization,
    IdempotencyKey,
    Traceparent,
    Tracestate,
    User,
}

/// How many [`Known`] fields there are.
pub(super) const KNOWN: usize = Known::User as usize + 1;

/// A complete request. Everything is borrowed from the connection's buffer.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    bytes: &'a [u8],
    head: &'a Head,
    body: &'a [u8],
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Request<'a> {
    pub(super) fn new(bytes: &'a [u8], head: &'a Head, body: &'a [u8]) -> Self {
        // The parser has checked both: the path is UTF-8, the query ASCII.
        let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).unwrap_or_default();
        let path = match text(head.path.of(bytes)) {
            "" => "/",
            path => path,
        };
        Self { bytes, head, body, path, query: head.query.map(|span| text(span.of(bytes))) }
    }

    fn header(&self, known: Known) -> Header<'a> {
        match self.head.slot(known) {
            Slot::Missing => Header::Missing,
            Slot::One(span) => Header::One(span.of(self.bytes)),
            Slot::Repeated => Header::Repeated,
        }
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The path of the target, percent-decoded save `%2F` and `%25`, without the query; starts with `/`, or is `*`
    /// for `OPTIONS *`. Dot segments are left alone.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// What follows the `?` of the target, as sent.
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// The whole body, free of chunk framing.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// `Content-Type`.
    pub fn content_type(&self) -> Header<'a> {
        self.header(Known::ContentType)
    }

    /// Whether the body is said to be JSON in UTF-8.
    pub fn is_json(&self) -> bool {
        self.content_type().one().is_some_and(lexis::is_json)
    }

    /// `Authorization`.
    pub fn authorization(&self) -> Header<'a> {
        self.header(Known::Authorization)
    }

    /// `Idempotency-Key`.
    pub fn idempotency_key(&self) -> Header<'a> {
        self.header(Known::IdempotencyKey)
    }

    /// `traceparent` (W3C Trace Context).
    pub fn traceparent(&self) -> Header<'a> {
        self.header(Known::Traceparent)
    }

    /// `tracestate` (W3C Trace Context).
    pub fn tracestate(&self) -> Header<'a> {
        self.header(Known::Tracestate)
    }

    /// The field a trusted gateway names the user in; missing when none is configured.
    pub fn user(&self) -> Header<'a> {
        self.header(Known::User)
    }

    /// The minor version: 0 for HTTP/1.0.
    pub fn minor_version(&self) -> u8 {
        self.head.minor
    }

    /// Whether the client wants to use the connection again.
    pub fn keep_alive(&self) -> bool {
        self.head.keep_alive()
    }
}

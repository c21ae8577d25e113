//! Why the parser refuses a request.

/// A request that is refused before any handler sees it. The connection closes after the answer, because where the
/// next request would begin is not known for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Not HTTP/1.x as RFC 9112 has it, or a shape used for request smuggling; says what was wrong.
    #[error("malformed request: {0}")]
    Syntax(&'static str),
    /// The request target is longer than the limit.
    #[error("request target too long")]
    TargetTooLong,
    /// The head, its number of fields, or the trailer section is over the limit.
    #[error("request head too large")]
    HeadTooLarge,
    /// The body is over the limit, by its announced or its real size.
    #[error("request body too large")]
    BodyTooLarge,
    /// A transfer coding other than chunked.
    #[error("unknown transfer coding")]
    UnknownCoding,
    /// Not HTTP/1.x.
    #[error("unsupported protocol version")]
    UnknownVersion,
    /// An expectation other than 100-continue.
    #[error("unknown expectation")]
    UnknownExpectation,
}

impl Reject {
    /// HTTP status and `code`.
    pub const fn status_and_code(self) -> (u16, &'static str) {
        match self {
            Self::Syntax(_) => (400, "INVALID_ARGUMENT"),
            Self::TargetTooLong => (414, "URI_TOO_LONG"),
            Self::HeadTooLarge => (431, "HEADERS_TOO_LARGE"),
            Self::BodyTooLarge => (413, "PAYLOAD_TOO_LARGE"),
            Self::UnknownCoding => (501, "NOT_IMPLEMENTED"),
            Self::UnknownVersion => (505, "HTTP_VERSION_NOT_SUPPORTED"),
            Self::UnknownExpectation => (417, "EXPECTATION_FAILED"),
        }
    }
}

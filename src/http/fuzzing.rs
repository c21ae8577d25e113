//! Entry points for fuzzing and for tests that cut streams up.

use std::rc::Rc;

use bytes::BytesMut;

use super::config::HttpConfig;
use super::parser::{Parser, Step};
use super::reject::Reject;
use super::request::{Header, Method};

/// A request taken out of its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The method.
    pub method: Method,
    /// The decoded path.
    pub path: String,
    /// The query.
    pub query: Option<String>,
    /// The body without framing.
    pub body: Vec<u8>,
    /// Content-Type, Authorization, Idempotency-Key, traceparent, tracestate and the user; `Err` if repeated.
    pub fields: [Result<Option<Vec<u8>>, ()>; 6],
    /// Whether the connection may go on.
    pub keep_alive: bool,
}

/// All requests of a stream, why it was refused if it was, and how many bytes the buffer grew to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The complete requests, in order.
    pub requests: Vec<Taken>,
    /// The refusal that ended the stream.
    pub reject: Option<Reject>,
    /// Whether a request had begun when the stream ended.
    pub partial: bool,
}

/// Reads `stream` in pieces that end at `cuts` (ascending) and at its end, as a connection does: requests are taken
/// from the front, chunk framing is cut out, and nothing is read after a request that closes the connection.
pub fn parse_in_pieces(stream: &[u8], cuts: &[usize], config: &HttpConfig) -> Outcome {
    let limits = Rc::new(config.limits());
    // A request fits into this, whatever its framing.
    let room = limits.head_bytes_max + limits.body_bytes_max;
    let mut parser = Parser::new(limits);
    let (mut buffer, mut at) = (BytesMut::new(), 0);
    let mut outcome = Outcome { requests: Vec::new(), reject: None, partial: false };
    for end in cuts.iter().copied().chain([stream.len()]) {
        buffer.extend_from_slice(&stream[at..end]);
        at = end;
        loop {
            match parser.advance(&mut buffer) {
                Ok(Step::Complete) => {
                    outcome.requests.push(take(&parser, &buffer));
                    let keep_alive = parser.keep_alive();
                    let rest = buffer.split_off(parser.consumed());
                    buffer = rest;
                    parser.reset();
                    if !keep_alive {
                        return outcome;
                    }
                }
                Ok(Step::SendContinue) => {}
                Ok(Step::NeedMore) => break,
                Err(reject) => {
                    outcome.reject = Some(reject);
                    return outcome;
                }
            }
        }
        parser.compact(&mut buffer, 0);
        assert!(buffer.len() <= room, "{} bytes kept for one request", buffer.len());
    }
    outcome.partial = parser.part() != super::parser::Part::Nothing;
    outcome
}

fn take(parser: &Parser, bytes: &[u8]) -> Taken {
    let request = parser.request(bytes);
    let headers = [
        request.content_type(),
        request.authorization(),
        request.idempotency_key(),
        request.traceparent(),
        request.tracestate(),
        request.user(),
    ];
    Taken {
        method: request.method(),
        path: request.path().to_owned(),
        query: request.query().map(str::to_owned),
        body: request.body().to_vec(),
        fields: headers.map(|header| match header {
            Header::Missing => Ok(None),
            Header::One(value) => Ok(Some(value.to_vec())),
            Header::Repeated => Err(()),
        }),
        keep_alive: parser.keep_alive(),
    }
}

/// Reads arbitrary bytes whole, byte by byte, and cut in two at a place the bytes choose; all must agree.
///
/// # Panics
/// When they do not, or when a bound is broken.
pub fn fuzz_http(data: &[u8]) {
    let config = HttpConfig {
        head_bytes_max: 512,
        fields_max: 8,
        body_bytes_max: 64,
        user_field: Some("x-user-id".to_owned()),
        ..HttpConfig::default()
    };
    let whole = parse_in_pieces(data, &[], &config);
    let every: Vec<usize> = (0..data.len()).collect();
    assert_eq!(parse_in_pieces(data, &every, &config), whole);
    let middle = data.first().map_or(0, |&byte| usize::from(byte) % (data.len() + 1));
    assert_eq!(parse_in_pieces(data, &[middle], &config), whole);
    for request in &whole.requests {
        assert!(request.body.len() <= config.body_bytes_max);
        assert!(request.path.starts_with('/') || request.path == "*");
        assert!(!request.path.bytes().any(|byte| byte < b' ' || byte == 0x7f));
        for value in request.fields.iter().flatten().flatten() {
            assert!(!value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')));
        }
    }
}

//! The parser and the answer writer, without sockets.

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::fuzzing::{Outcome, fuzz_http, parse_in_pieces};
use super::parser::{Parser, Step};
use super::*;

fn config() -> HttpConfig {
    HttpConfig { user_field: Some("x-user-id".to_owned()), ..HttpConfig::default() }
}

fn parse(stream: &[u8]) -> Outcome {
    let whole = parse_in_pieces(stream, &[], &config());
    let every: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(parse_in_pieces(stream, &every, &config()), whole, "byte by byte");
    whole
}

fn status(stream: &[u8]) -> Option<u16> {
    parse(stream).reject.map(|reject| reject.status_and_code().0)
}

fn post(fields: &str, rest: &str) -> Vec<u8> {
    format!("POST /x HTTP/1.1\r\nHost: h\r\n{fields}\r\n{rest}").into_bytes()
}

#[test]
fn a_request_is_taken_apart() {
    let outcome = parse(
        b"\r\nPOST http://shop.example/a%20b?x=1 HTTP/1.1\r\nHOST:shop.example\r\nContent-Type: \t application/json \r\n\
          authorization: Bearer a.b.c\r\nIDEMPOTENCY-KEY: k\r\ntraceparent: t\r\ntracestate: a\r\ntracestate: b\r\n\
          X-User-Id: 7\r\nX-Empty:\r\nContent-Length: 2\r\n\r\n{}",
    );
    assert_eq!((outcome.reject, outcome.partial, outcome.requests.len()), (None, false, 1));
    let request = &outcome.requests[0];
    assert_eq!((request.method, request.path.as_str(), request.query.as_deref()), (Method::Post, "/a b", Some("x=1")));
    assert_eq!(request.body, b"{}");
    let one = |text: &str| Ok(Some(text.as_bytes().to_vec()));
    let expected = [one("application/json"), one("Bearer a.b.c"), one("k"), one("t"), Err(()), one("7")];
    assert_eq!(request.fields, expected);
}

#[test]
fn the_gateway_field_is_not_read_unless_configured() {
    let stream = post("X-User-Id: 7\r\n", "");
    assert_eq!(parse(&stream).requests[0].fields[5], Ok(Some(b"7".to_vec())));
    let outcome = parse_in_pieces(&stream, &[], &HttpConfig::default());
    assert_eq!(outcome.requests[0].fields[5], Ok(None));
}

#[test]
fn persistence_follows_version_and_options() {
    for (version, fields, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: Close\r\n", false),
        ("1.1", "Connection: keep-alive, close\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.2", "", true),
    ] {
        let stream = format!("GET / HTTP/{version}\r\nHost: h\r\n{fields}\r\n");
        let outcome = parse(stream.as_bytes());
        assert_eq!(outcome.requests[0].keep_alive, keep_alive, "{stream}");
    }
}

#[test]
fn malformed_heads_are_refused() {
    for bad in [
        &b"GET / HTTP/1.1\nHost: h\n\n"[..],
        b"GET / HTTP/1.1\r\nHost: h\r\n\n",
        b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\n: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x7fb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h, h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nhost: h\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: h\r\nhost: h\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
        b"GET /\r\nHost: h\r\n\r\n",
        b"GET / http/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/11\r\nHost: h\r\n\r\n",
        b"GET /\x80 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /# HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1\r\nHost: h\r\n\r\n",
    ] {
        let outcome = parse(bad);
        let text = String::from_utf8_lossy(bad);
        assert!(outcome.requests.is_empty(), "{text:?}");
        assert!(matches!(outcome.reject, Some(Reject::Syntax(_))), "{text:?}: {:?}", outcome.reject);
    }
}

#[test]
fn smuggling_shapes_are_refused() {
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (fields, rest, wanted) in [
        ("Content-Length: 3\r\nContent-Length: 3\r\n", "abc", 400),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", "abc", 400),
        ("Content-Length: 3, 3\r\n", "abc", 400),
        ("Content-Length: +3\r\n", "abc", 400),
        ("Content-Length: \r\n", "abc", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", 400),
        ("Transfer-Encoding: chunked, identity\r\n", "", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", "", 501),
        ("Transfer-Encoding: \x0bchunked\r\n", "", 400),
        (chunked, "\r\n", 400),
        (chunked, "3 \r\nabc\r\n", 400),
        (chunked, " 3\r\nabc\r\n", 400),
        (chunked, "0x3\r\nabc\r\n", 400),
        (chunked, "-1\r\n", 400),
        (chunked, "3\nabc\r\n", 400),
        (chunked, "3;\r\nabc\r\n", 400),
        (chunked, "3;a\nabc\r\n", 400),
        (chunked, "3;a\r\r\nabc\r\n", 400),
        (chunked, "3\r\nabcd\r\n", 400),
        (chunked, "3\r\nabc\n0\r\n\r\n", 400),
        (chunked, "0\r\n X: y\r\n\r\n", 400),
        (chunked, "0\r\nX : y\r\n\r\n", 400),
        (chunked, "0\r\nX: y\n\r\n", 400),
        (chunked, "00000000000000003\r\n", 400),
        (chunked, "FFFFFFFFFFFFFFFF\r\n", 413),
    ] {
        let stream = post(fields, rest);
        assert_eq!(status(&stream), Some(wanted), "{:?}", String::from_utf8_lossy(&stream));
    }
    assert_eq!(status(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), Some(400));
}

#[test]
fn every_limit_has_its_status() {
    let field = |length: usize| format!("X: {}\r\n", "a".repeat(length));
    assert_eq!(status(&post(&field(8192), "")), Some(431));
    // What arrived within the limit is not refused before the limit is passed.
    assert_eq!(status(&post("", "")[..20]), None);
    assert_eq!(status(&post(&"X: y\r\n".repeat(64), "")), Some(431));
    assert_eq!(status(&post(&"X: y\r\n".repeat(63), "")), None);
    assert_eq!(status(format!("GET /{} HTTP/1.1\r\n", "a".repeat(2048)).as_bytes()), Some(414));
    assert_eq!(status(format!("GET /{} HTTP/1.1\r\n", "a".repeat(2047)).as_bytes()), None);
    assert_eq!(status(b"GET / HTTP/2.0\r\n"), Some(505));
    assert_eq!(status(&post("Expect: 200-ok\r\n", "")), Some(417));
    assert_eq!(status(&post("Content-Length: 4097\r\n", "")), Some(413));
    assert_eq!(status(&post("Content-Length: 18446744073709551619\r\n", "abc")), Some(413));
    assert_eq!(status(&post("Content-Length: 4096\r\n", "")), None);
    let chunks = |count: usize| "1\r\na\r\n".repeat(count);
    assert_eq!(status(&post("Transfer-Encoding: chunked\r\n", &chunks(4097))), Some(413));
    let outcome = parse(&post("Transfer-Encoding: chunked\r\n", &format!("{}0\r\n\r\n", chunks(4096))));
    assert_eq!(outcome.requests[0].body.len(), 4096);
    let extension = format!("1;{}\r\na\r\n", "e".repeat(600));
    assert_eq!(status(&post("Transfer-Encoding: chunked\r\n", &extension.repeat(2))), Some(400));
    assert_eq!(status(&post("Transfer-Encoding: chunked\r\n", &format!("0\r\n{}", field(2048)))), Some(431));
}

#[test]
fn a_waiting_client_is_told_once_to_go_on() {
    let limits = std::rc::Rc::new(config().limits());
    let head = post("Expect: 100-Continue\r\nContent-Length: 2\r\n", "");
    let mut parser = Parser::new(std::rc::Rc::clone(&limits));
    let mut bytes = head.clone();
    assert_eq!(parser.advance(&mut bytes), Ok(Step::SendContinue));
    assert_eq!(parser.advance(&mut bytes), Ok(Step::NeedMore));
    bytes.extend_from_slice(b"{}");
    assert_eq!(parser.advance(&mut bytes), Ok(Step::Complete));
    // A client that has begun to send does not wait.
    let mut parser = Parser::new(limits);
    let mut bytes = [&head[..], b"{"].concat();
    assert_eq!(parser.advance(&mut bytes), Ok(Step::NeedMore));
}

fn answer(request: &str, write: impl FnOnce(Responder<'_>) -> Answered) -> (String, Answered) {
    let mut parser = Parser::new(std::rc::Rc::new(config().limits()));
    let mut bytes = request.as_bytes().to_vec();
    assert_eq!(parser.advance(&mut bytes), Ok(Step::Complete));
    let (mut out, date) = (BytesMut::new(), DateCache::default());
    let answered = write(Responder::new(&mut out, &date, &parser.request(&bytes), false));
    (String::from_utf8(out.to_vec()).unwrap(), answered)
}

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn an_answer_has_the_right_length_whatever_its_size() {
    for length in [0, 1, 9, 10, 99, 100, 999, 1000, 12_345] {
        let body = "b".repeat(length);
        let (text, _) = answer(GET, |responder| responder.json_with(200, |buf| buf.put_slice(body.as_bytes())));
        let head = "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Type: application/json\r\n";
        assert_eq!(text, format!("{head}Content-Length: {length}\r\n\r\n{body}"));
    }
}

#[test]
fn an_answer_says_whether_the_connection_goes_on() {
    let old = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let (text, answered) = answer(old, |responder| responder.json(200, b"{}"));
    assert!(text.contains("\r\nConnection: keep-alive\r\n") && !answered.close);
    let (text, answered) = answer("GET / HTTP/1.0\r\n\r\n", |responder| responder.json(200, b"{}"));
    assert!(text.contains("\r\nConnection: close\r\n") && answered.close);
    let (text, answered) = answer(GET, |responder| responder.close().json(200, b"{}"));
    assert!(text.contains("\r\nConnection: close\r\n") && answered.close);
    let (text, answered) = answer(GET, |responder| responder.json(200, b"{}"));
    assert!(!text.contains("Connection") && !answered.close);
}

#[test]
fn an_error_names_code_and_ids_only() {
    let ids = ErrorIds { request_id: Some([0x11; 16]), trace_id: [0xab; 16] };
    let (text, answered) =
        answer(GET, |responder| responder.route(3).retry_after(1).no_store().error(429, "A\"b", &ids));
    assert!(text.starts_with("HTTP/1.1 429 Too Many Requests\r\n"));
    assert!(text.contains("\r\nRetry-After: 1\r\nCache-Control: no-store\r\n"));
    let body = "{\"code\":\"A__\",\"request_id\":\"11111111-1111-1111-1111-111111111111\",\
                \"trace_id\":\"abababababababababababababababab\"}";
    assert_eq!(text.split_once("\r\n\r\n").map(|(_, body)| body), Some(body));
    assert_eq!((answered.status(), answered.route()), (429, 3));
    let (text, answered) = answer(GET, |responder| responder.method_not_allowed("POST", &ErrorIds::default()));
    assert!(text.contains("\r\nAllow: POST\r\n") && text.contains("\"request_id\":null"));
    assert_eq!((answered.status(), answered.route()), (405, ROUTE_NONE));
}

#[test]
fn an_answer_to_head_has_no_body_but_its_length() {
    let (text, _) = answer("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", |responder| responder.json(200, b"{\"a\":1}"));
    assert!(text.ends_with("\r\nContent-Length: 7\r\n\r\n"), "{text}");
}

/// Any legal way to send a request, as bytes, and its body.
fn request() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = proptest::collection::vec(any::<u8>(), 0..200);
    let chunk_sizes = proptest::collection::vec(1usize..60, 1..5);
    (body, proptest::option::of(chunk_sizes), 0..4usize, any::<bool>()).prop_map(|(body, sizes, shape, lower)| {
        let target = ["/v1/seckill/orders", "http://shop.example/a?b", "/%41%2f", "*"][shape];
        let method = if shape == 3 { "OPTIONS" } else { "POST" };
        let mut fields = String::from("Host: shop.example:8080\r\nX-User-Id: 7 \r\nIdempotency-Key:\tk\r\n");
        let mut coded = Vec::new();
        match sizes {
            None => {
                fields.push_str(&format!("Content-Length: {}\r\n", body.len()));
                coded.extend_from_slice(&body);
            }
            Some(sizes) => {
                fields.push_str("Transfer-Encoding: chunked\r\n");
                let (mut rest, mut at) = (&body[..], 0);
                while !rest.is_empty() {
                    let (chunk, left) = rest.split_at(sizes[at % sizes.len()].min(rest.len()));
                    coded.extend_from_slice(format!("{:x};e=\"1\"\r\n", chunk.len()).as_bytes());
                    coded.extend_from_slice(chunk);
                    coded.extend_from_slice(b"\r\n");
                    (rest, at) = (left, at + 1);
                }
                coded.extend_from_slice(b"000\r\nX-Sum: 1\r\n\r\n");
            }
        }
        let fields = if lower { fields.to_lowercase() } else { fields };
        let mut bytes = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n").into_bytes();
        bytes.extend_from_slice(&coded);
        (bytes, body)
    })
}

proptest! {
    #[test]
    fn any_cut_of_a_pipelined_stream_gives_the_same_requests(
        requests in proptest::collection::vec(request(), 1..5),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream: Vec<u8> = requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = parse_in_pieces(&stream, &[], &config());
        prop_assert_eq!(whole.reject, None);
        prop_assert!(!whole.partial);
        let bodies: Vec<&[u8]> = whole.requests.iter().map(|taken| &taken.body[..]).collect();
        let sent: Vec<&[u8]> = requests.iter().map(|(_, body)| &body[..]).collect();
        prop_assert_eq!(bodies, sent);
        prop_assert_eq!(parse_in_pieces(&stream, &cuts, &config()), whole);
    }

    #[test]
    fn arbitrary_bytes_are_read_alike_however_cut(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz_http(&bytes);
    }

    #[test]
    fn nearly_good_bytes_are_read_alike_however_cut(
        (mut bytes, _) in request(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzz_http(&bytes);
    }
}

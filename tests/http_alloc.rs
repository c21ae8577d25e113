//! The steady path of a request does not allocate.

mod http_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use http_support::Server;
use seckill::http::parser::{Parser, Step};
use seckill::http::{
    Answered, ClientGone, DateCache, ErrorIds, Handler, HttpConfig, Request, Responder, put_decimal, put_uuid,
};
use shards::DriverChoice;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn count() {
    // The counter is gone while its thread ends; what is allocated then is not of interest.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed to the system allocator unchanged; counting touches no allocator state.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; `at` came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BODY: &str = "{\"activity_id\":1001,\"sku_id\":2001}";

fn order(framing: &str, body: &str) -> Vec<u8> {
    let head = "POST /v1/seckill/orders?a=%41 HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\n\
                Authorization: Bearer aaaa.bbbb.cccc\r\nIdempotency-Key: 0190f3a2-1111-7222-9333-0123456789ab\r\n\
                traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nUser-Agent: a\r\n";
    format!("{head}{framing}\r\n{body}").into_bytes()
}

fn orders() -> [Vec<u8>; 2] {
    let chunked = format!("22\r\n{BODY}\r\n0\r\n\r\n");
    [order("Content-Length: 34\r\n", BODY), order("Transfer-Encoding: chunked\r\n", &chunked)]
}

fn accept(request: &Request<'_>, responder: Responder<'_>) -> Answered {
    if request.path() == "/error" {
        return responder.retry_after(1).error(429, "OVERLOADED", &ErrorIds::default());
    }
    responder.route(1).json_with(202, |buf| {
        buf.put_slice(b"{\"request_id\":\"");
        put_uuid(buf, &[7; 16]);
        buf.put_slice(b"\",\"order_id\":");
        put_decimal(buf, 1 << 52);
        buf.put_slice(b",\"state\":\"QUEUED\"}");
    })
}

#[test]
fn parser_and_responder_do_not_allocate() {
    let mut parser = Parser::new(Rc::new(HttpConfig::default().limits()));
    let date = DateCache::default();
    let error = b"GET /error HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
    let mut requests = orders().to_vec();
    requests.push(error);
    let (mut input, mut out) = (BytesMut::with_capacity(4096), BytesMut::with_capacity(4096));
    let before = allocations();
    for round in 0..1000u64 {
        date.refresh(round);
        for request in &requests {
            input.clear();
            out.clear();
            let mut step = Ok(Step::NeedMore);
            for part in request.chunks(100) {
                assert_eq!(step, Ok(Step::NeedMore));
                input.extend_from_slice(part);
                step = parser.advance(&mut input);
            }
            assert_eq!(step, Ok(Step::Complete));
            let answered =
                accept(&parser.request(&input), Responder::new(&mut out, &date, &parser.request(&input), false));
            assert!(matches!(answered.status(), 202 | 429));
            parser.reset();
        }
    }
    assert_eq!(allocations() - before, 0);
}

/// Answers at once or after one turn of the shard; tells how many allocations its thread has made so far.
struct Count;

impl Handler for Count {
    async fn handle(&self, request: &Request<'_>, _: &ClientGone, responder: Responder<'_>) -> Answered {
        if request.query().is_some() {
            let mut waited = false;
            poll_fn(|context| {
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        responder.json_with(202, |buf| put_decimal(buf, allocations()))
    }
}

/// A connection that found bytes waiting 64 times in a row gives way once, which costs the runtime at most one
/// allocation. No request allocates by itself: that would make 500 of them.
const YIELDS_MAX: u64 = 500 / 64;

/// Allocations of the server's thread between request 200 and request 700 of one connection. The first of those
/// requests lets pools, rings and the connection's own buffers reach their size.
fn steady_allocations(driver: DriverChoice, request: &[u8], depth: usize) -> u64 {
    // One tick of the clock task may fall into the measured stretch; it does not allocate either.
    let server = Server::start_quiet(driver, HttpConfig::default(), || Count);
    let mut client = server.client();
    let batch = request.repeat(depth);
    let mut counts = Vec::new();
    while counts.len() < 701 {
        client.send(&batch);
        for _ in 0..depth {
            let answer = client.answer(Duration::from_secs(5)).unwrap();
            counts.push(answer.body.parse::<u64>().unwrap());
        }
    }
    drop(client);
    server.stop();
    counts[700] - counts[200]
}

#[test]
fn a_connection_in_use_does_not_allocate() {
    let at_once = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let later = b"GET /?later HTTP/1.1\r\nHost: h\r\n\r\n";
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        for (request, depth) in [(&at_once[..], 1), (later, 1), (at_once, 16), (later, 16)] {
            let text = String::from_utf8_lossy(request);
            let made = steady_allocations(driver, request, depth);
            assert!(made <= YIELDS_MAX, "{driver:?}, depth {depth}, {text}: {made} allocations");
        }
    }
}

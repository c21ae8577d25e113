//! How connections behave: order, limits, slow and leaving clients, panics, stopping.

mod http_support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use http_support::{Client, Server};
use seckill::http::{Answered, ClientGone, ErrorIds, Handler, HttpConfig, Request, Responder, Timeouts, put_decimal};
use shards::DriverChoice;
use shards::sync::Notify;

const PATIENCE: Duration = Duration::from_secs(5);

/// Does what the path says.
#[derive(Default)]
struct Script {
    calls: Cell<u64>,
    /// Wakes `/wait`.
    go: Rc<Notify>,
}

impl Handler for Script {
    async fn handle(&self, request: &Request<'_>, client: &ClientGone, responder: Responder<'_>) -> Answered {
        self.calls.set(self.calls.get() + 1);
        let responder = responder.route(7);
        match request.path() {
            "/panic" => panic!("expected by this test"),
            "/late-panic" => {
                shards::sleep(Duration::from_millis(5)).await;
                panic!("expected by this test")
            }
            "/slow" => shards::sleep(Duration::from_millis(50)).await,
            "/wait" => self.go.notified().await,
            "/go" => self.go.notify_one(),
            "/gone" => {
                client.closed().await;
                return responder.error(504, "GONE", &ErrorIds::default());
            }
            "/big" => return responder.text(200, "text/plain", &vec![b'x'; 1 << 22]),
            _ => {}
        }
        responder.json_with(200, |buf| put_decimal(buf, self.calls.get()))
    }
}

fn on_each_driver(config: &HttpConfig, test: impl Fn(&Server)) {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let server = Server::start(driver, config.clone(), Script::default);
        test(&server);
        server.stop();
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

fn status(client: &mut Client) -> Option<u16> {
    client.answer(PATIENCE).map(|answer| answer.status)
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_each_driver(&HttpConfig::default(), |server| {
        let mut client = server.client();
        let stream: Vec<u8> = (0..500).flat_map(|at| get(if at % 100 == 50 { "/slow" } else { "/" })).collect();
        client.send(&stream);
        for call in 1..=500 {
            assert_eq!(client.answer(PATIENCE).map(|answer| answer.body), Some(call.to_string()));
        }
    });
}

#[test]
fn an_answer_is_not_held_back_by_the_next_request() {
    on_each_driver(&HttpConfig::default(), |server| {
        let mut client = server.client();
        client.send(&[get("/"), get("/wait")].concat());
        assert_eq!(status(&mut client), Some(200));
        let mut other = server.client();
        other.send(&get("/go"));
        assert_eq!(status(&mut other), Some(200));
        assert_eq!(status(&mut client), Some(200));
    });
}

#[test]
fn requests_sent_while_a_handler_works_are_kept() {
    on_each_driver(&HttpConfig { buffer_bytes: 512, ..HttpConfig::default() }, |server| {
        let mut client = server.client();
        client.send(&get("/wait"));
        let stream: Vec<u8> = (0..400).flat_map(|_| get("/")).collect();
        client.send(&stream);
        let mut other = server.client();
        other.send(&get("/go"));
        assert_eq!(status(&mut other), Some(200));
        for _ in 0..401 {
            assert_eq!(status(&mut client), Some(200));
        }
    });
}

#[test]
fn a_panic_costs_one_connection() {
    on_each_driver(&HttpConfig::default(), |server| {
        for path in ["/panic", "/late-panic"] {
            let mut client = server.client();
            client.send(&[get("/"), get(path), get("/")].concat());
            assert_eq!(status(&mut client), Some(200));
            let answer = client.answer(PATIENCE).unwrap();
            assert_eq!((answer.status, answer.code().as_deref()), (500, Some("INTERNAL_ERROR")));
            assert_eq!(answer.field("Connection"), Some("close"));
            assert!(client.closed_within(PATIENCE));
        }
        assert_eq!(server.log.count("panicked"), 2);
        let mut client = server.client();
        client.send(&get("/"));
        assert_eq!(status(&mut client), Some(200));
    });
}

#[test]
fn a_handler_learns_that_its_client_left() {
    on_each_driver(&HttpConfig::default(), |server| {
        let mut client = server.client();
        client.send(&get("/gone"));
        drop(client);
        server.log.wait_for("answered 7 504");
        server.log.wait_for("closed");
    });
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    on_each_driver(&HttpConfig::default(), |server| {
        let mut client = server.client();
        client.send(&[get("/slow"), get("/")].concat());
        client.end_sending();
        assert_eq!((status(&mut client), status(&mut client)), (Some(200), Some(200)));
        assert!(client.closed_within(PATIENCE));
        // The first one is noticed while its handler waits, and still answered.
        let mut client = server.client();
        client.send(&get("/gone"));
        client.end_sending();
        assert_eq!(status(&mut client), Some(504));
        assert!(client.closed_within(PATIENCE));
    });
}

#[test]
fn connections_over_the_cap_are_told_so() {
    on_each_driver(&HttpConfig { connections_max: 2, ..HttpConfig::default() }, |server| {
        let mut kept = [server.client(), server.client()];
        for client in &mut kept {
            client.send(&get("/"));
            assert_eq!(status(client), Some(200));
        }
        let mut third = server.client();
        third.send(&get("/"));
        let answer = third.answer(PATIENCE).unwrap();
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        assert!(third.closed_within(PATIENCE));
        assert_eq!(server.log.count("turned away"), 1);
        drop(kept);
        server.log.wait_for("closed");
        let mut next = server.client();
        next.send(&get("/"));
        assert_eq!(status(&mut next), Some(200));
    });
}

#[test]
fn slow_clients_are_cut_off_in_every_phase() {
    let short = Duration::from_millis(60);
    let timeouts = Timeouts { head: short, body: short, idle: short, write: short };
    on_each_driver(&HttpConfig { timeouts, ..HttpConfig::default() }, |server| {
        let mut client = server.client();
        assert!(client.closed_within(PATIENCE), "a connection that never says anything");
        let mut client = server.client();
        client.send(b"GET / HT");
        assert_eq!(status(&mut client), Some(408));
        assert!(client.closed_within(PATIENCE));
        assert_eq!(server.log.count("late Head"), 2);
        let mut client = server.client();
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
        assert_eq!(status(&mut client), Some(408));
        assert!(client.closed_within(PATIENCE));
        assert_eq!(server.log.count("late Body"), 1);
        let mut client = server.client();
        client.send(&get("/"));
        assert_eq!(status(&mut client), Some(200));
        assert!(client.closed_within(PATIENCE));
        assert_eq!(server.log.count("late Idle"), 1);
        let mut client = server.client();
        client.send(&get("/big").repeat(20));
        server.log.wait_for("late Write");
    });
}

#[test]
fn a_trickle_does_not_put_a_deadline_off() {
    let timeouts = Timeouts { head: Duration::from_millis(100), ..Timeouts::default() };
    on_each_driver(&HttpConfig { timeouts, ..HttpConfig::default() }, |server| {
        let mut client = server.client();
        client.send(b"GET / HTTP/1.1\r\nHost: h\r\nX: ");
        while server.log.count("late Head") == 0 {
            client.send(b"a");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(status(&mut client), Some(408));
    });
}

#[test]
fn a_large_answer_arrives_whole() {
    on_each_driver(&HttpConfig::default(), |server| {
        let mut client = server.client();
        client.send(&get("/big"));
        assert_eq!(client.answer(PATIENCE).map(|answer| answer.body.len()), Some(1 << 22));
        client.send(&get("/"));
        assert_eq!(status(&mut client), Some(200));
    });
}

#[test]
fn a_stop_lets_requests_finish_and_closes_idle_connections() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let server = Server::start(driver, HttpConfig::default(), Script::default);
        let (mut idle, mut busy) = (server.client(), server.client());
        idle.send(&get("/"));
        assert_eq!(status(&mut idle), Some(200));
        busy.send(&[get("/"), get("/wait")].concat());
        assert_eq!(status(&mut busy), Some(200));
        let mut half = server.client();
        half.send(b"GET /go HTTP/1.1\r\n");
        server.begin_stop();
        assert!(idle.closed_within(PATIENCE));
        // The one that had begun its head may finish it, and frees the one that waits.
        half.send(b"Host: h\r\n\r\n");
        for client in [&mut half, &mut busy] {
            let answer = client.answer(PATIENCE).unwrap();
            assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
            assert!(client.closed_within(PATIENCE));
        }
        let log = server.log.clone();
        server.stop();
        assert_eq!((log.count("opened"), log.count("closed")), (3, 3));
    }
}

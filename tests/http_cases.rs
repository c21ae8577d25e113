//! The byte-level cases of tests/cases/http over real sockets, on both drivers.

mod http_support;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use http_support::{Answer, Client, Server};
use seckill::domain::Uuid;
use seckill::http::{
    Answered, ClientGone, ErrorIds, Handler, Header, HttpConfig, Method, Request, Responder, Timeouts,
};
use shards::DriverChoice;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Enough of the application to answer the cases: the checks of the order route, and always room for one more.
struct Orders;

impl Handler for Orders {
    async fn handle(&self, request: &Request<'_>, _: &ClientGone, responder: Responder<'_>) -> Answered {
        let ids = ErrorIds { request_id: None, trace_id: [1; 16] };
        if request.path() != "/v1/seckill/orders" {
            return responder.not_found(&ids);
        }
        if request.method() != Method::Post {
            return responder.method_not_allowed("POST", &ids);
        }
        if !request.is_json() {
            return responder.unsupported_media_type(&ids);
        }
        let Header::One(_) = request.user() else { return responder.error(401, "UNAUTHENTICATED", &ids) };
        let Some(key) = request.idempotency_key().one().and_then(Uuid::parse) else {
            return responder.error(400, "INVALID_ARGUMENT", &ids);
        };
        if serde_json::from_slice::<serde_json::Value>(request.body()).is_err() {
            return responder.error(400, "INVALID_JSON", &ids);
        }
        let body = format!("{{\"request_id\":\"{key}\",\"reservation_id\":\"r\",\"state\":\"QUEUED\"}}");
        responder.json(202, body.as_bytes())
    }
}

struct Case {
    id: String,
    bytes: Vec<u8>,
    mode: String,
    statuses: Vec<Vec<String>>,
    codes: Vec<String>,
    conn: String,
}

fn cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases/http");
    let table = std::fs::read_to_string(folder.join("cases.tsv")).unwrap();
    let rows = table.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let list = |cell: &str| cell.split(',').map(str::to_owned).collect::<Vec<_>>();
        let statuses = cells[3].split(',').map(|one| one.split('|').map(str::to_owned).collect()).collect();
        Case {
            id: cells[0].to_owned(),
            bytes: std::fs::read(folder.join(cells[1])).unwrap(),
            mode: cells[2].to_owned(),
            statuses,
            codes: list(cells[4]),
            conn: cells[5].to_owned(),
        }
    });
    rows.collect()
}

/// Cases whose second answer needs the store: here only that it is an answer.
const STATEFUL: [&str; 1] = ["replay-other-body"];

fn config(head: Duration) -> HttpConfig {
    let timeouts = Timeouts { head, ..Timeouts::default() };
    HttpConfig { user_field: Some("x-user-id".to_owned()), timeouts, ..HttpConfig::default() }
}

fn send(client: &mut Client, case: &Case, mode: &str) -> Vec<Answer> {
    let (kind, rest) = mode.split_once(':').unwrap_or((mode, ""));
    let mut got = Vec::new();
    match kind {
        "bytewise" => case.bytes.iter().for_each(|byte| client.send(&[*byte])),
        "split" => {
            let (first, second) = case.bytes.split_at(rest.parse().unwrap());
            client.send(first);
            thread::sleep(Duration::from_millis(50));
            client.send(second);
        }
        "step" => {
            let mut at = 0;
            for size in rest.split(',').map(|size| size.parse::<usize>().unwrap()) {
                client.send(&case.bytes[at..at + size]);
                at += size;
                got.extend(client.answer(Duration::from_secs(3)));
            }
            client.send(&case.bytes[at..]);
        }
        _ => client.send(&case.bytes),
    }
    if kind == "halfclose" {
        client.end_sending();
    }
    got
}

/// Runs a case in a mode and checks everything its row says.
fn check(server: &Server, case: &Case, mode: &str) {
    let what = format!("{} ({mode})", case.id);
    let mut client = server.client();
    let mut got = send(&mut client, case, mode);
    while got.len() < case.statuses.len() {
        match client.answer(PATIENCE) {
            Some(answer) => got.push(answer),
            None => break,
        }
    }
    if got.is_empty() {
        assert!(case.statuses[0].contains(&"none".to_owned()), "{what}: no answer");
    } else {
        assert_eq!(got.len(), case.statuses.len(), "{what}: {got:?}");
    }
    for (at, answer) in got.iter().enumerate() {
        let stateful = at > 0 && STATEFUL.contains(&case.id.as_str());
        assert!(answer.status < 500 || case.statuses[at].contains(&answer.status.to_string()), "{what}: {answer:?}");
        assert!(stateful || case.statuses[at].contains(&answer.status.to_string()), "{what}: {answer:?}");
        let code = case.codes.get(at).map_or("-", String::as_str);
        match code {
            "-" => {}
            "*" => assert!(answer.status < 300 || answer.code().is_some(), "{what}: {answer:?}"),
            code => assert_eq!(answer.code().as_deref(), Some(code), "{what}"),
        }
        assert_eq!(answer.status == 405, answer.field("Allow") == Some("POST"), "{what}: {answer:?}");
    }
    match case.conn.as_str() {
        "close" => assert!(client.closed_within(PATIENCE), "{what}: left open"),
        "open" => assert_eq!(good(&mut client), Some(202), "{what}: not usable afterwards"),
        _ => {}
    }
    assert_eq!(good(&mut server.client()), Some(202), "{what}: the server does not go on");
}

fn good(client: &mut Client) -> Option<u16> {
    let body = "{\"activity_id\":1001,\"sku_id\":2001}";
    let head = "POST /v1/seckill/orders HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\n\
                X-User-Id: 1\r\nIdempotency-Key: 0190f3a2-1111-7222-9333-0123456789ab\r\n";
    client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    client.answer(PATIENCE).map(|answer| answer.status)
}

#[test]
fn every_case_is_answered_as_the_table_says() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let server = Server::start(driver, config(Duration::from_millis(400)), || Orders);
        for case in cases() {
            check(&server, &case, &case.mode);
        }
        server.stop();
    }
}

#[test]
fn every_case_is_answered_alike_byte_by_byte() {
    let server = Server::start(DriverChoice::Auto, config(Duration::from_secs(10)), || Orders);
    let alone = |case: &&Case| ["once", "bytewise"].contains(&case.mode.as_str()) || case.mode.starts_with("split");
    for case in cases().iter().filter(alone) {
        check(&server, case, "bytewise");
    }
    server.stop();
}

#[test]
fn every_case_is_answered_alike_cut_in_two() {
    let server = Server::start(DriverChoice::Auto, config(Duration::from_secs(10)), || Orders);
    let whole = |case: &&Case| ["once", "bytewise"].contains(&case.mode.as_str()) && case.bytes.len() < 1024;
    for case in cases().iter().filter(whole) {
        let mut client = server.client();
        let expected: Vec<u16> = {
            client.send(&case.bytes);
            client.end_sending();
            std::iter::from_fn(|| client.answer(PATIENCE)).map(|answer| answer.status).collect()
        };
        for cut in 1..case.bytes.len() {
            let mut client = server.client();
            client.send(&case.bytes[..cut]);
            // Gives the server's thread the chance to see the first part alone; either way the answers are the same.
            thread::yield_now();
            client.send(&case.bytes[cut..]);
            client.end_sending();
            let got: Vec<u16> = std::iter::from_fn(|| client.answer(PATIENCE)).map(|answer| answer.status).collect();
            assert_eq!(got, expected, "{} cut at {cut}", case.id);
            assert!(client.ended, "{} cut at {cut}: left open after the client's end", case.id);
        }
    }
    server.stop();
}

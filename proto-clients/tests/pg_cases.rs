//! The PostgreSQL cases of `tests/cases/pg`: each whole, byte by byte, and cut in two at every position.

use std::path::PathBuf;

use bytes::BytesMut;
use proptest::prelude::*;
use proto_clients::postgres::exchange::{Exchange, Outcome};
use proto_clients::postgres::message::{self, Authentication, Backend, TransactionStatus};
use proto_clients::postgres::startup::{SCRAM_SHA_256, Startup, StartupStep, choose_mechanism};
use proto_clients::postgres::{ErrorClass, Rows};
use serde_json::{Map, Value, json};

const MESSAGE_BYTES_MAX: usize = 16 << 20;
const ROWS_BYTES_MAX: usize = 1 << 20;

fn cases() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases/pg"))
}

/// The messages in bytes that arrive in pieces; `Err` for bytes that are none.
fn messages(pieces: &[&[u8]]) -> (Vec<Backend>, bool) {
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match message::next(&mut buffer, MESSAGE_BYTES_MAX) {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

fn status_letter(status: TransactionStatus) -> &'static str {
    match status {
        TransactionStatus::Idle => "I",
        TransactionStatus::Open => "T",
        TransactionStatus::Failed => "E",
    }
}

fn class_name(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Retry => "retry",
        ErrorClass::Conflict => "conflict",
        ErrorClass::Integrity => "integrity",
        ErrorClass::Timeout => "timeout",
        ErrorClass::Unavailable => "unavailable",
        ErrorClass::Auth => "auth",
        ErrorClass::Other => "other",
    }
}

/// A value as the cases write it: numbers by type, everything else as text.
fn value(rows: &Rows, row: usize, column: usize) -> Value {
    let Some(bytes) = rows.row(row).raw(column).unwrap() else { return Value::Null };
    let described = &rows.columns()[column];
    match (described.binary, described.oid) {
        (true, 20) => json!(i64::from_be_bytes(bytes.try_into().unwrap())),
        (true, 23) => json!(i32::from_be_bytes(bytes.try_into().unwrap())),
        (false, 20 | 21 | 23) => json!(std::str::from_utf8(bytes).unwrap().parse::<i64>().unwrap()),
        _ => json!(String::from_utf8(bytes.to_vec()).unwrap()),
    }
}

fn table(rows: &Rows) -> Value {
    (0..rows.len())
        .map(|row| (0..rows.columns().len()).map(|column| value(rows, row, column)).collect::<Value>())
        .collect()
}

fn count(messages: &[Backend], wanted: fn(&Backend) -> bool) -> usize {
    messages.iter().filter(|message| wanted(message)).count()
}

/// Several round trips one after the other.
fn outcomes(messages: Vec<Backend>, places: usize) -> Result<(Vec<Outcome>, Option<String>), ()> {
    let mut done = Vec::new();
    let fresh = || {
        if places == 0 {
            Exchange::simple(ROWS_BYTES_MAX)
        } else {
            Exchange::extended(vec![None; places], ROWS_BYTES_MAX)
        }
    };
    let mut exchange = fresh();
    for message in messages {
        if let Some(outcome) = exchange.on(message).map_err(drop)? {
            done.push(outcome);
            exchange = fresh();
        }
    }
    Ok((done, exchange.failure().map(|error| error.sqlstate.to_string())))
}

fn startup(messages: Vec<Backend>) -> Value {
    let mut out = BytesMut::new();
    let mut startup = Startup::begin("seckill", Some("secret"), "seckill", &[], &mut out);
    for message in messages {
        if let Backend::Authentication(Authentication::Sasl(offered)) = &message {
            return json!({ "result": "choose", "mechanism_plain": choose_mechanism(offered, false), "mechanism_tls": choose_mechanism(offered, true) });
        }
        match startup.on(message, &mut out) {
            Ok(StartupStep::Continue) => {}
            Ok(StartupStep::Ready { status, .. }) => return json!({ "result": "ready", "tx": status_letter(status) }),
            Err(_) => return json!({ "result": "abort" }),
        }
    }
    json!({ "result": "waiting" })
}

fn after_first_sasl(messages: Vec<Backend>) -> Value {
    let mut out = BytesMut::new();
    let mut startup = Startup::begin("seckill", Some("secret"), "seckill", &[], &mut out);
    let offer = Backend::Authentication(Authentication::Sasl(vec![SCRAM_SHA_256.to_owned()]));
    startup.on(offer, &mut out).unwrap();
    out.clear();
    for message in messages {
        if startup.on(message, &mut out).is_err() {
            assert!(out.is_empty(), "nothing may be sent to a server that breaks the exchange");
            return json!({ "result": "abort" });
        }
    }
    json!({ "result": "waiting" })
}

/// Everything that the cases look at.
fn seen(context: &str, pieces: &[&[u8]]) -> Map<String, Value> {
    let (found, broken) = messages(pieces);
    let mut seen = Map::new();
    if broken {
        seen.insert("result".to_owned(), json!("protocol_error"));
        return seen;
    }
    let notices = count(&found, |message| matches!(message, Backend::Notice(_)));
    let params = count(&found, |message| matches!(message, Backend::ParameterStatus { .. }));
    let notifications = count(&found, |message| matches!(message, Backend::Notification { .. }));
    seen.insert("notices".to_owned(), json!(notices));
    seen.insert("params".to_owned(), json!(params));
    seen.insert("notifications".to_owned(), json!(notifications));
    if matches!(context, "startup" | "sasl-first") {
        let outcome = if context == "startup" { startup(found) } else { after_first_sasl(found) };
        seen.extend(outcome.as_object().unwrap().clone());
        return seen;
    }
    if context == "idle" {
        // An idle connection has asked for nothing: an error there announces its end.
        let error = found.iter().find_map(|message| match message {
            Backend::Error(error) => Some(error.sqlstate.to_string()),
            _ => None,
        });
        seen.insert("error".to_owned(), json!(error));
        seen.insert("result".to_owned(), json!(if error.is_some() { "close" } else { "open" }));
        seen.insert("pool".to_owned(), json!(if error.is_some() { "discard" } else { "keep" }));
        return seen;
    }
    let places = if context == "pipeline3" { 3 } else { 0 };
    let Ok((done, pending)) = outcomes(found, places) else {
        seen.insert("result".to_owned(), json!("protocol_error"));
        return seen;
    };
    let errors: Vec<String> =
        done.iter().filter_map(|outcome| Some(outcome.error.as_ref()?.1.sqlstate.to_string())).chain(pending).collect();
    let classes: Vec<ErrorClass> =
        done.iter().filter_map(|outcome| Some(outcome.error.as_ref()?.1.sqlstate.class())).collect();
    let results: Vec<&Rows> = done.iter().flat_map(|outcome| &outcome.results).collect();
    let rows = match results.iter().find(|rows| !rows.columns().is_empty()) {
        Some(rows) => table(rows),
        None => results.iter().map(|rows| json!(rows.affected())).collect(),
    };
    seen.insert("rows".to_owned(), rows);
    seen.insert("tag".to_owned(), json!(results.last().map(|rows| rows.tag().to_owned())));
    if places == 3 {
        let outcome = &done[0];
        let undone = if outcome.error.is_some() { "-but-rolled-back" } else { "" };
        let mut shown: Vec<String> =
            outcome.results.iter().map(|rows| format!("rows={}{undone}", rows.affected())).collect();
        if let Some((index, error)) = &outcome.error {
            assert_eq!(*index, shown.len());
            shown.push(format!("error {}", error.sqlstate));
        }
        shown.resize(3, "skipped".to_owned());
        seen.insert("results".to_owned(), json!(shown));
    }
    seen.insert("error".to_owned(), json!(errors.first()));
    seen.insert("errors".to_owned(), json!(errors));
    seen.insert("class".to_owned(), json!(classes.first().map(|class| class_name(*class))));
    let retry = !classes.is_empty() && classes.iter().all(|class| *class == ErrorClass::Retry);
    seen.insert("retry".to_owned(), json!(retry));
    seen.insert("tx".to_owned(), json!(done.last().map(|outcome| status_letter(outcome.status))));
    seen
}

fn assert_expected(expected: &Value, seen: &Map<String, Value>, what: &str) {
    for (key, wanted) in expected.as_object().unwrap() {
        let found = seen.get(key).unwrap_or(&Value::Null);
        // `a|b` allows either.
        let allowed = wanted.as_str().map(|text| text.split('|').any(|option| found == option));
        assert!(allowed.unwrap_or(found == wanted), "{what}: {key} is {found}, wanted {wanted}");
    }
}

#[test]
fn every_case_however_it_is_cut() {
    let table = std::fs::read_to_string(cases().join("cases.tsv")).expect("the cases are in the repository");
    let mut total = 0;
    for row in table.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (id, context) = (columns[0], columns[2]);
        let expected: Value = serde_json::from_str(columns[3]).unwrap();
        let bytes = std::fs::read(cases().join(columns[1])).unwrap();
        assert_expected(&expected, &seen(context, &[&bytes]), &format!("{id} whole"));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_expected(&expected, &seen(context, &single), &format!("{id} byte by byte"));
        for at in 0..=bytes.len() {
            assert_expected(&expected, &seen(context, &[&bytes[..at], &bytes[at..]]), &format!("{id} cut at {at}"));
        }
        total += 1;
    }
    assert!(total >= 14, "only {total} cases found");
}

proptest! {
    #[test]
    fn noise_gives_the_same_messages_however_it_is_cut(
        frames in proptest::collection::vec(
            (proptest::sample::select(b"RSKZTDCIENA123ntvG".to_vec()), proptest::collection::vec(any::<u8>(), 0..24)),
            0..6,
        ),
        tail in proptest::collection::vec(any::<u8>(), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        for (kind, body) in frames {
            bytes.push(kind);
            bytes.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
            bytes.extend_from_slice(&body);
        }
        bytes.extend_from_slice(&tail);
        let cut = cut.index(bytes.len() + 1);
        prop_assert_eq!(messages(&[&bytes]), messages(&[&bytes[..cut], &bytes[cut..]]));
    }
}

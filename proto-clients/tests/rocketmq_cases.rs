//! The RocketMQ cases of `tests/cases/rocketmq` and the frames recorded from a real broker, whole, byte by byte, and cut
//! in two at every position.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use proto_clients::rocketmq::frame::{self, Frame, FrameError, Request};
use proto_clients::rocketmq::route::Route;
use proto_clients::rocketmq::send::{self, SendOutcome};
use proto_clients::rocketmq::{MqError, ack, code, pop, record};
use serde_json::{Map, Value, json};

const FRAME_BYTES_MAX: usize = 16 << 20;

fn fed(pieces: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
    let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(frame) = frame::next(&mut buffer, FRAME_BYTES_MAX)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// What a caller makes of an error code.
fn class(error: &MqError) -> &'static str {
    match error {
        error if error.outcome_unknown() => "unknown",
        error if error.retryable() => "unavailable",
        _ => "config",
    }
}

fn seen(context: &str, pieces: &[&[u8]]) -> Map<String, Value> {
    let mut seen = Map::new();
    let frames = match fed(pieces) {
        Ok(frames) => frames,
        Err(_) => {
            seen.insert("result".to_owned(), json!("protocol_error"));
            return seen;
        }
    };
    match context {
        "route" => {
            let route = Route::parse(&frames[0].body).expect("a route");
            let brokers: BTreeMap<&str, _> =
                route.brokers.iter().map(|broker| (broker.name.as_str(), &broker.addrs)).collect();
            seen.insert("brokers".to_owned(), json!(brokers));
            seen.insert("queues".to_owned(), json!(route.writable().len()));
        }
        "pop" => {
            let messages = pop::messages(&frames[0], &Rc::from("t"), &Rc::from("b0")).expect("no error");
            seen.insert("messages".to_owned(), json!(messages.len()));
            seen.insert("class".to_owned(), json!(if messages.is_empty() { "empty" } else { "found" }));
        }
        _ => {
            let by_opaque: BTreeMap<String, String> = frames
                .iter()
                .map(|frame| (frame.opaque.to_string(), frame.field("msgId").unwrap_or_default().to_owned()))
                .collect();
            seen.insert("by_opaque".to_owned(), json!(by_opaque));
            seen.insert("code".to_owned(), json!(frames[0].code));
            if let SendOutcome::NotStored(error) | SendOutcome::Unknown(error) = send::outcome(&frames[0]) {
                seen.insert("class".to_owned(), json!(class(&error)));
                let retry = error.retryable() && !error.outcome_unknown();
                // The message keeps its id whenever it is sent again, and the driver pauses in between.
                seen.insert(
                    "retry".to_owned(),
                    if retry { json!("same message_id, with back-off") } else { json!(false) },
                );
            }
        }
    }
    seen
}

#[test]
fn every_case_however_it_is_cut() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases/rocketmq"));
    let table = std::fs::read_to_string(folder.join("cases.tsv")).expect("the cases are in the repository");
    let mut total = 0;
    for row in table.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (id, context) = (columns[0], columns[2]);
        let expected: Value = serde_json::from_str(columns[3]).unwrap();
        let bytes = std::fs::read(folder.join(columns[1])).unwrap();
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        let mut ways = vec![vec![bytes.as_slice()], single];
        ways.extend((0..=bytes.len()).map(|at| vec![&bytes[..at], &bytes[at..]]));
        for way in ways {
            let seen = seen(context, &way);
            for (key, wanted) in expected.as_object().unwrap() {
                let found = seen.get(key).unwrap_or(&Value::Null);
                let allowed = wanted.as_str().map(|text| text.split('|').any(|option| found == option));
                assert!(allowed.unwrap_or(found == wanted), "{id}: {key} is {found}, wanted {wanted}");
            }
        }
        total += 1;
    }
    assert!(total >= 8, "only {total} cases found");
}

/// A recorded frame: its section, whether it is a response, its bytes and the header as the recorder read it.
struct Recorded {
    section: String,
    bytes: Vec<u8>,
    header: Value,
}

fn recorded() -> Vec<Recorded> {
    let text = include_str!("vectors/rocketmq.txt");
    let (mut all, mut section, mut header, mut hex) = (Vec::new(), String::new(), Value::Null, String::new());
    let mut finish = |section: &str, header: &mut Value, hex: &mut String| {
        if !hex.is_empty() {
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            all.push(Recorded { section: section.to_owned(), bytes, header: header.take() });
            hex.clear();
        }
    };
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(title) = trimmed.strip_prefix("== ") {
            finish(&section, &mut header, &mut hex);
            title.clone_into(&mut section);
        } else if let Some(read) = trimmed.strip_prefix("header: ") {
            finish(&section, &mut header, &mut hex);
            header = serde_json::from_str(read).unwrap_or_default();
        } else if line.starts_with("  ")
            && trimmed.len() % 2 == 0
            && trimmed.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            hex.push_str(trimmed);
        } else if trimmed == "request" || trimmed == "response" {
            finish(&section, &mut header, &mut hex);
        }
    }
    finish(&section, &mut header, &mut hex);
    all
}

#[test]
fn recorded_frames_are_read_as_the_recorder_read_them() {
    let all = recorded();
    assert!(all.len() >= 40, "only {} frames found", all.len());
    for Recorded { section, bytes, header } in &all {
        let Ok(frames) = fed(&[bytes]) else { panic!("{section}: not read") };
        assert_eq!(frames.len(), 1, "{section}");
        for at in (0..bytes.len()).step_by(7) {
            assert_eq!(fed(&[&bytes[..at], &bytes[at..]]).as_ref(), Ok(&frames), "{section} cut at {at}");
        }
        if header["code"].is_i64() {
            assert_eq!(json!(frames[0].code), header["code"], "{section}");
            assert_eq!(json!(frames[0].opaque), header["opaque"], "{section}");
            for (key, value) in header["extFields"].as_object().into_iter().flatten() {
                assert_eq!(frames[0].field(key), value.as_str(), "{section}: {key}");
            }
        }
    }
}

/// The response of a recorded section.
fn answer(title: &str) -> Frame {
    let all = recorded();
    let frames = all.iter().filter(|frame| frame.section.contains(title));
    let mut read = frames.map(|frame| fed(&[&frame.bytes]).unwrap().remove(0));
    read.rfind(Frame::is_response).unwrap_or_else(|| panic!("no response in {title}"))
}

#[test]
fn a_recorded_pop_gives_messages_with_handles_that_the_broker_took() {
    let popped =
        pop::messages(&answer("12. pop, two messages"), &Rc::from("wireprobe"), &Rc::from("broker-a")).unwrap();
    assert_eq!(popped.len(), 2);
    for message in &popped {
        assert_eq!(message.attempt, 1);
        assert!(!message.body.is_empty() && message.message_id.len() == 32);
        assert_eq!(message.handle.to_string().split(' ').count(), 8);
    }
    assert_eq!(popped[1].handle.offset, popped[0].handle.offset + 1);
    let several =
        pop::messages(&answer("16. pop, several queues"), &Rc::from("wireprobe"), &Rc::from("broker-a")).unwrap();
    assert!(several.len() >= 2);
    let none = pop::messages(&answer("18. pop of an empty topic"), &Rc::from("t"), &Rc::from("broker-a")).unwrap();
    assert!(none.is_empty());
}

#[test]
fn recorded_sends_are_classified() {
    assert!(matches!(send::outcome(&answer("8. send V2, binary header")), SendOutcome::Stored(_)));
    let SendOutcome::Stored(batch) = send::outcome(&answer("10. send batch of 3")) else { panic!("not stored") };
    assert_eq!(batch.message_ids.len(), 3);
    assert!(matches!(send::outcome(&answer("9. send to a missing topic")), SendOutcome::NotStored(_)));
    assert_eq!(ack::accepted(&answer("17. batch ack")), Ok(()));
}

/// A message record in the broker's layout.
fn stored(body: &[u8], topic: &str, properties: &str, v6: bool) -> Vec<u8> {
    let mut rest = BytesMut::new();
    let host: &[u8] = if v6 { &[0; 20] } else { &[127, 0, 0, 1, 0, 0, 0x2a, 0x9f] };
    rest.put_u32(crc32fast::hash(body) & 0x7fff_ffff);
    rest.put_u32(3);
    rest.put_u32(0);
    rest.put_u64(41);
    rest.put_u64(4096);
    rest.put_u32(if v6 { 0x30 } else { 0 });
    rest.put_u64(1_700_000_000_000);
    rest.put_slice(host);
    rest.put_u64(1_700_000_000_001);
    rest.put_slice(host);
    rest.put_u32(2);
    rest.put_u64(0);
    rest.put_u32(body.len() as u32);
    rest.put_slice(body);
    rest.put_u8(topic.len() as u8);
    rest.put_slice(topic.as_bytes());
    rest.put_u16(properties.len() as u16);
    rest.put_slice(properties.as_bytes());
    let mut all = BytesMut::new();
    all.put_u32(rest.len() as u32 + 8);
    all.put_u32(0xdaa3_20a7);
    all.put_slice(&rest);
    all.to_vec()
}

proptest! {
    #[test]
    fn records_go_there_and_back(
        bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 1..5),
        topic in "[a-zA-Z0-9_-]{1,40}",
        value in "[a-z]{1,20}",
        v6 in any::<bool>(),
    ) {
        let properties = format!("TAGS\u{1}{value}\u{2}");
        let bytes: Vec<u8> = bodies.iter().flat_map(|body| stored(body, &topic, &properties, v6)).collect();
        let records = record::parse_all(Bytes::from(bytes)).unwrap();
        prop_assert_eq!(records.len(), bodies.len());
        for (record, body) in records.iter().zip(&bodies) {
            prop_assert_eq!(record.body.as_ref(), body.as_slice());
            prop_assert_eq!(record.property("TAGS"), Some(value.as_str()));
            prop_assert_eq!((record.queue, record.queue_offset, record.reconsume_times), (3, 41, 2));
            prop_assert_eq!(&record.topic, &topic);
        }
    }

    #[test]
    fn a_damaged_record_is_an_error_and_no_panic(
        at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = stored(b"a body of some length", "topic", "TAGS\u{1}x\u{2}", false);
        let at = at.index(bytes.len());
        bytes[at] = to;
        bytes.truncate(cut.index(bytes.len() + 1));
        // Whatever it comes to, it comes to an end.
        let _ = record::parse_all(Bytes::from(bytes));
    }

    #[test]
    fn headers_go_there_and_back_in_both_forms(
        code in prop_oneof![Just(code::SEND_MESSAGE_V2), Just(code::POP_MESSAGE)],
        value in "\\PC{0,40}",
        body in proptest::collection::vec(any::<u8>(), 0..50),
        opaque in 1..i32::MAX,
        cut in any::<prop::sample::Index>(),
    ) {
        let request = Request { body: body.clone().into(), ..Request::new(code, vec![("i", value.clone()), ("b", "t".to_owned())]) };
        let mut out = BytesMut::new();
        request.encode(opaque, &mut out);
        let cut = cut.index(out.len() + 1);
        let frames = fed(&[&out[..cut], &out[cut..]]).unwrap();
        prop_assert_eq!(frames.len(), 1);
        prop_assert_eq!((frames[0].code, frames[0].opaque), (code, opaque));
        prop_assert_eq!(frames[0].field("i"), Some(value.as_str()));
        prop_assert_eq!(frames[0].body.as_ref(), body.as_slice());
    }

    #[test]
    fn noise_gives_the_same_outcome_however_it_is_cut(
        form in 0u8..3, header in proptest::collection::vec(any::<u8>(), 0..40), tail in proptest::collection::vec(any::<u8>(), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(header.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(&(u32::from(form) << 24 | header.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&tail);
        let cut = cut.index(bytes.len() + 1);
        prop_assert_eq!(fed(&[&bytes]), fed(&[&bytes[..cut], &bytes[cut..]]));
    }
}

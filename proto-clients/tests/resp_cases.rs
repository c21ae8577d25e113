//! The RESP cases of `tests/cases/resp`: each whole, byte by byte, and cut in two at every position.

use std::path::PathBuf;

use bytes::BytesMut;
use proptest::prelude::*;
use proto_clients::redis::{Incoming, Parser, Reply};
use serde_json::{Value, json};

const REPLY_BYTES_MAX: usize = 16 << 20;

fn cases() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases/resp"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the cases are UTF-8")
}

fn list(items: &[Reply]) -> Value {
    items.iter().map(shown).collect()
}

fn shown(reply: &Reply) -> Value {
    match reply {
        Reply::Simple(value) => json!({ "simple": text(value) }),
        Reply::Error(error) => json!({ "error": error.message }),
        Reply::Integer(value) => json!({ "int": value }),
        Reply::Bulk(value) => json!({ "bulk": text(value) }),
        Reply::Nil => json!({ "nil": true }),
        Reply::Array(items) => json!({ "array": list(items) }),
        Reply::Map(pairs) => {
            let pairs: Vec<Value> = pairs.iter().map(|(key, value)| json!([shown(key), shown(value)])).collect();
            json!({ "map": pairs })
        }
        Reply::Set(items) => json!({ "set": list(items) }),
        Reply::Double(value) => json!({ "double": text(value) }),
        Reply::Bool(value) => json!({ "bool": value }),
        Reply::BigNumber(value) => json!({ "bignum": text(value) }),
        Reply::Verbatim { format, text: value } => json!({ "verbatim": [text(format), text(value)] }),
    }
}

/// What comes of bytes that arrive in the given pieces.
fn fed(pieces: &[&[u8]]) -> Value {
    let (mut parser, mut buffer) = (Parser::new(REPLY_BYTES_MAX), BytesMut::new());
    let (mut replies, mut pushes, mut rest) = (Vec::new(), Vec::new(), None);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while rest.is_none() {
            match parser.next(&mut buffer) {
                Ok(Some(Incoming::Reply(reply))) => replies.push(shown(&reply)),
                Ok(Some(Incoming::Push(items))) => pushes.push(list(&items)),
                Ok(None) => break,
                Err(_) => rest = Some("protocol_error"),
            }
        }
    }
    let rest = rest.unwrap_or(if buffer.is_empty() { "none" } else { "incomplete" });
    let mut outcome = json!({ "replies": replies, "rest": rest });
    if !pushes.is_empty() {
        outcome["push"] = json!(pushes);
    }
    outcome
}

#[test]
fn every_case_however_it_is_cut() {
    let table = std::fs::read_to_string(cases().join("cases.tsv")).expect("the cases are in the repository");
    let mut count = 0;
    for row in table.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (id, expected) = (columns[0], serde_json::from_str::<Value>(columns[3]).unwrap());
        let bytes = std::fs::read(cases().join(columns[1])).unwrap();
        assert_eq!(fed(&[&bytes]), expected, "{id} whole");
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(fed(&single), expected, "{id} byte by byte");
        for at in 0..=bytes.len() {
            assert_eq!(fed(&[&bytes[..at], &bytes[at..]]), expected, "{id} cut at {at}");
        }
        count += 1;
    }
    assert!(count >= 20, "only {count} cases found");
}

fn reply() -> impl Strategy<Value = Reply> {
    let word = "[a-zA-Z0-9 ]{0,12}".prop_map(|text| bytes::Bytes::from(text.into_bytes()));
    let leaf = prop_oneof![
        word.clone().prop_map(Reply::Simple),
        any::<i64>().prop_map(Reply::Integer),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Reply::Bulk(bytes.into())),
        Just(Reply::Nil),
        any::<bool>().prop_map(Reply::Bool),
        any::<f64>().prop_map(|value| Reply::Double(value.to_string().into_bytes().into())),
        any::<i128>().prop_map(|value| Reply::BigNumber(value.to_string().into_bytes().into())),
        word.prop_map(|text| Reply::Verbatim { format: *b"txt", text }),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Reply::Array),
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Reply::Set),
            proptest::collection::vec((inner.clone(), inner), 0..4).prop_map(Reply::Map),
        ]
    })
}

fn encode(reply: &Reply, out: &mut Vec<u8>) {
    let mut line = |kind: char, text: &[u8]| {
        out.push(kind as u8);
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    };
    match reply {
        Reply::Simple(text) => line('+', text),
        Reply::Error(error) => line('-', error.message.as_bytes()),
        Reply::Integer(value) => line(':', value.to_string().as_bytes()),
        Reply::Nil => line('_', b""),
        Reply::Bool(value) => line('#', if *value { b"t" } else { b"f" }),
        Reply::Double(text) => line(',', text),
        Reply::BigNumber(text) => line('(', text),
        Reply::Bulk(bytes) => {
            line('$', bytes.len().to_string().as_bytes());
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Verbatim { format, text } => {
            line('=', (text.len() + 4).to_string().as_bytes());
            out.extend_from_slice(format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Array(items) | Reply::Set(items) => {
            line(if matches!(reply, Reply::Set(_)) { '~' } else { '*' }, items.len().to_string().as_bytes());
            items.iter().for_each(|item| encode(item, out));
        }
        Reply::Map(pairs) => {
            line('%', pairs.len().to_string().as_bytes());
            for (key, value) in pairs {
                encode(key, out);
                encode(value, out);
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_is_cut(
        replies in proptest::collection::vec(reply(), 1..5),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut bytes = Vec::new();
        replies.iter().for_each(|reply| encode(reply, &mut bytes));
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let (mut parser, mut buffer, mut read) = (Parser::new(REPLY_BYTES_MAX), BytesMut::new(), Vec::new());
        for pair in at.windows(2) {
            buffer.extend_from_slice(&bytes[pair[0]..pair[1]]);
            while let Some(incoming) = parser.next(&mut buffer).unwrap() {
                match incoming {
                    Incoming::Reply(reply) => read.push(reply),
                    Incoming::Push(push) => prop_assert!(false, "a push came out: {:?}", push),
                }
            }
        }
        prop_assert_eq!(read, replies);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn noise_gives_the_same_outcome_however_it_is_cut(
        bytes in proptest::collection::vec(prop_oneof![4 => any::<u8>(), 6 => proptest::sample::select(b"*$+:-%~>|_\r\n0123".to_vec())], 0..80),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        let outcome = |pieces: &[&[u8]]| {
            let (mut parser, mut buffer, mut log) = (Parser::new(4096), BytesMut::new(), Vec::new());
            for piece in pieces {
                buffer.extend_from_slice(piece);
                loop {
                    match parser.next(&mut buffer) {
                        Ok(Some(incoming)) => log.push(format!("{incoming:?}")),
                        Ok(None) => break,
                        Err(_) => return (log, true),
                    }
                }
            }
            (log, false)
        };
        prop_assert_eq!(outcome(&[&bytes]), outcome(&[&bytes[..cut], &bytes[cut..]]));
    }
}

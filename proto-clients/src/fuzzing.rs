//! Entry points for fuzzing, and for the property tests that do the same in small: any bytes come to an end without a
//! panic, and to the same end however they are cut.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};

/// The first byte says where the rest is cut in two.
fn pieces(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (cut, rest) = data.split_first()?;
    let at = usize::from(*cut).min(rest.len());
    Some((rest, &rest[..at], &rest[at..]))
}

/// Feeds `read` the whole, then the two parts, and compares what it says.
fn same_however_cut<T: PartialEq + std::fmt::Debug>(data: &[u8], read: impl Fn(&[&[u8]]) -> T) {
    if let Some((whole, first, second)) = pieces(data) {
        assert_eq!(read(&[whole]), read(&[first, second]));
    }
}

/// RESP2 and RESP3.
pub fn fuzz_resp(data: &[u8]) {
    same_however_cut(data, |pieces| {
        let (mut parser, mut buffer, mut log) = (crate::redis::Parser::new(1 << 16), BytesMut::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match parser.next(&mut buffer) {
                    Ok(Some(incoming)) => log.push(incoming),
                    Ok(None) => break,
                    Err(error) => return (log, Some(error)),
                }
            }
        }
        (log, None)
    });
}

/// PostgreSQL messages, and what a log-in and an exchange make of them.
pub fn fuzz_postgres(data: &[u8]) {
    use crate::postgres::{exchange::Exchange, message, startup::Startup};
    let read = |pieces: &[&[u8]]| {
        let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match message::next(&mut buffer, 1 << 16) {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Some(error)),
                }
            }
        }
        (messages, None)
    };
    same_however_cut(data, read);
    let (messages, _) = read(&[data]);
    let mut out = BytesMut::new();
    let mut startup = Startup::begin("user", Some("password"), "database", &[], &mut out);
    let mut exchange = Exchange::extended(vec![None; 2], 1 << 16);
    for message in messages {
        let logged_in = startup.on(message.clone(), &mut out).is_err();
        if let Ok(Some(outcome)) = exchange.on(message) {
            for rows in &outcome.results {
                for row in rows.iter() {
                    for column in 0..rows.columns().len() {
                        // Any of them may fail; none may panic.
                        let _ =
                            (row.opt_text(column), row.opt_i64(column), row.i64_array(column), row.text_array(column));
                    }
                }
            }
        }
        if logged_in {
            break;
        }
    }
}

/// RocketMQ frames, routes and records.
pub fn fuzz_rocketmq(data: &[u8]) {
    use crate::rocketmq::{frame, pop, record, route::Route, send};
    let read = |pieces: &[&[u8]]| {
        let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                match frame::next(&mut buffer, 1 << 16) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
        (frames, None)
    };
    same_however_cut(data, read);
    for frame in read(&[data]).0 {
        send::outcome(&frame);
        // Either may be an error; neither may panic.
        let _ = (pop::messages(&frame, &Rc::from("t"), &Rc::from("b")), Route::parse(&frame.body));
    }
    let _ = record::parse_all(Bytes::copy_from_slice(data));
}

//! Messages of the client.

use bytes::{BufMut, BytesMut};

use super::{Params, Statement};

/// Protocol 3.0.
const VERSION: i32 = 3 << 16;
/// The code of a cancel request.
const CANCEL: i32 = 80_877_102;

/// Writes a length that counts itself and what `body` puts behind it.
fn framed(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_i32(0);
    body(out);
    let length = i32::try_from(out.len() - at).unwrap_or(i32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn message(out: &mut BytesMut, kind: u8, body: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind);
    framed(out, body);
}

/// A zero-terminated string. A zero in it would end it early and shift the rest, so it is left out.
fn put_string(out: &mut BytesMut, text: &str) {
    out.extend(text.bytes().filter(|byte| *byte != 0));
    out.put_u8(0);
}

/// StartupMessage.
pub(crate) fn startup(out: &mut BytesMut, settings: &[(String, String)]) {
    framed(out, |out| {
        out.put_i32(VERSION);
        for (name, value) in settings {
            put_string(out, name);
            put_string(out, value);
        }
        out.put_u8(0);
    });
}

/// PasswordMessage, in clear or hashed.
pub(crate) fn password(out: &mut BytesMut, text: &str) {
    message(out, b'p', |out| put_string(out, text));
}

/// SASLInitialResponse.
pub(crate) fn sasl_first(out: &mut BytesMut, mechanism: &str, data: &[u8]) {
    message(out, b'p', |out| {
        put_string(out, mechanism);
        out.put_i32(i32::try_from(data.len()).unwrap_or(i32::MAX));
        out.put_slice(data);
    });
}

/// SASLResponse.
pub(crate) fn sasl_next(out: &mut BytesMut, data: &[u8]) {
    message(out, b'p', |out| out.put_slice(data));
}

/// Parse under `name`.
pub(crate) fn parse(out: &mut BytesMut, name: &str, statement: &Statement) {
    message(out, b'P', |out| {
        put_string(out, name);
        put_string(out, statement.sql);
        out.put_u16(u16::try_from(statement.params.len()).unwrap_or(u16::MAX));
        for kind in statement.params {
            out.put_u32(kind.oid());
        }
    });
}

/// Describe of a prepared statement.
pub(crate) fn describe(out: &mut BytesMut, name: &str) {
    message(out, b'D', |out| {
        out.put_u8(b'S');
        put_string(out, name);
    });
}

/// Bind to the unnamed portal: all parameters and results in binary.
pub(crate) fn bind(out: &mut BytesMut, name: &str, params: &Params) {
    message(out, b'B', |out| {
        out.put_u8(0);
        put_string(out, name);
        out.put_slice(&[0, 1, 0, 1]);
        out.put_u16(params.len());
        out.put_slice(params.bytes());
        out.put_slice(&[0, 1, 0, 1]);
    });
}

/// Execute of the unnamed portal, all rows.
pub(crate) fn execute(out: &mut BytesMut) {
    message(out, b'E', |out| {
        out.put_u8(0);
        out.put_i32(0);
    });
}

/// Sync.
pub(crate) fn sync(out: &mut BytesMut) {
    message(out, b'S', |_| ());
}

/// Query of the simple protocol.
pub(crate) fn query(out: &mut BytesMut, sql: &str) {
    message(out, b'Q', |out| put_string(out, sql));
}

/// Terminate.
pub(crate) fn terminate(out: &mut BytesMut) {
    message(out, b'X', |_| ());
}

/// CancelRequest, on a connection of its own.
pub(crate) fn cancel(out: &mut BytesMut, process: i32, secret: i32) {
    framed(out, |out| {
        out.put_i32(CANCEL);
        out.put_i32(process);
        out.put_i32(secret);
    });
}

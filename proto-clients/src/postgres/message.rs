//! Messages of the server: framing and meaning (protocol manual, "Message Formats").

use std::rc::Rc;

use bytes::{Buf, Bytes, BytesMut};

use super::error::PgError;
use super::rows::Column;

/// Bytes that are no message, or more than was allowed. The connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A length below its own four bytes.
    #[error("a message length that is impossible")]
    Length,
    /// A message over the limit.
    #[error("a message is longer than allowed")]
    TooLong,
    /// A body that is not what its type says.
    #[error("a malformed message of type {}", char::from(*.0))]
    Malformed(u8),
    /// A message that may not come now.
    #[error("an unexpected message of type {}", char::from(*.0))]
    Unexpected(u8),
}

/// The state of the session's transaction, as ReadyForQuery tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction block.
    Idle,
    /// In one.
    Open,
    /// In one that has failed: only ROLLBACK is taken.
    Failed,
}

/// What the server wants for a log-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authentication {
    /// Nothing more.
    Ok,
    /// The password as it is.
    Cleartext,
    /// MD5 of password, user and salt.
    Md5([u8; 4]),
    /// One of these SASL mechanisms.
    Sasl(Vec<String>),
    /// The server's next SASL message.
    SaslContinue(Bytes),
    /// The server's last SASL message.
    SaslFinal(Bytes),
    /// A method that this client does not know.
    Other(i32),
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// `R`
    Authentication(Authentication),
    /// `S`
    ParameterStatus {
        /// Which setting.
        name: String,
        /// Its value.
        value: String,
    },
    /// `K`
    KeyData {
        /// The backend process.
        process: i32,
        /// What a cancel request must show.
        secret: i32,
    },
    /// `Z`
    Ready(TransactionStatus),
    /// `T`
    RowDescription(Rc<[Column]>),
    /// `D`, without the column count, which has been checked to fit the bytes.
    DataRow(Bytes),
    /// `C`
    CommandComplete(String),
    /// `I`
    EmptyQuery,
    /// `E`
    Error(PgError),
    /// `N`
    Notice(PgError),
    /// `A`
    Notification {
        /// The channel.
        channel: String,
        /// The payload.
        payload: String,
    },
    /// `1`
    ParseComplete,
    /// `2`
    BindComplete,
    /// `3`
    CloseComplete,
    /// `n`
    NoData,
    /// `t`
    ParameterDescription,
    /// `v`
    NegotiateVersion,
    /// COPY and what else is never asked for: its type byte.
    Other(u8),
}

/// Takes the next message off the front of `buffer`; `None` while it is not all there. Nothing is reserved for a length
/// that is only claimed.
///
/// # Errors
/// [`ProtocolError`]; the connection must be closed then.
pub fn next(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<Backend>, ProtocolError> {
    let [kind, a, b, c, d, ..] = **buffer else { return Ok(None) };
    // The length counts itself, but not the type byte.
    let length = i32::from_be_bytes([a, b, c, d]);
    let length = usize::try_from(length).ok().filter(|length| *length >= 4).ok_or(ProtocolError::Length)?;
    if length > bytes_max {
        return Err(ProtocolError::TooLong);
    }
    if buffer.len() < 1 + length {
        return Ok(None);
    }
    let mut body = buffer.split_to(1 + length).freeze();
    body.advance(5);
    decode(kind, body).map(Some)
}

fn decode(kind: u8, mut body: Bytes) -> Result<Backend, ProtocolError> {
    let malformed = ProtocolError::Malformed(kind);
    let empty = |message: Backend, body: &Bytes| if body.is_empty() { Ok(message) } else { Err(malformed) };
    match kind {
        b'R' => authentication(body).map(Backend::Authentication).ok_or(malformed),
        b'S' => {
            let (name, value) = (string(&mut body).ok_or(malformed)?, string(&mut body).ok_or(malformed)?);
            empty(Backend::ParameterStatus { name, value }, &body)
        }
        // The secret is four bytes in protocol 3.0.
        b'K' if body.len() == 8 => Ok(Backend::KeyData { process: body.get_i32(), secret: body.get_i32() }),
        b'Z' => match body.as_ref() {
            b"I" => Ok(Backend::Ready(TransactionStatus::Idle)),
            b"T" => Ok(Backend::Ready(TransactionStatus::Open)),
            b"E" => Ok(Backend::Ready(TransactionStatus::Failed)),
            _ => Err(malformed),
        },
        b'T' => row_description(body).map(|columns| Backend::RowDescription(columns.into())).ok_or(malformed),
        b'D' => data_row(body).map(Backend::DataRow).ok_or(malformed),
        b'C' => string(&mut body).map(Backend::CommandComplete).ok_or(malformed),
        b'I' => empty(Backend::EmptyQuery, &body),
        b'E' => PgError::parse(&body).map(Backend::Error).ok_or(malformed),
        b'N' => PgError::parse(&body).map(Backend::Notice).ok_or(malformed),
        b'A' => {
            if body.len() < 4 {
                return Err(malformed);
            }
            body.advance(4);
            let (channel, payload) = (string(&mut body).ok_or(malformed)?, string(&mut body).ok_or(malformed)?);
            Ok(Backend::Notification { channel, payload })
        }
        b'1' => empty(Backend::ParseComplete, &body),
        b'2' => empty(Backend::BindComplete, &body),
        b'3' => empty(Backend::CloseComplete, &body),
        b'n' => empty(Backend::NoData, &body),
        b't' => Ok(Backend::ParameterDescription),
        b'v' => Ok(Backend::NegotiateVersion),
        b'K' => Err(malformed),
        other => Ok(Backend::Other(other)),
    }
}

fn string(body: &mut Bytes) -> Option<String> {
    let end = body.iter().position(|&byte| byte == 0)?;
    let text = body.split_to(end);
    body.advance(1);
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn authentication(mut body: Bytes) -> Option<Authentication> {
    if body.len() < 4 {
        return None;
    }
    Some(match body.get_i32() {
        0 => Authentication::Ok,
        3 => Authentication::Cleartext,
        5 => Authentication::Md5(body.as_ref().try_into().ok()?),
        10 => {
            let mut mechanisms = Vec::new();
            loop {
                let name = string(&mut body)?;
                if name.is_empty() {
                    break Authentication::Sasl(mechanisms);
                }
                mechanisms.push(name);
            }
        }
        11 => Authentication::SaslContinue(body),
        12 => Authentication::SaslFinal(body),
        other => Authentication::Other(other),
    })
}

fn row_description(mut body: Bytes) -> Option<Vec<Column>> {
    if body.len() < 2 {
        return None;
    }
    let count = usize::from(body.get_u16());
    // A column takes 19 bytes at least.
    let mut columns = Vec::with_capacity(count.min(body.len() / 19));
    for _ in 0..count {
        let name = string(&mut body)?;
        if body.len() < 18 {
            return None;
        }
        let (_table, _attribute, oid) = (body.get_u32(), body.get_u16(), body.get_u32());
        let (_size, _modifier, format) = (body.get_i16(), body.get_i32(), body.get_i16());
        columns.push(Column { name, oid, binary: format == 1 });
    }
    body.is_empty().then_some(columns)
}

fn data_row(mut body: Bytes) -> Option<Bytes> {
    if body.len() < 2 {
        return None;
    }
    let count = body.get_u16();
    let mut rest = body.as_ref();
    for _ in 0..count {
        if rest.len() < 4 {
            return None;
        }
        if let Ok(length) = usize::try_from(rest.get_i32()) {
            rest = rest.get(length..)?;
        }
    }
    rest.is_empty().then_some(body)
}

//! Bytes in, replies out.
//!
//! Two steps: [`Scanner`] finds where a value ends and remembers how far it has come, so that no byte is looked at twice
//! however small the pieces are in which it arrives; then the value is decoded from bytes that are all there, with nothing
//! allocated for a length that was only claimed.

use bytes::{Buf, Bytes, BytesMut};

use super::reply::{Reply, ServerError};

/// Aggregates within aggregates.
const DEPTH_MAX: usize = 32;
/// A length or number line; errors and simple strings may be as long as `bytes_max`.
const NUMBER_LINE_MAX: usize = 32;

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The reply to the oldest command without one.
    Reply(Reply),
    /// Out of band: answers no command.
    Push(Vec<Reply>),
}

/// Bytes that are no RESP, or more than was allowed. The connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An unknown type byte.
    #[error("unknown type byte {0:#04x}")]
    Type(u8),
    /// A number or length that is none, or out of its range.
    #[error("bad number")]
    Number,
    /// CR LF is not where it must be.
    #[error("missing line end")]
    LineEnd,
    /// A value over the limit.
    #[error("a reply is longer than allowed")]
    TooLong,
    /// Too many levels.
    #[error("a reply is nested too deep")]
    TooDeep,
    /// A value that may not stand there.
    #[error("a value in the wrong place")]
    Misplaced,
}

/// An open aggregate.
#[derive(Debug, Clone, Copy)]
struct Open {
    missing: u64,
    /// Its end ends no value: attributes stand before the value that they describe.
    attribute: bool,
}

/// Finds the end of the value at the front of a buffer.
#[derive(Debug, Default)]
struct Scanner {
    /// The next byte to look at, from the front of the value.
    at: usize,
    /// How far the search for the end of the line at `at` has come.
    searched: usize,
    open: Vec<Open>,
}

impl Scanner {
    /// The length of the value, or `None` while more bytes are needed.
    fn scan(&mut self, bytes: &[u8], bytes_max: usize) -> Result<Option<usize>, ProtocolError> {
        loop {
            let Some(&kind) = bytes.get(self.at) else { return Ok(None) };
            let text_max = match kind {
                b'+' | b'-' | b',' | b'(' => bytes_max,
                b':' | b'$' | b'*' | b'_' | b'#' | b'!' | b'=' | b'%' | b'~' | b'>' | b'|' => NUMBER_LINE_MAX,
                other => return Err(ProtocolError::Type(other)),
            };
            if kind == b'>' && self.at != 0 {
                return Err(ProtocolError::Misplaced);
            }
            let Some(end) = self.line_end(bytes, text_max)? else { return Ok(None) };
            let line = &bytes[self.at + 1..end];
            let next = end + 2;
            match kind {
                b'$' | b'!' | b'=' => {
                    let Some(length) = length(line, kind == b'$')? else {
                        self.move_to(next);
                        if let Some(done) = self.value_ends()? {
                            return Ok(Some(done));
                        }
                        continue;
                    };
                    let length = usize::try_from(length).map_err(|_| ProtocolError::TooLong)?;
                    if length > bytes_max {
                        return Err(ProtocolError::TooLong);
                    }
                    let after = next + length + 2;
                    if after > bytes_max.saturating_add(NUMBER_LINE_MAX) {
                        return Err(ProtocolError::TooLong);
                    }
                    if bytes.len() < after {
                        return Ok(None);
                    }
                    if &bytes[after - 2..after] != b"\r\n" {
                        return Err(ProtocolError::LineEnd);
                    }
                    self.move_to(after);
                }
                b'*' | b'~' | b'>' | b'%' | b'|' => {
                    let count = length(line, kind == b'*')?;
                    self.move_to(next);
                    let doubled = matches!(kind, b'%' | b'|');
                    let missing = count.map_or(0, |count| if doubled { count.saturating_mul(2) } else { count });
                    // The smallest value is three bytes long.
                    if missing > (bytes_max / 3) as u64 {
                        return Err(ProtocolError::TooLong);
                    }
                    if missing > 0 || kind == b'|' {
                        if self.open.len() >= DEPTH_MAX {
                            return Err(ProtocolError::TooDeep);
                        }
                        self.open.push(Open { missing, attribute: kind == b'|' });
                        if missing > 0 {
                            continue;
                        }
                        self.close_finished();
                        continue;
                    }
                }
                _ => {
                    check_scalar(kind, line)?;
                    self.move_to(next);
                }
            }
            if self.at > bytes_max {
                return Err(ProtocolError::TooLong);
            }
            if let Some(done) = self.value_ends()? {
                return Ok(Some(done));
            }
        }
    }

    fn move_to(&mut self, at: usize) {
        self.at = at;
        self.searched = at;
    }

    /// The position of the CR of the line that begins at `at`. Faults are found in the order of the bytes, so that they are
    /// the same however the bytes are cut.
    fn line_end(&mut self, bytes: &[u8], text_max: usize) -> Result<Option<usize>, ProtocolError> {
        let from = self.searched.max(self.at + 1);
        let limit = (self.at + 1).saturating_add(text_max).saturating_add(1);
        let window = bytes.get(from..bytes.len().min(limit)).unwrap_or_default();
        match window.iter().position(|byte| matches!(byte, b'\r' | b'\n')).map(|at| from + at) {
            Some(end) if bytes[end] == b'\n' => Err(ProtocolError::LineEnd),
            Some(end) => match bytes.get(end + 1) {
                Some(b'\n') => Ok(Some(end)),
                Some(_) => Err(ProtocolError::LineEnd),
                None => {
                    self.searched = end;
                    Ok(None)
                }
            },
            None if bytes.len() >= limit => Err(ProtocolError::TooLong),
            None => {
                self.searched = bytes.len();
                Ok(None)
            }
        }
    }

    /// Takes note that a value has ended at `at`; the length of the whole when it was the outermost.
    fn value_ends(&mut self) -> Result<Option<usize>, ProtocolError> {
        loop {
            let Some(top) = self.open.last_mut() else { return Ok(Some(self.at)) };
            top.missing -= 1;
            if top.missing > 0 {
                return Ok(None);
            }
            let attribute = top.attribute;
            self.open.pop();
            if attribute {
                return Ok(None);
            }
        }
    }

    /// Pops an attribute without entries.
    fn close_finished(&mut self) {
        if self.open.last().is_some_and(|open| open.missing == 0) {
            self.open.pop();
        }
    }
}

/// A count or byte length; `None` for -1 where null may be written so (RESP2).
fn length(line: &[u8], nullable: bool) -> Result<Option<u64>, ProtocolError> {
    if line == b"-1" && nullable {
        return Ok(None);
    }
    // Digits only: a sign would pass `parse`. "?" (streamed values) is not spoken by any server that we talk to.
    if line.is_empty() || !line.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::Number);
    }
    integer(line).and_then(|value| u64::try_from(value).map_err(|_| ProtocolError::Number)).map(Some)
}

fn integer(line: &[u8]) -> Result<i64, ProtocolError> {
    let text = std::str::from_utf8(line).map_err(|_| ProtocolError::Number)?;
    text.parse().map_err(|_| ProtocolError::Number)
}

fn check_scalar(kind: u8, line: &[u8]) -> Result<(), ProtocolError> {
    let sound = match kind {
        b':' => return integer(line).map(drop),
        b'_' => line.is_empty(),
        b'#' => matches!(line, b"t" | b"f"),
        b',' => std::str::from_utf8(line).is_ok_and(|text| text.parse::<f64>().is_ok()),
        b'(' => {
            let digits = line.strip_prefix(b"-").or_else(|| line.strip_prefix(b"+")).unwrap_or(line);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        }
        _ => true,
    };
    if sound { Ok(()) } else { Err(ProtocolError::Number) }
}

/// The parser of one connection.
#[derive(Debug)]
pub struct Parser {
    scanner: Scanner,
    bytes_max: usize,
}

impl Parser {
    /// A parser that refuses values longer than `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self { scanner: Scanner::default(), bytes_max }
    }

    /// Takes the next value off the front of `buffer`; `None` while it is not all there. After an error the connection
    /// must be closed.
    ///
    /// # Errors
    /// [`ProtocolError`].
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        let Some(size) = self.scanner.scan(buffer, self.bytes_max)? else { return Ok(None) };
        self.scanner = Scanner { open: std::mem::take(&mut self.scanner.open), ..Scanner::default() };
        let mut frame = buffer.split_to(size).freeze();
        if frame.first() == Some(&b'>') {
            return Ok(Some(Incoming::Push(push(&mut frame)?)));
        }
        Ok(Some(Incoming::Reply(value(&mut frame)?)))
    }
}

fn take_line(frame: &mut Bytes) -> Result<Bytes, ProtocolError> {
    let end = frame.iter().position(|&byte| byte == b'\r').ok_or(ProtocolError::LineEnd)?;
    let line = frame.split_to(end);
    frame.advance(2.min(frame.len()));
    Ok(line)
}

fn take_text(frame: &mut Bytes, length: u64) -> Result<Bytes, ProtocolError> {
    let length = usize::try_from(length).map_err(|_| ProtocolError::TooLong)?;
    if frame.len() < length + 2 {
        return Err(ProtocolError::LineEnd);
    }
    let text = frame.split_to(length);
    frame.advance(2);
    Ok(text)
}

fn values(frame: &mut Bytes, count: u64) -> Result<Vec<Reply>, ProtocolError> {
    // The scanner has seen all of them, so `count` is no mere claim.
    let mut items = Vec::with_capacity(usize::try_from(count).map_err(|_| ProtocolError::TooLong)?);
    for _ in 0..count {
        items.push(value(frame)?);
    }
    Ok(items)
}

fn push(frame: &mut Bytes) -> Result<Vec<Reply>, ProtocolError> {
    frame.advance(1);
    let line = take_line(frame)?;
    let count = length(&line, false)?.unwrap_or(0);
    values(frame, count)
}

/// Decodes one value. Depth is bounded by the scanner.
fn value(frame: &mut Bytes) -> Result<Reply, ProtocolError> {
    let (kind, line) = loop {
        let Some(&kind) = frame.first() else { return Err(ProtocolError::LineEnd) };
        frame.advance(1);
        let line = take_line(frame)?;
        if kind != b'|' {
            break (kind, line);
        }
        // Attributes tell about the value that follows; nothing here asks for any. There may be many in a row.
        pairs(frame, &line)?;
    };
    Ok(match kind {
        b'+' => Reply::Simple(line),
        b'-' => Reply::Error(ServerError::parse(&line)),
        b':' => Reply::Integer(integer(&line)?),
        b'_' => Reply::Nil,
        b'#' => Reply::Bool(line == b"t".as_slice()),
        b',' => Reply::Double(line),
        b'(' => Reply::BigNumber(line),
        b'$' => match length(&line, true)? {
            Some(length) => Reply::Bulk(take_text(frame, length)?),
            None => Reply::Nil,
        },
        b'!' => {
            let length = length(&line, false)?.unwrap_or(0);
            Reply::Error(ServerError::parse(&take_text(frame, length)?))
        }
        b'=' => verbatim(take_text(frame, length(&line, false)?.unwrap_or(0))?)?,
        b'*' => match length(&line, true)? {
            Some(count) => Reply::Array(values(frame, count)?),
            None => Reply::Nil,
        },
        b'~' => {
            let count = length(&line, false)?.unwrap_or(0);
            Reply::Set(values(frame, count)?)
        }
        b'%' => Reply::Map(pairs(frame, &line)?),
        other => return Err(ProtocolError::Type(other)),
    })
}

fn pairs(frame: &mut Bytes, line: &[u8]) -> Result<Vec<(Reply, Reply)>, ProtocolError> {
    let count = length(line, false)?.unwrap_or(0);
    (0..count).map(|_| Ok((value(frame)?, value(frame)?))).collect()
}

fn verbatim(text: Bytes) -> Result<Reply, ProtocolError> {
    match text.as_ref() {
        [a, b, c, b':', ..] => {
            let format = [*a, *b, *c];
            Ok(Reply::Verbatim { format, text: text.slice(4..) })
        }
        _ => Err(ProtocolError::Misplaced),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1 << 20;

    fn all(bytes: &[u8]) -> Result<Vec<Incoming>, ProtocolError> {
        let (mut parser, mut buffer, mut found) = (Parser::new(MAX), BytesMut::from(bytes), Vec::new());
        while let Some(incoming) = parser.next(&mut buffer)? {
            found.push(incoming);
        }
        Ok(found)
    }

    #[test]
    fn attributes_are_dropped_wherever_they_stand() {
        let bulk = |text: &'static [u8]| Reply::Bulk(Bytes::from_static(text));
        assert_eq!(all(b"|1\r\n+ttl\r\n:3\r\n$1\r\na\r\n").unwrap(), [Incoming::Reply(bulk(b"a"))]);
        let inside = b"*2\r\n|1\r\n+x\r\n*1\r\n:1\r\n$1\r\na\r\n|0\r\n$1\r\nb\r\n";
        assert_eq!(all(inside).unwrap(), [Incoming::Reply(Reply::Array(vec![bulk(b"a"), bulk(b"b")]))]);
        assert_eq!(all(b"|1\r\n+ttl\r\n:3\r\n").unwrap(), []);
        let many = [b"|0\r\n".repeat(100_000).as_slice(), b":7\r\n"].concat();
        assert_eq!(all(&many).unwrap(), [Incoming::Reply(Reply::Integer(7))]);
    }

    #[test]
    fn claims_are_bounded_before_anything_is_allocated() {
        assert_eq!(all(b"$1048577\r\n"), Err(ProtocolError::TooLong));
        assert_eq!(all(b"*400000\r\n"), Err(ProtocolError::TooLong));
        assert_eq!(all(b"%9223372036854775807\r\n"), Err(ProtocolError::TooLong));
        assert_eq!(all(b"*18446744073709551616\r\n"), Err(ProtocolError::Number));
        assert_eq!(all(&b"*1\r\n".repeat(DEPTH_MAX + 1)), Err(ProtocolError::TooDeep));
        assert_eq!(all(&[b"+".as_slice(), &[b'x'; MAX + 1]].concat()), Err(ProtocolError::TooLong));
        assert_eq!(all(b":00000000000000000000000000000000000001"), Err(ProtocolError::TooLong));
    }

    #[test]
    fn a_push_inside_a_value_is_refused() {
        assert_eq!(all(b"*1\r\n>1\r\n:1\r\n"), Err(ProtocolError::Misplaced));
    }

    #[test]
    fn a_bare_line_feed_is_refused() {
        assert_eq!(all(b"+OK\n"), Err(ProtocolError::LineEnd));
        assert_eq!(all(b"+OK\rX"), Err(ProtocolError::LineEnd));
        // Seen even when the carriage return behind it has come already.
        assert_eq!(all(b"*\n\0\0\r"), Err(ProtocolError::LineEnd));
    }
}

//! One keep-alive connection of the load generator.

use std::io;

use bytes::BytesMut;
use shards::net::{ReadHalf, TcpStream, WriteHalf};

/// Longest answer taken: ours are far shorter.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const READ_BYTES: usize = 4096;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// The server will close.
    pub(super) closes: bool,
}

fn bad(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Takes an answer off the front of `buffer`; `None` while it is not all there. Only what our server sends is understood:
/// a chunked answer, or one without a length, is an error and not a guess.
pub(super) fn parse(buffer: &mut BytesMut) -> io::Result<Option<Answer>> {
    let Some(head_end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return if buffer.len() > ANSWER_BYTES_MAX { Err(bad("an endless head")) } else { Ok(None) };
    };
    let head = std::str::from_utf8(&buffer[..head_end]).map_err(|_| bad("a head that is not text"))?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse::<u16>().ok());
    let status = status.ok_or_else(|| bad("no status line"))?;
    let (mut length, mut closes) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("a header without a colon"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().map_err(|_| bad("a bad Content-Length"))?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(bad("a chunked answer"));
        }
    }
    let length = length.filter(|length| *length <= ANSWER_BYTES_MAX).ok_or_else(|| bad("no usable Content-Length"))?;
    let end = head_end + 4 + length;
    if buffer.len() < end {
        return Ok(None);
    }
    let answer = buffer.split_to(end);
    Ok(Some(Answer { status, body: answer[head_end + 4..].to_vec(), closes }))
}

/// A member's value in a flat JSON object of ours, as it is written.
pub(super) fn member<'a>(body: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(body).ok()?;
    let at = text.find(&format!("\"{name}\":"))? + name.len() + 3;
    let rest = &text[at..];
    match rest.strip_prefix('"') {
        Some(string) => string.split('"').next(),
        None => rest.split([',', '}']).next(),
    }
}

/// A connection that is made when it is needed.
pub(super) struct Connection {
    target: std::net::SocketAddr,
    open: Option<(ReadHalf, WriteHalf)>,
    input: BytesMut,
    output: BytesMut,
}

impl Connection {
    pub(super) fn new(target: std::net::SocketAddr) -> Self {
        Self { target, open: None, input: BytesMut::with_capacity(READ_BYTES), output: BytesMut::new() }
    }

    /// Sends a request and reads its answer. After an error the next call connects anew.
    pub(super) async fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        let result = self.exchange(request).await;
        if result.as_ref().map_or(true, |answer| answer.closes) {
            self.open = None;
            self.input.clear();
        }
        result
    }

    async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer> {
        if self.open.is_none() {
            self.open = Some(TcpStream::connect(self.target).await?.into_split());
        }
        let Some((read, write)) = &mut self.open else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        output.extend_from_slice(request);
        let (written, output) = write.write_all(output).await;
        self.output = output;
        written?;
        loop {
            if let Some(answer) = parse(&mut self.input)? {
                return Ok(answer);
            }
            self.input.reserve(READ_BYTES);
            let (received, input) = read.read(std::mem::take(&mut self.input)).await;
            self.input = input;
            if received? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\ncontent-length: 19\r\n\r\n{\"code\":\"SOLD_OUT\"}";

    #[test]
    fn an_answer_is_read_however_it_is_cut() {
        for cut in 0..ANSWER.len() {
            let mut buffer = BytesMut::from(&ANSWER[..cut]);
            assert_eq!(parse(&mut buffer).unwrap(), None, "{cut}");
            buffer.extend_from_slice(&ANSWER[cut..]);
            buffer.extend_from_slice(b"HTTP");
            let answer = parse(&mut buffer).unwrap().unwrap();
            assert_eq!((answer.status, member(&answer.body, "code"), answer.closes), (409, Some("SOLD_OUT"), false));
            assert_eq!(buffer.as_ref(), b"HTTP");
        }
    }

    #[test]
    fn what_cannot_be_framed_is_an_error() {
        for head in
            ["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "HTTP/1.1 200 OK", "HTTP/1.0 200 OK\r\nContent-Length: 0"]
        {
            assert!(parse(&mut BytesMut::from(format!("{head}\r\n\r\n").as_bytes())).is_err(), "{head}");
        }
    }

    #[test]
    fn members_are_found_in_both_forms() {
        let body = br#"{"order_id":12,"state":"QUEUED"}"#;
        assert_eq!(
            (member(body, "order_id"), member(body, "state"), member(body, "x")),
            (Some("12"), Some("QUEUED"), None)
        );
    }
}

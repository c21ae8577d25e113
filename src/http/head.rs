//! The request head: request line and fields (RFC 9112 sections 2 to 5), byte by byte and resumable at every byte.

use super::lexis::{self, HOST, TARGET, TOKEN, VALUE};
use super::parser::Limits;
use super::reject::Reject;
use super::request::{KNOWN, Known, Method, Slot, Span};

/// Longest method, in bytes; the longest registered one has 17.
const METHOD_BYTES_MAX: usize = 24;
const VERSION: &[u8; 5] = b"HTTP/";
/// `HTTP/1.1`, in bytes.
const VERSION_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Before the request line; empty lines are skipped (RFC 9112 section 2.2).
    #[default]
    Start,
    StartLf,
    Method,
    Target,
    Version,
    VersionLf,
    /// At the start of a line that is a field or the empty line.
    Line,
    Name,
    Value,
    ValueLf,
    EndLf,
}

/// How the body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Framing {
    #[default]
    Empty,
    Length(usize),
    Chunked,
}

/// What a head says; positions count from the start of the request.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    state: State,
    /// Where the element being read started.
    mark: usize,
    name: Span,
    target: Span,
    field_count: usize,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep: bool,
    pub(super) method: Method,
    pub(super) minor: u8,
    pub(super) path: Span,
    pub(super) query: Option<Span>,
    pub(super) expects_continue: bool,
    pub(super) known: [Slot; KNOWN],
}

impl Head {
    /// Whether nothing but empty lines was seen.
    pub(super) fn is_unbegun(&self) -> bool {
        matches!(self.state, State::Start | State::StartLf)
    }

    /// Whether the connection may carry another request after this one (RFC 9112 section 9.3).
    pub(super) fn keep_alive(&self) -> bool {
        !self.close && (self.minor > 0 || self.keep)
    }

    pub(super) fn slot(&self, known: Known) -> Slot {
        self.known[known as usize]
    }

    /// Reads on from `*pos`; the framing of the body once the empty line was read, `None` when bytes ran out.
    pub(super) fn advance(
        &mut self,
        bytes: &mut [u8],
        pos: &mut usize,
        limits: &Limits,
    ) -> Result<Option<Framing>, Reject> {
        let end = bytes.len().min(limits.head_bytes_max);
        while *pos < end {
            let byte = bytes[*pos];
            match self.state {
                State::Start => self.start(byte, *pos)?,
                State::StartLf => self.line_feed(byte, State::Start)?,
                State::Method => self.method(byte, bytes, *pos)?,
                State::Target => {
                    *pos += lexis::run(&bytes[*pos..end], TARGET);
                    if *pos - self.mark > limits.target_bytes_max {
                        return Err(Reject::TargetTooLong);
                    }
                    if *pos == end {
                        break;
                    }
                    self.target_end(bytes[*pos], *pos)?;
                }
                State::Version => self.version(byte, *pos)?,
                State::VersionLf => self.line_feed(byte, State::Line)?,
                State::Line => self.line(byte, *pos)?,
                State::Name => {
                    *pos += lexis::run(&bytes[*pos..end], TOKEN);
                    if *pos == end {
                        break;
                    }
                    self.name_end(bytes[*pos], *pos)?;
                }
                State::Value => {
                    *pos += lexis::run(&bytes[*pos..end], VALUE);
                    if *pos == end {
                        break;
                    }
                    self.value_end(bytes, *pos, limits)?;
                }
                State::ValueLf => self.line_feed(byte, State::Line)?,
                State::EndLf => {
                    self.line_feed(byte, State::Start)?;
                    *pos += 1;
                    return self.finish(bytes, limits).map(Some);
                }
            }
            *pos += 1;
        }
        if *pos >= limits.head_bytes_max { Err(Reject::HeadTooLarge) } else { Ok(None) }
    }

    fn line_feed(&mut self, byte: u8, next: State) -> Result<(), Reject> {
        if byte != b'\n' {
            return Err(Reject::Syntax("CR without LF"));
        }
        self.state = next;
        Ok(())
    }

    fn start(&mut self, byte: u8, pos: usize) -> Result<(), Reject> {
        self.state = match byte {
            b'\r' => State::StartLf,
            _ if lexis::is(byte, TOKEN) => State::Method,
            _ => return Err(Reject::Syntax("no method")),
        };
        self.mark = pos;
        Ok(())
    }

    fn method(&mut self, byte: u8, bytes: &[u8], pos: usize) -> Result<(), Reject> {
        if lexis::is(byte, TOKEN) && pos - self.mark < METHOD_BYTES_MAX {
            return Ok(());
        }
        if byte != b' ' {
            return Err(Reject::Syntax("bad method"));
        }
        self.method = Method::of(&bytes[self.mark..pos]);
        (self.state, self.mark) = (State::Target, pos + 1);
        Ok(())
    }

    fn target_end(&mut self, byte: u8, pos: usize) -> Result<(), Reject> {
        if byte != b' ' || pos == self.mark {
            return Err(Reject::Syntax("bad request target"));
        }
        self.target = Span::new(self.mark, pos);
        (self.state, self.mark) = (State::Version, pos + 1);
        Ok(())
    }

    fn version(&mut self, byte: u8, pos: usize) -> Result<(), Reject> {
        let at = pos - self.mark;
        let good = match at {
            0..5 => byte == VERSION[at],
            5 | 7 => byte.is_ascii_digit(),
            6 => byte == b'.',
            _ => byte == b'\r',
        };
        if !good {
            return Err(Reject::Syntax("bad protocol version"));
        }
        match at {
            5 if byte != b'1' => return Err(Reject::UnknownVersion),
            7 => self.minor = byte - b'0',
            VERSION_BYTES => self.state = State::VersionLf,
            _ => {}
        }
        Ok(())
    }

    fn line(&mut self, byte: u8, pos: usize) -> Result<(), Reject> {
        self.state = match byte {
            b'\r' => State::EndLf,
            b' ' | b'\t' => return Err(Reject::Syntax("folded field line")),
            _ if lexis::is(byte, TOKEN) => State::Name,
            _ => return Err(Reject::Syntax("bad field name")),
        };
        self.mark = pos;
        Ok(())
    }

    fn name_end(&mut self, byte: u8, pos: usize) -> Result<(), Reject> {
        if byte != b':' {
            return Err(Reject::Syntax("bad field name"));
        }
        self.name = Span::new(self.mark, pos);
        (self.state, self.mark) = (State::Value, pos + 1);
        Ok(())
    }

    fn value_end(&mut self, bytes: &[u8], pos: usize, limits: &Limits) -> Result<(), Reject> {
        if bytes[pos] != b'\r' {
            return Err(Reject::Syntax("bad character in a field value"));
        }
        self.field_count += 1;
        if self.field_count > limits.fields_max {
            return Err(Reject::HeadTooLarge);
        }
        let raw = &bytes[self.mark..pos];
        let lead = raw.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let value = lexis::trim(raw);
        let start = self.mark + lead.min(raw.len() - value.len());
        self.field(self.name.of(bytes), value, Span::new(start, start + value.len()), limits)?;
        self.state = State::ValueLf;
        Ok(())
    }

    fn field(&mut self, name: &[u8], value: &[u8], span: Span, limits: &Limits) -> Result<(), Reject> {
        if limits.user_field.as_deref().is_some_and(|user| name.eq_ignore_ascii_case(user.as_bytes())) {
            self.known[Known::User as usize].fill(span);
        }
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is(b"host") => self.host(value, span)?,
            6 if is(b"expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Reject::UnknownExpectation);
                }
                self.expects_continue = true;
            }
            10 if is(b"connection") => {
                for option in lexis::members(value) {
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            10 if is(b"tracestate") => self.known[Known::Tracestate as usize].fill(span),
            11 if is(b"traceparent") => self.known[Known::Traceparent as usize].fill(span),
            12 if is(b"content-type") => self.known[Known::ContentType as usize].fill(span),
            13 if is(b"authorization") => self.known[Known::Authorization as usize].fill(span),
            14 if is(b"content-length") => {
                let length = lexis::content_length(value)?;
                if self.length.replace(length).is_some() {
                    return Err(Reject::Syntax("Content-Length is repeated"));
                }
            }
            15 if is(b"idempotency-key") => self.known[Known::IdempotencyKey as usize].fill(span),
            17 if is(b"transfer-encoding") => {
                lexis::transfer_encoding(value)?;
                if std::mem::replace(&mut self.chunked, true) {
                    return Err(Reject::Syntax("Transfer-Encoding is repeated"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn host(&mut self, value: &[u8], span: Span) -> Result<(), Reject> {
        let slot = &mut self.known[Known::Host as usize];
        slot.fill(span);
        if *slot == Slot::Repeated || lexis::run(value, HOST) != value.len() {
            return Err(Reject::Syntax("bad or repeated Host"));
        }
        Ok(())
    }

    /// Decides what only the whole head can tell.
    fn finish(&mut self, bytes: &mut [u8], limits: &Limits) -> Result<Framing, Reject> {
        if self.minor > 0 && self.slot(Known::Host) == Slot::Missing {
            return Err(Reject::Syntax("no Host"));
        }
        if self.chunked && (self.length.is_some() || self.minor == 0) {
            return Err(Reject::Syntax("Transfer-Encoding with Content-Length or in HTTP/1.0"));
        }
        // An HTTP/1.0 client cannot read an interim answer (RFC 9110 section 10.1.1).
        self.expects_continue &= self.minor > 0;
        let (path, query) = lexis::target(bytes, self.target.bounds(), self.method == Method::Options)?;
        self.path = Span::new(path.0, path.1);
        self.query = query.map(|(start, end)| Span::new(start, end));
        if self.chunked {
            return Ok(Framing::Chunked);
        }
        match self.length.unwrap_or(0) {
            0 => Ok(Framing::Empty),
            length => match usize::try_from(length) {
                Ok(length) if length <= limits.body_bytes_max => Ok(Framing::Length(length)),
                _ => Err(Reject::BodyTooLarge),
            },
        }
    }
}

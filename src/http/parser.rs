//! A request parser without I/O: bytes in, requests out.
//!
//! It remembers where it stopped, so bytes are looked at once however they arrive. It works inside the caller's
//! buffer: chunked bodies are put together and escaped paths decoded where they stand.

use std::rc::Rc;

use bytes::BytesMut;

use super::chunked::Chunked;
use super::head::{Framing, Head};
use super::reject::Reject;
use super::request::Request;

/// What a request may be at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of request line and fields together.
    pub head_bytes_max: usize,
    /// Fields of one head.
    pub fields_max: usize,
    /// Bytes of the request target.
    pub target_bytes_max: usize,
    /// Bytes of the decoded body.
    pub body_bytes_max: usize,
    /// The field in which a trusted gateway names the user, in any case.
    pub user_field: Option<String>,
}

/// What [`Parser::advance`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All bytes are taken in and the request is not complete.
    NeedMore,
    /// The client waits for `100 Continue` before it sends the body. Said once; call again with more bytes.
    SendContinue,
    /// [`Parser::request`] has a request; what follows from [`Parser::consumed`] on belongs to the next.
    Complete,
}

/// Which part of a request is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nothing of a request was seen yet, save empty lines.
    Nothing,
    /// The head has begun.
    Head,
    /// The head is complete, the body is not.
    Body,
}

#[derive(Debug, Clone)]
enum Body {
    /// The head is still being read.
    None,
    Length {
        start: usize,
        end: usize,
    },
    Chunked(Chunked),
}

/// Reads one request after another from the start of a buffer.
#[derive(Debug, Clone)]
pub struct Parser {
    limits: Rc<Limits>,
    head: Head,
    body: Body,
    /// Everything before it was looked at.
    pos: usize,
    asked_to_continue: bool,
}

impl Parser {
    /// A parser at the start of a request.
    pub fn new(limits: Rc<Limits>) -> Self {
        Self { limits, head: Head::default(), body: Body::None, pos: 0, asked_to_continue: false }
    }

    /// Reads on. `bytes` starts where the request starts and holds everything since, old and new.
    ///
    /// # Errors
    /// The request must be refused and the connection closed; nothing behind it may be read as a request.
    pub fn advance(&mut self, bytes: &mut [u8]) -> Result<Step, Reject> {
        if matches!(self.body, Body::None) {
            let Some(framing) = self.head.advance(bytes, &mut self.pos, &self.limits)? else {
                return Ok(Step::NeedMore);
            };
            let start = self.pos;
            self.body = match framing {
                Framing::Empty => Body::Length { start, end: start },
                Framing::Length(length) => Body::Length { start, end: start + length },
                Framing::Chunked => Body::Chunked(Chunked::new(start)),
            };
        }
        let complete = match &mut self.body {
            Body::None => false,
            Body::Length { end, .. } => {
                self.pos = bytes.len().min(*end);
                self.pos == *end
            }
            Body::Chunked(chunked) => chunked.advance(bytes, &mut self.pos, &self.limits)?,
        };
        if complete {
            return Ok(Step::Complete);
        }
        // Somebody who has begun to send the body does not wait.
        let silent = match &self.body {
            Body::Length { start, .. } => self.pos == *start,
            Body::Chunked(chunked) => self.pos == chunked.start,
            Body::None => false,
        };
        let asks = silent && self.head.expects_continue && !std::mem::replace(&mut self.asked_to_continue, true);
        Ok(if asks { Step::SendContinue } else { Step::NeedMore })
    }

    /// What it waits for.
    pub fn part(&self) -> Part {
        match self.body {
            Body::None if self.head.is_unbegun() => Part::Nothing,
            Body::None => Part::Head,
            _ => Part::Body,
        }
    }

    /// The request, after [`Step::Complete`]; `bytes` as in that call.
    pub fn request<'a>(&'a self, bytes: &'a [u8]) -> Request<'a> {
        let (start, end) = match &self.body {
            Body::None => (0, 0),
            Body::Length { start, end } => (*start, *end),
            Body::Chunked(chunked) => (chunked.start, chunked.end),
        };
        Request::new(bytes, &self.head, &bytes[start..end])
    }

    /// How many bytes were looked at; after [`Step::Complete`], the length of the request.
    pub fn consumed(&self) -> usize {
        self.pos
    }

    /// Whether the connection may go on after this request, as far as the client is concerned.
    pub fn keep_alive(&self) -> bool {
        self.head.keep_alive()
    }

    /// Makes ready for the next request.
    pub fn reset(&mut self) {
        self.head = Head::default();
        self.body = Body::None;
        self.pos = 0;
        self.asked_to_continue = false;
    }

    /// Cuts chunk framing that was read already out of `buffer`, in which the request starts at `start`, so that
    /// small chunks do not make the buffer grow.
    pub fn compact(&mut self, buffer: &mut BytesMut, start: usize) {
        let Body::Chunked(chunked) = &self.body else { return };
        let (end, pos, len) = (start + chunked.end, start + self.pos, buffer.len());
        if end < pos {
            buffer.copy_within(pos..len, end);
            buffer.truncate(len - (pos - end));
            self.pos = chunked.end;
        }
    }
}

//! The chunked coding (RFC 9112 section 7.1): chunks are moved together in place, extensions and trailers dropped.

use super::lexis::{self, TOKEN, VALUE};
use super::parser::Limits;
use super::reject::Reject;

/// Digits of a chunk size, leading zeros among them.
const SIZE_DIGITS_MAX: usize = 16;
/// Bytes of all chunk extensions of one message.
const EXTENSION_BYTES_MAX: usize = 1024;
/// Bytes of the trailer section.
const TRAILER_BYTES_MAX: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerLine,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
}

/// A chunked body being read.
#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: State,
    /// Size of the chunk being read, then what is left of it.
    size: usize,
    digits: usize,
    extension_here: bool,
    extension_bytes: usize,
    trailer_bytes: usize,
    /// Where the decoded body starts and ends, from the start of the request.
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Chunked {
    /// A body whose first chunk size stands at `pos`.
    pub(super) fn new(pos: usize) -> Self {
        Self {
            state: State::Size,
            size: 0,
            digits: 0,
            extension_here: false,
            extension_bytes: 0,
            trailer_bytes: 0,
            start: pos,
            end: pos,
        }
    }

    /// Reads on from `*pos`; true once the last trailer line was read.
    pub(super) fn advance(&mut self, bytes: &mut [u8], pos: &mut usize, limits: &Limits) -> Result<bool, Reject> {
        while let Some(&byte) = bytes.get(*pos) {
            match self.state {
                State::Size => self.size(byte, limits)?,
                State::Extension => self.extension(byte)?,
                State::SizeLf => {
                    let next = if self.size == 0 { State::TrailerLine } else { State::Data };
                    self.expect(byte, b'\n', next)?;
                }
                State::Data => {
                    let count = self.size.min(bytes.len() - *pos);
                    bytes.copy_within(*pos..*pos + count, self.end);
                    self.end += count;
                    self.size -= count;
                    *pos += count;
                    if self.size == 0 {
                        self.state = State::DataCr;
                    }
                    continue;
                }
                State::DataCr => self.expect(byte, b'\r', State::DataLf)?,
                State::DataLf => {
                    self.expect(byte, b'\n', State::Size)?;
                    self.digits = 0;
                }
                State::EndLf => {
                    self.expect(byte, b'\n', State::Size)?;
                    *pos += 1;
                    return Ok(true);
                }
                State::TrailerLine | State::TrailerName | State::TrailerValue | State::TrailerLf => {
                    self.trailer(byte)?;
                }
            }
            *pos += 1;
        }
        Ok(false)
    }

    fn expect(&mut self, byte: u8, wanted: u8, next: State) -> Result<(), Reject> {
        if byte != wanted {
            return Err(Reject::Syntax("bad chunk"));
        }
        self.state = next;
        Ok(())
    }

    fn size(&mut self, byte: u8, limits: &Limits) -> Result<(), Reject> {
        if let Some(digit) = lexis::hex(byte) {
            self.digits += 1;
            if self.digits > SIZE_DIGITS_MAX {
                return Err(Reject::Syntax("chunk size too long"));
            }
            // Checked at every digit, so `size` stays far from overflow.
            self.size = self.size * 16 + usize::from(digit);
            if self.size > limits.body_bytes_max - (self.end - self.start) {
                return Err(Reject::BodyTooLarge);
            }
            return Ok(());
        }
        self.state = match byte {
            b'\r' if self.digits > 0 => State::SizeLf,
            b';' if self.digits > 0 => State::Extension,
            _ => return Err(Reject::Syntax("bad chunk size")),
        };
        self.extension_here = false;
        Ok(())
    }

    fn extension(&mut self, byte: u8) -> Result<(), Reject> {
        if byte == b'\r' && self.extension_here {
            self.state = State::SizeLf;
            return Ok(());
        }
        self.extension_bytes += 1;
        self.extension_here = true;
        if lexis::is(byte, VALUE) && self.extension_bytes <= EXTENSION_BYTES_MAX {
            return Ok(());
        }
        Err(Reject::Syntax("bad chunk extension"))
    }

    fn trailer(&mut self, byte: u8) -> Result<(), Reject> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(Reject::HeadTooLarge);
        }
        self.state = match (self.state, byte) {
            (State::TrailerLine, b'\r') => State::EndLf,
            (State::TrailerLine | State::TrailerName, _) if lexis::is(byte, TOKEN) => State::TrailerName,
            (State::TrailerName, b':') => State::TrailerValue,
            (State::TrailerValue, b'\r') => State::TrailerLf,
            (State::TrailerValue, _) if lexis::is(byte, VALUE) => State::TrailerValue,
            (State::TrailerLf, b'\n') => State::TrailerLine,
            _ => return Err(Reject::Syntax("bad trailer")),
        };
        Ok(())
    }
}

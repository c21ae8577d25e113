//! Commands: RESP arrays of bulk strings, encoded as they are built.

use bytes::{BufMut, Bytes, BytesMut};

/// One command, encoded. The number of arguments is announced first, so it has to be known when it is begun.
#[derive(Debug, Clone)]
pub struct Command {
    bytes: BytesMut,
    missing: usize,
}

/// Room for the usual command without growing.
const USUAL_BYTES: usize = 256;

/// The digits of a number, without an allocation.
struct Decimal {
    text: [u8; 21],
    at: usize,
}

impl Decimal {
    fn new(value: u64, negative: bool) -> Self {
        let (mut text, mut at, mut rest) = ([0u8; 21], 21, value);
        loop {
            at -= 1;
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if negative {
            at -= 1;
            text[at] = b'-';
        }
        Self { text, at }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[self.at..]
    }
}

impl Command {
    /// Begins a command that takes `args` more arguments.
    pub fn new(name: &str, args: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(USUAL_BYTES + 48 * args);
        bytes.put_u8(b'*');
        bytes.put_slice(Decimal::new(args as u64 + 1, false).as_bytes());
        bytes.put_slice(b"\r\n");
        let mut command = Self { bytes, missing: args + 1 };
        command.arg(name.as_bytes());
        command
    }

    /// Adds a binary-safe argument.
    pub fn arg(&mut self, value: &[u8]) -> &mut Self {
        debug_assert!(self.missing > 0, "more arguments than were announced");
        self.missing = self.missing.saturating_sub(1);
        self.bytes.put_u8(b'$');
        self.bytes.put_slice(Decimal::new(value.len() as u64, false).as_bytes());
        self.bytes.put_slice(b"\r\n");
        self.bytes.put_slice(value);
        self.bytes.put_slice(b"\r\n");
        self
    }

    /// Adds a number in decimal.
    pub fn arg_u64(&mut self, value: u64) -> &mut Self {
        self.arg(Decimal::new(value, false).as_bytes())
    }

    /// Adds a number in decimal.
    pub fn arg_i64(&mut self, value: i64) -> &mut Self {
        self.arg(Decimal::new(value.unsigned_abs(), value < 0).as_bytes())
    }

    /// The bytes to send. A command that lacks announced arguments would shift everything behind it on the connection,
    /// so it is refused.
    pub(crate) fn finish(self) -> Option<Bytes> {
        (self.missing == 0).then(|| self.bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_bulk_strings() {
        let mut command = Command::new("SET", 2);
        command.arg(b"k\r\n").arg_i64(i64::MIN);
        assert_eq!(
            command.finish().unwrap(),
            b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$20\r\n-9223372036854775808\r\n".as_slice()
        );
        let mut command = Command::new("INCRBY", 2);
        command.arg(b"").arg_u64(0);
        assert_eq!(command.finish().unwrap(), b"*3\r\n$6\r\nINCRBY\r\n$0\r\n\r\n$1\r\n0\r\n".as_slice());
    }

    #[test]
    fn a_command_without_all_its_arguments_is_not_sent() {
        assert_eq!(Command::new("GET", 1).finish(), None);
    }
}

//! Replies: RESP2 and RESP3 values over the bytes they came in.

use bytes::Bytes;

/// A value. Texts are slices of the read buffer, not copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+`
    Simple(Bytes),
    /// `-` and `!`, also as an element of an aggregate.
    Error(ServerError),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Bytes),
    /// `$-1`, `*-1`, `_`
    Nil,
    /// `*`
    Array(Vec<Reply>),
    /// `%`
    Map(Vec<(Reply, Reply)>),
    /// `~`
    Set(Vec<Reply>),
    /// `,` as the server wrote it: a number, `inf`, `-inf` or `nan`.
    Double(Bytes),
    /// `#`
    Bool(bool),
    /// `(` as the server wrote it.
    BigNumber(Bytes),
    /// `=`
    Verbatim {
        /// Three characters, `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: Bytes,
    },
}

impl Reply {
    /// The bytes of a text.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(text) | Self::Bulk(text) | Self::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// A text that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// An integer.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// The elements of an array or set.
    pub fn as_array(&self) -> Option<&[Reply]> {
        match self {
            Self::Array(items) | Self::Set(items) => Some(items),
            _ => None,
        }
    }

    /// Whether it is the null of either protocol.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServerError {
    /// What its first word says.
    pub kind: ErrorKind,
    /// The whole line.
    pub message: String,
}

/// The first word of an error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// NOSCRIPT: the script cache does not hold it.
    NoScript,
    /// READONLY: this is a replica now.
    ReadOnly,
    /// LOADING: the data set is being read.
    Loading,
    /// MASTERDOWN: a replica without its master.
    MasterDown,
    /// MOVED: another node owns the slot.
    Moved {
        /// The slot.
        slot: u16,
        /// `host:port` of its owner.
        addr: String,
    },
    /// ASK: the slot is on its way to another node.
    Ask {
        /// The slot.
        slot: u16,
        /// `host:port` to ask once.
        addr: String,
    },
    /// CLUSTERDOWN
    ClusterDown,
    /// TRYAGAIN: a slot is being moved.
    TryAgain,
    /// BUSY: a script runs too long.
    Busy,
    /// OOM: over `maxmemory`; nothing was done.
    Oom,
    /// NOAUTH and NOPERM
    NoAuth,
    /// WRONGPASS
    WrongPass,
    /// Anything else, scripts' own errors among them.
    Other,
}

impl ServerError {
    /// Reads an error line, without its type byte and line end.
    pub fn parse(line: &[u8]) -> Self {
        let message = String::from_utf8_lossy(line).into_owned();
        let mut words = message.split(' ');
        let first = words.next().unwrap_or_default();
        let mut redirect = || {
            let slot = words.next()?.parse().ok()?;
            let addr = words.next()?.to_owned();
            addr.rsplit_once(':')?.1.parse::<u16>().ok()?;
            Some((slot, addr))
        };
        let kind = match first {
            "NOSCRIPT" => ErrorKind::NoScript,
            "READONLY" => ErrorKind::ReadOnly,
            "LOADING" => ErrorKind::Loading,
            "MASTERDOWN" => ErrorKind::MasterDown,
            "CLUSTERDOWN" => ErrorKind::ClusterDown,
            "TRYAGAIN" => ErrorKind::TryAgain,
            "BUSY" => ErrorKind::Busy,
            "OOM" => ErrorKind::Oom,
            "NOAUTH" | "NOPERM" => ErrorKind::NoAuth,
            "WRONGPASS" => ErrorKind::WrongPass,
            "MOVED" => redirect().map_or(ErrorKind::Other, |(slot, addr)| ErrorKind::Moved { slot, addr }),
            "ASK" => redirect().map_or(ErrorKind::Other, |(slot, addr)| ErrorKind::Ask { slot, addr }),
            _ => ErrorKind::Other,
        };
        Self { kind, message }
    }

    /// Whether the server behind this connection will go on saying so, so that a new one should be dialled.
    pub fn wants_new_connection(&self) -> bool {
        matches!(self.kind, ErrorKind::ReadOnly | ErrorKind::Loading | ErrorKind::MasterDown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_the_class() {
        let kind = |line: &str| ServerError::parse(line.as_bytes()).kind;
        assert_eq!(kind("READONLY You can't write against a read only replica."), ErrorKind::ReadOnly);
        assert_eq!(
            kind("MOVED 3999 127.0.0.1:6381"),
            ErrorKind::Moved { slot: 3999, addr: "127.0.0.1:6381".to_owned() }
        );
        assert_eq!(kind("MOVED 3999"), ErrorKind::Other);
        assert_eq!(kind("MOVED 99999 127.0.0.1:6381"), ErrorKind::Other);
        assert_eq!(kind("READONLYISH"), ErrorKind::Other);
        assert_eq!(kind(""), ErrorKind::Other);
    }
}

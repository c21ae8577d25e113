//! Why a call has no reply: not sent, or unknown, or refused by the server.

use super::{ProtocolError, ServerError};

/// Why there is no value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The server has not seen the command.
    #[error("not sent: {0}")]
    NotSent(#[from] NotSent),
    /// The server may have run the command.
    #[error("outcome unknown: {0}")]
    Unknown(#[from] Unknown),
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl CallError {
    /// Whether the command may have had its effect although no reply says so.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// Why a command was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// No connection had room within the wait allowed.
    #[error("no connection had room in time")]
    PoolWait,
    /// No connection can be made.
    #[error("cannot connect: {0}")]
    Dial(String),
    /// The server does not let us in.
    #[error("the server refused the log-in: {0}")]
    Refused(String),
    /// The deadline passed first.
    #[error("the deadline passed")]
    Deadline,
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The command lacks arguments it announced.
    #[error("the command is not complete")]
    Incomplete,
}

/// Why the outcome of a command is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The deadline passed after the command had left.
    #[error("the deadline passed")]
    Deadline,
    /// The connection broke, or was given up because its replies came too late.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The server sent bytes that are no RESP.
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
}

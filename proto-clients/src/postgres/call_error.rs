//! Why a call has no result: not sent, or unknown, or refused by the server.

use super::PgError;
use super::message::ProtocolError;
use super::startup::StartupError;

/// Why there is no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The server has not seen it.
    #[error("not sent: {0}")]
    NotSent(#[from] NotSent),
    /// The server may have done it.
    #[error("outcome unknown: {0}")]
    Unknown(#[from] Unknown),
    /// The server refused it.
    #[error(transparent)]
    Server(#[from] Box<PgError>),
}

/// Why something was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// No connection was free within the wait allowed.
    #[error("no connection was free in time")]
    PoolWait,
    /// No connection can be made.
    #[error("cannot connect: {0}")]
    Dial(String),
    /// The log-in failed.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// The deadline passed first.
    #[error("the deadline passed")]
    Deadline,
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
    /// The connection had ended before anything was sent on it.
    #[error("the connection had ended")]
    ConnectionEnded,
}

/// Why an outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The deadline passed after it had left; the server has been asked to cancel it.
    #[error("the deadline passed")]
    Deadline,
    /// The connection broke.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The server sent what it must not.
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
}

/// Why a pipeline was undone.
#[derive(Debug, Clone, thiserror::Error)]
#[error("statement {index}: {error}")]
pub struct PipelineError {
    /// Which statement failed, from 0; the ones behind it were not run.
    pub index: usize,
    /// Why.
    pub error: CallError,
}

/// Why a transaction is not known to be committed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// COMMIT was answered with the tag ROLLBACK: nothing was stored.
    #[error("COMMIT was answered with ROLLBACK: the transaction had failed")]
    RolledBack,
    /// [`CallError::Unknown`]: it may be committed. Anything else: it is not.
    #[error(transparent)]
    Call(#[from] CallError),
}

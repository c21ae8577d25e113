//! Whether anybody still waits for the answer.

use shards::sync::Gate;

/// Tells a handler that the client went away while it works: a read has met the end of the stream or an error.
///
/// A client that has closed its connection and one that has only shut down its sending side look the same until
/// something is sent to them. So this is a hint that waiting for the rest of the work may be pointless; what the
/// handler answers is sent in any case, and reaches a client that still reads.
///
/// Nothing is noticed while more pipelined requests than may be read ahead wait behind this one.
#[derive(Debug, Clone, Default)]
pub struct ClientGone {
    gate: Gate,
}

impl ClientGone {
    /// A client that is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes when the client went away.
    pub async fn closed(&self) {
        self.gate.closed().await;
    }

    /// Whether the client went away.
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// The same as a gate that closes when the client goes.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(super) fn close(&self) {
        self.gate.close();
    }
}

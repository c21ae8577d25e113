//! One script call, with its time and result counted and its failure in the words of the ports.

use std::rc::Rc;
use std::time::Instant;

use proto_clients::redis::{CallError, Command, ErrorKind, NotSent, Pool, Reply, Script, Unknown};

use super::scripts::Scripts;
use crate::observe::metrics::{CallResult, Metrics, RedisOperation};
use crate::ports::PortError;

/// Redis as the services of one shard see it.
#[derive(Clone)]
pub(super) struct Redis {
    pub(super) pool: Pool,
    pub(super) scripts: Rc<Scripts>,
    pub(super) metrics: Rc<Metrics>,
}

impl Redis {
    /// Runs a script and counts it.
    pub(super) async fn eval(
        &self,
        operation: RedisOperation,
        script: &Script,
        command: Command,
        deadline: Instant,
    ) -> Result<Reply, PortError> {
        let started = shards::now();
        let result = self.pool.eval(script, command, deadline).await.map_err(|error| port_error(operation, &error));
        let label = match &result {
            Ok(_) => CallResult::Ok,
            Err(PortError::Timeout | PortError::Unknown) => CallResult::Timeout,
            Err(PortError::Unavailable | PortError::Overloaded) => CallResult::Unavailable,
            Err(PortError::Internal) => CallResult::Refused,
        };
        self.metrics.redis(operation, label, shards::now() - started);
        result
    }
}

fn port_error(operation: RedisOperation, error: &CallError) -> PortError {
    match error {
        CallError::NotSent(NotSent::Deadline) => PortError::Timeout,
        CallError::NotSent(_) => PortError::Unavailable,
        CallError::Unknown(Unknown::Deadline) => PortError::Timeout,
        CallError::Unknown(_) => PortError::Unknown,
        CallError::Server(error) => {
            let operation = RedisOperation::TEXTS[operation as usize];
            tracing::warn!(operation, kind = ?error.kind, message = error.message, "Redis refused a call");
            match error.kind {
                // The server did not run the script.
                ErrorKind::Loading
                | ErrorKind::ReadOnly
                | ErrorKind::MasterDown
                | ErrorKind::ClusterDown
                | ErrorKind::TryAgain
                | ErrorKind::Moved { .. }
                | ErrorKind::Ask { .. }
                | ErrorKind::Busy
                | ErrorKind::Oom
                | ErrorKind::NoAuth
                | ErrorKind::WrongPass => PortError::Unavailable,
                _ => PortError::Internal,
            }
        }
    }
}

/// Reads `{codes, refused, ..}`, the reply of every marking script: one code an item.
pub(super) fn codes(reply: &Reply, items: usize) -> Result<(&[u8], u64), PortError> {
    let fields = reply.as_array().unwrap_or_default();
    let (Some(codes), Some(refused)) =
        (fields.first().and_then(Reply::as_bytes), fields.get(1).and_then(Reply::as_i64))
    else {
        tracing::error!(?reply, "a script's reply has another shape than its header says");
        return Err(PortError::Internal);
    };
    if codes.len() != items {
        tracing::error!(items, codes = codes.len(), "a script answered another number of items");
        return Err(PortError::Internal);
    }
    Ok((codes, u64::try_from(refused).unwrap_or(0)))
}

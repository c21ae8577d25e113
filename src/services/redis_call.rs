//! One script call, with its time and result counted and its failure in the words of the ports.

use std::rc::Rc;
use std::time::Instant;

use proto_clients::redis::{CallError, Command, ErrorKind, NotSent, Pool, Reply, Script, Unknown};

use super::Shared;
use super::scripts::Scripts;
use crate::observe::metrics::{CallResult, Metrics, RedisOperation};
use crate::ports::PortError;
use crate::resilience::{Blame, Guard, Open};

/// Redis as the services of one shard see it.
#[derive(Clone)]
pub(super) struct Redis {
    pub(super) pool: Pool,
    pub(super) scripts: Rc<Scripts>,
    pub(super) metrics: Rc<Metrics>,
    pub(super) guard: Rc<Guard>,
}

impl Redis {
    /// Redis through `pool`.
    pub(super) fn new(pool: Pool, shared: &Shared) -> Self {
        let (scripts, metrics, guard) = (shared.scripts.clone(), shared.metrics.clone(), shared.guards.redis.clone());
        Self { pool, scripts, metrics, guard }
    }

    /// Runs a script and counts it. [`PortError::Unavailable`] at once while the breaker is open.
    pub(super) async fn eval(
        &self,
        operation: RedisOperation,
        script: &Script,
        command: Command,
        deadline: Instant,
    ) -> Result<Reply, PortError> {
        let started = shards::now();
        let result = match self.guard.call(self.pool.eval(script, command, deadline), blame).await {
            Ok(result) => result.map_err(|error| port_error(operation, &error)),
            Err(Open) => Err(PortError::Unavailable),
        };
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

fn blame(error: &CallError) -> Blame {
    match error {
        CallError::NotSent(NotSent::PoolWait | NotSent::Closed | NotSent::Incomplete) => Blame::Nobody,
        CallError::NotSent(_) | CallError::Unknown(_) => Blame::Dependency,
        CallError::Server(error) if did_not_run(&error.kind) => Blame::Dependency,
        CallError::Server(_) => Blame::Caller,
    }
}

/// Answers with which the server says that it has not run the script.
fn did_not_run(kind: &ErrorKind) -> bool {
    matches!(
        kind,
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
            | ErrorKind::WrongPass
    )
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
            if did_not_run(&error.kind) { PortError::Unavailable } else { PortError::Internal }
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

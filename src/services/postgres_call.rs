//! One statement of PostgreSQL, through the guard, its failure in the words of the ports.

use std::rc::Rc;
use std::time::Instant;

use proto_clients::postgres::{CallError, ErrorClass, NotSent, Params, Pool, Rows, Statement, Unknown};

use super::Shared;
use crate::ports::PortError;
use crate::resilience::{Blame, Guard, Open};

/// PostgreSQL as the services of one shard see it.
pub(super) struct Postgres {
    pool: Pool,
    guard: Rc<Guard>,
}

impl Postgres {
    /// PostgreSQL through `pool`.
    pub(super) fn new(pool: Pool, shared: &Shared) -> Self {
        Self { pool, guard: shared.guards.postgres.clone() }
    }

    /// Runs one statement. [`PortError::Unavailable`] at once while the breaker is open.
    pub(super) async fn query(
        &self,
        statement: &'static Statement,
        params: &Params,
        deadline: Instant,
    ) -> Result<Rows, PortError> {
        self.call(async { self.pool.acquire(deadline).await?.query(statement, params, deadline).await }).await
    }

    /// The same for whatever `call` does with the [`pool`](Self::pool).
    pub(super) async fn call<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, PortError> {
        let result = self.guard.call(call, blame).await.map_err(|Open| PortError::Unavailable)?;
        result.map_err(|error| port_error(&error))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }
}

fn blame(error: &CallError) -> Blame {
    match error {
        CallError::NotSent(NotSent::PoolWait | NotSent::Closed) => Blame::Nobody,
        CallError::NotSent(_) | CallError::Unknown(_) => Blame::Dependency,
        CallError::Server(server) => match server.sqlstate.class() {
            ErrorClass::Unavailable | ErrorClass::Timeout | ErrorClass::Auth => Blame::Dependency,
            _ => Blame::Caller,
        },
    }
}

fn port_error(error: &CallError) -> PortError {
    tracing::warn!(%error, "PostgreSQL call failed");
    match error {
        CallError::NotSent(NotSent::Deadline) | CallError::Unknown(Unknown::Deadline) => PortError::Timeout,
        CallError::NotSent(_) => PortError::Unavailable,
        CallError::Unknown(_) => PortError::Unknown,
        CallError::Server(server) => match server.sqlstate.class() {
            ErrorClass::Unavailable | ErrorClass::Retry | ErrorClass::Auth => PortError::Unavailable,
            ErrorClass::Timeout => PortError::Timeout,
            _ => PortError::Internal,
        },
    }
}

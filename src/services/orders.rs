//! The order store in PostgreSQL (spec section 5; `sql/order/README.md` is the transaction in full).

mod batch;
mod single;
mod statements;

use std::rc::Rc;
use std::time::Instant;

use proto_clients::postgres::{CallError, ErrorClass, NotSent, Params, Pool, SqlState};

use super::Shared;
use super::postgres_call::Postgres;
use crate::domain::{OrderOutcome, RejectReason};
use crate::observe::metrics::{Metrics, Processed, TxRetry};
use crate::ports::{AttemptRow, OrderError, OrderMessage, Orders, PortError, QuarantineRow};
use crate::resilience::{Guard, Open};

/// [`Orders`] of one shard over PostgreSQL.
pub struct PostgresOrders {
    /// For order transactions only: nothing else may take these connections (spec section 7).
    orders: Postgres,
    /// For quarantine and the attempt log.
    side: Postgres,
    topic: String,
    group: String,
    worker: String,
    metrics: Rc<Metrics>,
    guard: Rc<Guard>,
}

impl PostgresOrders {
    /// A store over two pools; `worker` names this shard in the attempt log (64 bytes at most).
    pub fn new(orders: Pool, side: Pool, topic: String, group: String, worker: String, shared: &Shared) -> Self {
        let (metrics, guard) = (shared.metrics.clone(), shared.guards.postgres.clone());
        let postgres = |pool| Postgres::new(pool, shared);
        Self { orders: postgres(orders), side: postgres(side), topic, group, worker, metrics, guard }
    }

    /// Settles each message in a transaction of its own: what [`Orders::settle`] falls back to.
    pub async fn settle_each(
        &self,
        messages: &[OrderMessage<'_>],
        deadline: Instant,
    ) -> Vec<Result<OrderOutcome, OrderError>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            let started = shards::now();
            let outcome = self.settle_one(message, deadline).await;
            self.observe(&outcome, started);
            outcomes.push(outcome);
        }
        outcomes
    }

    async fn settle_together(
        &self,
        messages: &[OrderMessage<'_>],
        deadline: Instant,
    ) -> Vec<Result<OrderOutcome, OrderError>> {
        let started = shards::now();
        self.metrics.pg_tx_batch.observe(messages.len() as f64);
        match self.settle_batch(messages, deadline).await {
            Ok(Some(outcomes)) => {
                let outcomes: Vec<_> = outcomes.into_iter().map(Ok).collect();
                outcomes.iter().for_each(|outcome| self.observe(outcome, started));
                outcomes
            }
            Ok(None) => {
                self.metrics.pg_tx_fallback.inc();
                self.settle_each(messages, deadline).await
            }
            Err(error) => messages.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn observe(&self, outcome: &Result<OrderOutcome, OrderError>, started: Instant) {
        let label = match outcome {
            Ok(OrderOutcome::Created) => Processed::Created,
            Ok(OrderOutcome::DuplicateCreated { .. } | OrderOutcome::DuplicateRejected(_)) => Processed::Duplicate,
            Ok(OrderOutcome::Rejected(_)) => Processed::Rejected,
            Ok(OrderOutcome::MessageIdReused) => Processed::Quarantined,
            Err(_) => Processed::Failed,
        };
        self.metrics.pg_tx_duration[label as usize].observe_duration(shards::now() - started);
    }

    /// A transaction that the server wants to be run again.
    fn count_conflict(&self, sqlstate: SqlState) {
        let kind = match sqlstate.as_str() {
            "40001" => TxRetry::Serialization,
            "40P01" => TxRetry::Deadlock,
            _ => TxRetry::Other,
        };
        self.metrics.pg_tx_retries[kind as usize].inc();
    }

    /// What a failed transaction means for its messages.
    fn order_error(&self, error: &CallError) -> OrderError {
        let text = error.to_string();
        match error {
            // Not the server's fault: our own pool has no connection free.
            CallError::NotSent(NotSent::PoolWait) => OrderError::Transient(text),
            CallError::NotSent(_) => OrderError::Unavailable(text),
            // Perhaps committed: the same ids again find out (spec section 5).
            CallError::Unknown(_) => {
                self.metrics.pg_commit_unknown.inc();
                self.metrics.pg_tx_retries[TxRetry::Connection as usize].inc();
                OrderError::Unanswered(text)
            }
            CallError::Server(server) => match server.sqlstate.class() {
                ErrorClass::Retry => {
                    self.count_conflict(server.sqlstate);
                    OrderError::Transient(text)
                }
                ErrorClass::Timeout => {
                    self.metrics.pg_tx_retries[TxRetry::Other as usize].inc();
                    OrderError::Unanswered(text)
                }
                ErrorClass::Unavailable => {
                    self.metrics.pg_tx_retries[TxRetry::Connection as usize].inc();
                    OrderError::Unavailable(text)
                }
                _ => OrderError::Internal(text),
            },
        }
    }

    async fn acquire(&self, deadline: Instant) -> Result<proto_clients::postgres::Client, OrderError> {
        let started = shards::now();
        let client = self.orders.pool().acquire(deadline).await;
        self.metrics.pg_acquire_wait.observe_duration(shards::now() - started);
        client.map_err(|error| self.order_error(&error))
    }
}

impl Orders for PostgresOrders {
    async fn settle(&self, messages: &[OrderMessage<'_>], deadline: Instant) -> Vec<Result<OrderOutcome, OrderError>> {
        let Ok(pass) = self.guard.enter() else {
            let refused = || Err(OrderError::Unavailable(Open.to_string()));
            return messages.iter().map(|_| refused()).collect();
        };
        let outcomes = self.settle_together(messages, deadline).await;
        pass.report(outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(OrderError::is_fault_of_store)));
        outcomes
    }

    fn may_retry(&self) -> bool {
        self.guard.may_retry()
    }

    async fn probe(&self, deadline: Instant) -> bool {
        let nothing = Params::new();
        let probe = self.orders.query(&statements::PROBE, &nothing, deadline);
        probe.await.is_ok_and(|rows| !rows.is_empty())
    }

    async fn quarantine(&self, row: &QuarantineRow, deadline: Instant) -> Result<(), PortError> {
        let mut params = Params::new();
        let holder = row.holder.as_ref();
        statements::quarantine_params(
            &mut params,
            &statements::Quarantine {
                group: &self.group,
                broker_message_id: &row.broker_message_id,
                topic: &self.topic,
                attempt: row.attempt,
                reason: row.reason,
                detail: &row.detail,
                body: &row.body,
                tag: Some(&row.tag),
                key: row.key.as_deref(),
                holder,
                order_id: None,
            },
        );
        self.side.query(&statements::QUARANTINE_MESSAGE, &params, deadline).await.map(drop)
    }

    async fn log_attempts(&self, rows: &[AttemptRow], deadline: Instant) -> Result<(), PortError> {
        let mut params = Params::new();
        params.text(&self.group).text(&self.worker);
        params.uuid_array(rows.iter().map(|row| row.message_id.0));
        params.text_array(rows.iter().map(|row| Some(row.broker_message_id.as_str())));
        params.i32_array(rows.iter().map(|row| i32::try_from(row.attempt).unwrap_or(i32::MAX)));
        params.text_array(rows.iter().map(|row| Some(row.outcome)));
        params.text_array(rows.iter().map(|row| Some(row.error_code)));
        params.i64_array(rows.iter().map(|row| i64::try_from(row.duration.as_micros()).unwrap_or(i64::MAX)));
        params.timestamptz_array(rows.iter().map(|row| i64::try_from(row.occurred_at_micros).unwrap_or(i64::MAX)));
        self.side.query(&statements::INSERT_ATTEMPTS, &params, deadline).await.map(drop)
    }
}

/// The outcome of a message that an earlier delivery has settled.
fn duplicate(status: &str, order_id: Option<i64>, error_code: Option<&str>) -> Option<OrderOutcome> {
    match status {
        "COMPLETED" => Some(OrderOutcome::DuplicateCreated { order_id: crate::domain::OrderId::new(order_id?)? }),
        "REJECTED" => Some(OrderOutcome::DuplicateRejected(RejectReason::from_code(error_code?)?)),
        _ => None,
    }
}

//! A message in its own transaction: `sql/order/README.md`, line by line.

use std::time::Instant;

use proto_clients::postgres::{
    CallError, Client, CommitError, DecodeError, ErrorClass, Params, Rows, Statement, Transaction,
};

use super::statements::{
    DEDUCT_STOCK, FIND_CONFLICT, FIND_RELEASE, INSERT_INBOX, INSERT_ORDER, INSERT_RELEASE, LOAD_INBOX, MARK_INBOX,
    QUARANTINE_MESSAGE, Quarantine, REVERT_STOCK, quarantine_params,
};
use super::{PostgresOrders, duplicate};
use crate::domain::{EVENT_TAG, OrderOutcome, RejectReason, UnitHolder};
use crate::observe::metrics::{Anomaly, TxRetry};
use crate::observe::trace::Step;
use crate::ports::{OrderError, OrderMessage};

/// Why a transaction was given up.
enum Abort {
    Call(CallError),
    Commit(CommitError),
    Decode(DecodeError),
    /// An affected-row count that the transaction does not allow.
    Rows(Anomaly, u64),
    /// The inbox holds a row without an outcome, which no committed transaction leaves.
    Unsettled,
}

impl From<CallError> for Abort {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<CommitError> for Abort {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

impl From<DecodeError> for Abort {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// One message's transaction.
struct Work<'a> {
    store: &'a PostgresOrders,
    message: &'a OrderMessage<'a>,
    deadline: Instant,
}

impl PostgresOrders {
    pub(super) async fn settle_one(
        &self,
        message: &OrderMessage<'_>,
        deadline: Instant,
    ) -> Result<OrderOutcome, OrderError> {
        let work = Work { store: self, message, deadline };
        let mut client = self.acquire(deadline).await?;
        match work.settle(&mut client).await {
            Ok(outcome) => Ok(outcome),
            Err(Abort::Call(CallError::Server(error)))
                // Faults of the data cannot heal. A missing table or right can: such a message is left to redelivery.
                if matches!(error.sqlstate.class(), ErrorClass::Conflict | ErrorClass::Integrity)
                    || error.sqlstate.as_str().starts_with("22") =>
            {
                tracing::error!(message_id = %message.event.message_id, %error, "order transaction refused, rejected");
                drop(client);
                let mut client = self.acquire(deadline).await?;
                work.reject_as_internal(&mut client).await.map_err(|abort| self.abort(&abort))
            }
            Err(abort) => Err(self.abort(&abort)),
        }
    }

    fn abort(&self, abort: &Abort) -> OrderError {
        match abort {
            Abort::Call(error) => self.order_error(error),
            Abort::Commit(CommitError::RolledBack) => {
                self.metrics.pg_tx_retries[TxRetry::Other as usize].inc();
                OrderError::Transient("COMMIT was answered with ROLLBACK".to_owned())
            }
            Abort::Commit(CommitError::Call(error)) => self.order_error(error),
            Abort::Decode(error) => OrderError::Internal(error.to_string()),
            Abort::Rows(anomaly, affected) => {
                self.metrics.pg_rows_anomaly[*anomaly as usize].inc();
                let operation = Anomaly::TEXTS[*anomaly as usize];
                OrderError::Internal(format!("{affected} rows affected by {operation}"))
            }
            Abort::Unsettled => OrderError::Internal("the inbox row of the message has no outcome".to_owned()),
        }
    }
}

impl Work<'_> {
    async fn settle(&self, client: &mut Client) -> Result<OrderOutcome, Abort> {
        let event = self.message.event;
        let mut tx = client.begin(self.deadline).await?;
        if self.insert_inbox(&mut tx).await? == 0 {
            let outcome = self.known_outcome(&mut tx).await?;
            tx.rollback(self.deadline).await;
            return Ok(outcome);
        }
        let mut params = Params::new();
        params.uuid(event.reservation_id.0);
        if !self.run(&mut tx, &FIND_RELEASE, &params).await?.is_empty() {
            self.mark(&mut tx, Some(RejectReason::ReservationReleased), None).await?;
            self.commit(tx).await?;
            return Ok(OrderOutcome::Rejected(RejectReason::ReservationReleased));
        }
        let span = self.message.span.child(Step::InventoryUpdate);
        let deducted = self.affected(&mut tx, &DEDUCT_STOCK, &self.sku(), Anomaly::Stock).await?;
        drop(span);
        match deducted {
            0 => self.reject(tx, RejectReason::StockExhausted, None).await,
            _ => self.order(tx).await,
        }
    }

    async fn insert_inbox(&self, tx: &mut Transaction<'_>) -> Result<u64, Abort> {
        let event = self.message.event;
        let mut params = Params::new();
        params.text(&self.store.group).uuid(event.message_id.0).uuid(event.request_id.0);
        params.uuid(event.reservation_id.0).i64(event.order_id.get());
        let _span = self.message.span.child(Step::InboxInsert);
        self.affected(tx, &INSERT_INBOX, &params, Anomaly::Inbox).await
    }

    async fn known_outcome(&self, tx: &mut Transaction<'_>) -> Result<OrderOutcome, Abort> {
        let event = self.message.event;
        let mut params = Params::new();
        params.text(&self.store.group).uuid(event.message_id.0);
        let rows = self.run(tx, &LOAD_INBOX, &params).await?;
        if rows.len() != 1 {
            return Err(Abort::Rows(Anomaly::Inbox, rows.len() as u64));
        }
        let row = rows.row(0);
        if row.uuid(3)? != event.request_id.0 || row.uuid(4)? != event.reservation_id.0 {
            return Ok(OrderOutcome::MessageIdReused);
        }
        duplicate(row.text(0)?, row.opt_i64(1)?, row.opt_text(2)?).ok_or(Abort::Unsettled)
    }

    async fn order(&self, mut tx: Transaction<'_>) -> Result<OrderOutcome, Abort> {
        let span = self.message.span.child(Step::OrderInsert);
        let inserted = self.affected(&mut tx, &INSERT_ORDER, &self.order_params(), Anomaly::Order).await?;
        drop(span);
        if inserted == 1 {
            self.mark(&mut tx, None, None).await?;
            self.commit(tx).await?;
            return Ok(OrderOutcome::Created);
        }
        let reverted = self.affected(&mut tx, &REVERT_STOCK, &self.sku(), Anomaly::Stock).await?;
        if reverted != 1 {
            return Err(Abort::Rows(Anomaly::Stock, reverted));
        }
        let rows = self.run(&mut tx, &FIND_CONFLICT, &self.order_params()).await?;
        if rows.len() != 1 {
            return Err(Abort::Rows(Anomaly::Order, rows.len() as u64));
        }
        let (relation, other) = (rows.row(0).text(0)?.to_owned(), rows.row(0).i64(1)?);
        match relation.as_str() {
            "SAME" => {
                self.mark(&mut tx, None, Some(other)).await?;
                self.commit(tx).await?;
                Ok(OrderOutcome::DuplicateCreated { order_id: self.message.event.order_id })
            }
            "USER" => self.reject(tx, RejectReason::OneUserOneOrder, Some(other)).await,
            _ => {
                let reason = RejectReason::IdentifierCollision;
                self.mark(&mut tx, Some(reason), None).await?;
                self.quarantine(&mut tx, reason).await?;
                self.commit(tx).await?;
                Ok(OrderOutcome::Rejected(reason))
            }
        }
    }

    /// REJECTED, and the unit goes back.
    async fn reject(
        &self,
        mut tx: Transaction<'_>,
        reason: RejectReason,
        other_order: Option<i64>,
    ) -> Result<OrderOutcome, Abort> {
        let event = self.message.event;
        self.mark(&mut tx, Some(reason), other_order).await?;
        let mut params = Params::new();
        params.uuid(event.reservation_id.0).uuid(event.request_id.0).uuid(event.message_id.0);
        params.i64(event.sku.activity.get()).i64(event.sku.sku.get()).i64(event.user_id.get());
        params.i64(other_order.unwrap_or(event.order_id.get())).text(reason.code());
        // 0: decided already, or the reservation has an order of its own and its unit is sold.
        self.affected(&mut tx, &INSERT_RELEASE, &params, Anomaly::Outbox).await?;
        self.commit(tx).await?;
        Ok(OrderOutcome::Rejected(reason))
    }

    /// A fault of the data that would come again with every delivery: settle the message as rejected, keep it for people.
    async fn reject_as_internal(&self, client: &mut Client) -> Result<OrderOutcome, Abort> {
        let reason = RejectReason::InternalError;
        let mut tx = client.begin(self.deadline).await?;
        if self.insert_inbox(&mut tx).await? == 0 {
            let outcome = self.known_outcome(&mut tx).await?;
            tx.rollback(self.deadline).await;
            return Ok(outcome);
        }
        self.mark(&mut tx, Some(reason), None).await?;
        self.quarantine(&mut tx, reason).await?;
        self.commit(tx).await?;
        Ok(OrderOutcome::Rejected(reason))
    }

    async fn commit(&self, tx: Transaction<'_>) -> Result<(), Abort> {
        let _span = self.message.span.child(Step::Commit);
        Ok(tx.commit(self.deadline).await?)
    }

    async fn mark(
        &self,
        tx: &mut Transaction<'_>,
        rejected: Option<RejectReason>,
        order_id: Option<i64>,
    ) -> Result<(), Abort> {
        let mut params = Params::new();
        params.text(if rejected.is_some() { "REJECTED" } else { "COMPLETED" });
        params.text(rejected.map_or("", RejectReason::code));
        match order_id {
            Some(order_id) => params.i64(order_id),
            None => params.null(),
        };
        params.text(&self.store.group).uuid(self.message.event.message_id.0);
        match self.affected(tx, &MARK_INBOX, &params, Anomaly::Inbox).await? {
            1 => Ok(()),
            affected => Err(Abort::Rows(Anomaly::Inbox, affected)),
        }
    }

    async fn quarantine(&self, tx: &mut Transaction<'_>, reason: RejectReason) -> Result<(), Abort> {
        let OrderMessage { event, body, broker_message_id, attempt, .. } = *self.message;
        let mut params = Params::new();
        let (holder, key) = (UnitHolder::from(event), event.message_key());
        quarantine_params(
            &mut params,
            &Quarantine {
                group: &self.store.group,
                broker_message_id,
                topic: &self.store.topic,
                attempt,
                reason: reason.code(),
                detail: "the order transaction could not settle it",
                body,
                tag: Some(EVENT_TAG),
                key: Some(&key),
                holder: Some(&holder),
                order_id: Some(event.order_id.get()),
            },
        );
        self.run(tx, &QUARANTINE_MESSAGE, &params).await.map(drop)
    }

    fn sku(&self) -> Params {
        let mut params = Params::new();
        params.i64(self.message.event.sku.activity.get()).i64(self.message.event.sku.sku.get());
        params
    }

    fn order_params(&self) -> Params {
        let event = self.message.event;
        let mut params = Params::new();
        params.i64(event.order_id.get()).uuid(event.request_id.0).uuid(event.reservation_id.0);
        params.i64(event.sku.activity.get()).i64(event.sku.sku.get()).i64(event.user_id.get());
        params
    }

    async fn run(
        &self,
        tx: &mut Transaction<'_>,
        statement: &'static Statement,
        params: &Params,
    ) -> Result<Rows, Abort> {
        Ok(tx.query(statement, params, self.deadline).await?)
    }

    /// Runs a statement that affects one row or none.
    async fn affected(
        &self,
        tx: &mut Transaction<'_>,
        statement: &'static Statement,
        params: &Params,
        what: Anomaly,
    ) -> Result<u64, Abort> {
        match self.run(tx, statement, params).await?.affected() {
            rows @ (0 | 1) => Ok(rows),
            rows => Err(Abort::Rows(what, rows)),
        }
    }
}

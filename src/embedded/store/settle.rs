//! The order transaction in SQLite: `sql/order/README.md`, for a whole batch in one commit.

use rusqlite::{Connection, OptionalExtension as _};

use super::{Opened, StoredMessage, now};
use crate::domain::{OrderCreateEvent, OrderId, OrderOutcome, RejectReason, UnitHolder};
use crate::ports::{AttemptRow, OrderError, QuarantineRow};

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../sql/embedded/", $name))
    };
}

/// One outcome for each message, in order. All are committed together, or none.
pub(super) fn batch(opened: &mut Opened, messages: &[StoredMessage]) -> Vec<Result<OrderOutcome, OrderError>> {
    match settle_all(opened, messages) {
        Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
        Err(error) => {
            tracing::error!(%error, "the order store failed");
            messages.iter().map(|_| Err(OrderError::Unavailable(error.to_string()))).collect()
        }
    }
}

fn settle_all(opened: &mut Opened, messages: &[StoredMessage]) -> rusqlite::Result<Vec<OrderOutcome>> {
    let transaction = opened.connection.transaction()?;
    let work = Work { connection: &transaction, group: &opened.group, now: now() };
    let outcomes = messages.iter().map(|message| work.settle(message)).collect::<rusqlite::Result<Vec<_>>>()?;
    transaction.commit()?;
    Ok(outcomes)
}

/// What an inbox row says. `None` for one without an outcome.
pub(super) fn known(status: &str, order_id: Option<i64>, code: Option<&str>) -> Option<OrderOutcome> {
    match (status, order_id.and_then(OrderId::new), code) {
        ("COMPLETED", Some(order_id), _) => Some(OrderOutcome::DuplicateCreated { order_id }),
        ("REJECTED", _, Some(code)) => RejectReason::from_code(code).map(OrderOutcome::DuplicateRejected),
        _ => None,
    }
}

struct Work<'a> {
    connection: &'a Connection,
    group: &'a str,
    now: String,
}

impl Work<'_> {
    fn settle(&self, message: &StoredMessage) -> rusqlite::Result<OrderOutcome> {
        let event = &message.event;
        if self.insert_inbox(event)? == 0 {
            return self.known_outcome(event);
        }
        let release: Option<String> = self
            .connection
            .prepare_cached(sql!("find_release.sql"))?
            .query_row([event.reservation_id.to_string()], |row| row.get(0))
            .optional()?;
        if release.is_some() {
            return self.mark_rejected(event, RejectReason::ReservationReleased, None);
        }
        let (activity, sku) = (event.sku.activity.get(), event.sku.sku.get());
        let taken = self.connection.prepare_cached(sql!("deduct_stock.sql"))?.execute((activity, sku, &self.now))?;
        if taken == 0 {
            return self.reject(event, RejectReason::StockExhausted, None);
        }
        let made = self.connection.prepare_cached(sql!("insert_order.sql"))?.execute((
            event.order_id.get(),
            event.request_id.to_string(),
            event.reservation_id.to_string(),
            activity,
            sku,
            event.user_id.get(),
            &self.now,
        ))?;
        if made == 1 {
            self.mark(event, "COMPLETED", None, None)?;
            return Ok(OrderOutcome::Created);
        }
        self.connection.prepare_cached(sql!("revert_stock.sql"))?.execute((activity, sku, &self.now))?;
        self.conflict(message)
    }

    fn conflict(&self, message: &StoredMessage) -> rusqlite::Result<OrderOutcome> {
        let event = &message.event;
        let (relation, other): (i64, i64) = self.connection.prepare_cached(sql!("find_conflict.sql"))?.query_row(
            (
                event.order_id.get(),
                event.request_id.to_string(),
                event.reservation_id.to_string(),
                event.sku.activity.get(),
                event.sku.sku.get(),
                event.user_id.get(),
            ),
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        match relation {
            0 => {
                self.mark(event, "COMPLETED", None, Some(other))?;
                Ok(OrderOutcome::DuplicateCreated { order_id: event.order_id })
            }
            1 => self.reject(event, RejectReason::OneUserOneOrder, Some(other)),
            _ => {
                let reason = RejectReason::IdentifierCollision;
                self.connection.prepare_cached(sql!("quarantine_message.sql"))?.execute((
                    self.group,
                    &message.broker_message_id,
                    message.attempt,
                    reason.code(),
                    "an id of the message belongs to another operation's order",
                    event.message_id.to_string(),
                    event.reservation_id.to_string(),
                    &message.body,
                ))?;
                self.reject(event, reason, None)
            }
        }
    }

    fn insert_inbox(&self, event: &OrderCreateEvent) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql!("insert_inbox.sql"))?.execute((
            self.group,
            event.message_id.to_string(),
            event.request_id.to_string(),
            event.reservation_id.to_string(),
            event.order_id.get(),
            &self.now,
        ))
    }

    fn known_outcome(&self, event: &OrderCreateEvent) -> rusqlite::Result<OrderOutcome> {
        let row = |row: &rusqlite::Row<'_>| {
            let (request, reservation): (String, String) = (row.get(3)?, row.get(4)?);
            if request != event.request_id.to_string() || reservation != event.reservation_id.to_string() {
                return Ok(OrderOutcome::MessageIdReused);
            }
            let (status, order_id, code): (String, Option<i64>, Option<String>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            // One thread writes, and it commits no row without an outcome.
            known(&status, order_id, code.as_deref()).ok_or(rusqlite::Error::InvalidQuery)
        };
        self.connection
            .prepare_cached(sql!("load_inbox.sql"))?
            .query_row((self.group, event.message_id.to_string()), row)
    }

    /// REJECTED, and the unit goes back.
    fn reject(
        &self,
        event: &OrderCreateEvent,
        reason: RejectReason,
        other: Option<i64>,
    ) -> rusqlite::Result<OrderOutcome> {
        release(self.connection, &UnitHolder::from(event), Some(other.unwrap_or(event.order_id.get())), reason.code())?;
        self.mark_rejected(event, reason, other)
    }

    fn mark_rejected(
        &self,
        event: &OrderCreateEvent,
        reason: RejectReason,
        other: Option<i64>,
    ) -> rusqlite::Result<OrderOutcome> {
        self.mark(event, "REJECTED", Some(reason.code()), other)?;
        Ok(OrderOutcome::Rejected(reason))
    }

    fn mark(
        &self,
        event: &OrderCreateEvent,
        status: &str,
        code: Option<&str>,
        order_id: Option<i64>,
    ) -> rusqlite::Result<()> {
        let marked = self.connection.prepare_cached(sql!("mark_inbox.sql"))?.execute((
            self.group,
            event.message_id.to_string(),
            status,
            code,
            order_id,
            &self.now,
        ))?;
        if marked == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(marked)) }
    }
}

fn release(
    connection: &Connection,
    holder: &UnitHolder,
    order_id: Option<i64>,
    reason: &str,
) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql!("insert_release.sql"))?.execute((
        holder.reservation_id.to_string(),
        holder.request_id.to_string(),
        holder.message_id.to_string(),
        holder.sku.activity.get(),
        holder.sku.sku.get(),
        holder.user_id.get(),
        order_id,
        reason,
    ))
}

/// Puts a message aside and, when it holds a unit, decides its release.
pub(super) fn quarantine_row(opened: &mut Opened, row: &QuarantineRow) -> rusqlite::Result<()> {
    let transaction = opened.connection.transaction()?;
    let holder = row.holder.as_ref();
    transaction.prepare_cached(sql!("quarantine_message.sql"))?.execute((
        &opened.group,
        &row.broker_message_id,
        row.attempt,
        row.reason,
        &row.detail,
        holder.map(|holder| holder.message_id.to_string()),
        holder.map(|holder| holder.reservation_id.to_string()),
        &row.body[..],
    ))?;
    if let Some(holder) = holder {
        release(&transaction, holder, None, row.reason)?;
    }
    transaction.commit()
}

/// Appends deliveries to the log.
pub(super) fn attempts(opened: &mut Opened, rows: &[AttemptRow]) -> rusqlite::Result<()> {
    let transaction = opened.connection.transaction()?;
    for row in rows {
        transaction.prepare_cached(sql!("insert_attempt.sql"))?.execute((
            &opened.group,
            row.message_id.to_string(),
            &row.broker_message_id,
            row.attempt,
            row.outcome,
            (!row.error_code.is_empty()).then_some(row.error_code),
            i64::try_from(row.duration.as_micros()).unwrap_or(i64::MAX),
            super::time(row.occurred_at_micros),
        ))?;
    }
    transaction.commit()
}

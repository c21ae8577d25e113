//! The fast path: all messages of one SKU in one statement and one commit.

use std::time::{Duration, Instant};

use proto_clients::postgres::{CallError, DecodeError, ErrorClass, Params, PgError, Row, Rows};

use super::statements::ORDER_BATCH;
use super::{PostgresOrders, duplicate};
use crate::domain::OrderOutcome;
use crate::observe::metrics::{Anomaly, TxStep};
use crate::observe::trace::{Step, unix_nanos};
use crate::ports::{OrderError, OrderMessage};

/// `seckill_order_batch` refuses anything unusual with this state; nothing has happened then.
const REFUSED: &str = "SK001";

/// What the function measures, in its order, and the rest.
const STEPS: [(TxStep, Step); 4] = [
    (TxStep::Inbox, Step::InboxInsert),
    (TxStep::Orders, Step::OrderInsert),
    (TxStep::Stock, Step::InventoryUpdate),
    (TxStep::Commit, Step::Commit),
];

impl PostgresOrders {
    /// One outcome a message, committed; `None` when each message has to be settled by itself.
    pub(super) async fn settle_batch(
        &self,
        messages: &[OrderMessage<'_>],
        deadline: Instant,
    ) -> Result<Option<Vec<OrderOutcome>>, OrderError> {
        let Some(first) = messages.first() else { return Ok(Some(Vec::new())) };
        if messages.iter().any(|message| message.event.sku != first.event.sku) {
            return Err(OrderError::Internal("a batch of more than one SKU".to_owned()));
        }
        let mut client = self.acquire(deadline).await?;
        let (sent_ns, sent) = (unix_nanos(), shards::now());
        match client.query(&ORDER_BATCH, &self.params(messages), deadline).await {
            Ok(rows) => match read(&rows, messages.len()) {
                Ok(Some((outcomes, steps_us))) => {
                    self.steps(messages, sent_ns, shards::now() - sent, steps_us);
                    Ok(Some(outcomes))
                }
                // It is committed: settling again finds it in the inbox.
                Ok(None) => {
                    self.metrics.pg_rows_anomaly[Anomaly::Batch as usize].inc();
                    Err(OrderError::Transient("the batch function gave another number of outcomes".to_owned()))
                }
                Err(error) => Err(OrderError::Internal(format!("the batch function's outcome: {error}"))),
            },
            Err(CallError::Server(error)) if is_redone(&error, messages.len()) => {
                if error.sqlstate.class() == ErrorClass::Retry {
                    self.count_conflict(error.sqlstate);
                }
                tracing::debug!(sku = %first.event.sku, messages = messages.len(), %error, "batch redone one by one");
                Ok(None)
            }
            Err(error) => Err(self.order_error(&error)),
        }
    }

    /// Counts what each step took, and shows it in the traces of the messages. The server says how long, not when: the steps are laid one
    /// after the other from the moment of the call, and the commit takes the rest, with the way there and back.
    fn steps(&self, messages: &[OrderMessage<'_>], sent_ns: u64, elapsed: Duration, steps_us: [u64; 3]) {
        let total_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let commit_us = total_us.saturating_sub(steps_us.iter().sum());
        let mut begun_ns = sent_ns;
        for ((label, step), took_us) in STEPS.into_iter().zip(steps_us.into_iter().chain([commit_us])) {
            self.metrics.pg_tx_step[label as usize].observe_duration(Duration::from_micros(took_us));
            let ended_ns = begun_ns + took_us * 1_000;
            messages.iter().for_each(|message| message.span.past(step, begun_ns, ended_ns));
            begun_ns = ended_ns;
        }
        messages.iter().for_each(|message| message.span.note("db.operation.batch.size", || messages.len() as i64));
    }

    fn params(&self, messages: &[OrderMessage<'_>]) -> Params {
        let events = || messages.iter().map(|message| message.event);
        let mut params = Params::new();
        params.text(&self.group);
        params.i64(messages[0].event.sku.activity.get());
        params.i64(messages[0].event.sku.sku.get());
        params.uuid_array(events().map(|event| event.message_id.0));
        params.uuid_array(events().map(|event| event.request_id.0));
        params.uuid_array(events().map(|event| event.reservation_id.0));
        params.i64_array(events().map(|event| event.order_id.get()));
        params.i64_array(events().map(|event| event.user_id.get()));
        params
    }
}

/// Whether each message is to be settled by itself; nothing has happened yet. A conflict (40001, 40P01) is such a case, so that one
/// message that meets it every time keeps no other from its order; those that meet it again are tried again by whoever called.
fn is_redone(error: &PgError, messages: usize) -> bool {
    match error.sqlstate.class() {
        ErrorClass::Conflict | ErrorClass::Integrity => true,
        ErrorClass::Retry => messages > 1,
        _ => error.sqlstate.as_str() == REFUSED,
    }
}

/// The outcomes, and the microseconds of each step that the function measures.
type Settled = (Vec<OrderOutcome>, [u64; 3]);

fn read(rows: &Rows, messages: usize) -> Result<Option<Settled>, DecodeError> {
    if rows.len() != messages {
        return Ok(None);
    }
    let outcomes: Option<Vec<_>> =
        (0..messages).map(|index| read_row(&rows.row(index), index)).collect::<Result<_, _>>()?;
    let steps = rows.row(0).i64_array(5)?;
    let steps = <[i64; 3]>::try_from(steps).ok().map(|steps| steps.map(|step| u64::try_from(step).unwrap_or(0)));
    Ok(outcomes.zip(steps))
}

fn read_row(row: &Row<'_>, index: usize) -> Result<Option<OrderOutcome>, DecodeError> {
    // Columns: ordinal, outcome, inbox_status, order_id, error_code, steps_us (of the batch, in the first row).
    if usize::try_from(row.i32(0)?).ok() != Some(index + 1) {
        return Ok(None);
    }
    Ok(match row.text(1)? {
        "CREATED" => Some(OrderOutcome::Created),
        "DUPLICATE" => duplicate(row.text(2)?, row.opt_i64(3)?, row.opt_text(4)?),
        _ => None,
    })
}

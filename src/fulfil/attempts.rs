//! The attempt log: a row a delivery, in micro-batches of at most 100, never in the way of an order.

use std::rc::Rc;
use std::time::Duration;

use super::Fulfil;
use crate::group_commit::{self, Limits};
use crate::ports::{AttemptRow, MessageSource, Orders, ResultBoard};

/// Rows that may wait; more are dropped and counted, because a log must not hold up an order.
pub(super) const WAITING_MAX: usize = 4_096;
/// At most 100 rows a write (spec section 5).
const BATCH: Limits = Limits { batch_max: 100, in_flight_max: 1 };
const WRITE: Duration = Duration::from_secs(2);

/// Queues a row, or drops it.
pub(super) fn push<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, row: AttemptRow)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    if fulfil.settings.attempt_log && fulfil.attempts.try_push(row).is_err() {
        fulfil.metrics.attempt_log_dropped.inc();
    }
}

/// Writes rows until the queue is closed and empty.
pub(super) async fn run<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let (writer, counter) = (fulfil.clone(), fulfil.clone());
    let commit = move |rows: Vec<AttemptRow>| {
        let fulfil = writer.clone();
        async move {
            if let Err(error) = fulfil.orders.log_attempts(&rows, shards::now() + WRITE).await {
                fulfil.metrics.attempt_log_dropped.add(rows.len() as u64);
                tracing::warn!(%error, rows = rows.len(), "attempt rows not written");
            }
        }
    };
    group_commit::run(fulfil.attempts.clone(), BATCH, commit, move || counter.panicked("attempt log")).await;
}

//! Acks, in group commits. An ack that fails is tried again a few times and then given up: the message comes again and
//! the inbox answers it.

use std::rc::Rc;
use std::time::Duration;

use super::Fulfil;
use super::in_hand::Held;
use crate::group_commit::{self, Limits};
use crate::observe::trace::{Span, Step};
use crate::ports::{MessageSource, Orders, ResultBoard};
use crate::resilience::Retry;

/// Longest round trip of an ack.
const ACK: Duration = Duration::from_secs(3);
/// Acks in one round trip: more than the slots of a default shard, so that one trip takes all that waits.
const BATCH: Limits = Limits { batch_max: 512, in_flight_max: 2 };

/// A message that is done and waits to be acked. It keeps its slot until then.
pub(super) struct Ack<H> {
    held: Rc<Held<H>>,
}

/// Queues the ack. The queue has room for every slot, so it is never full.
pub(super) fn push<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, held: Rc<Held<S::Handle>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    if fulfil.acks.try_push(Ack { held }).is_err() {
        fulfil.metrics.mq_ack_failures.inc();
        tracing::warn!("message done after the drain time, left to redelivery");
    }
}

/// Acks until the queue is closed and empty.
pub(super) async fn run<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let (worker, counter) = (fulfil.clone(), fulfil.clone());
    let commit = move |batch| ack_batch(worker.clone(), batch);
    group_commit::run(fulfil.acks.clone(), BATCH, commit, move || counter.panicked("ack")).await;
}

async fn ack_batch<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>, mut batch: Vec<Ack<S::Handle>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let mut retry = Retry::started(shards::now()).tries(fulfil.settings.ack_tries_max);
    loop {
        let handles: Vec<S::Handle> = batch.iter().map(|ack| ack.held.handle()).collect();
        let spans: Vec<Span> = batch.iter().map(|ack| ack.held.span.child(Step::Ack)).collect();
        let results = fulfil.source.ack(&handles, shards::now() + ACK).await;
        for (span, _) in spans.iter().zip(&results).filter(|(_, result)| result.is_err()) {
            span.fail("not acked");
        }
        drop(spans);
        let total = batch.len();
        let mut failed = Vec::new();
        for (ack, result) in batch.into_iter().zip(results) {
            if let Err(error) = result {
                failed.push((ack, error));
            }
        }
        fulfil.metrics.mq_acks.add((total - failed.len()) as u64);
        let Some((_, error)) = failed.first() else { return };
        tracing::warn!(count = failed.len(), %error, "acks failed");
        let Some(pause) = retry.next(shards::now(), shards::random_u64()).filter(|_| fulfil.source.may_retry()) else {
            fulfil.metrics.mq_ack_failures.add(failed.len() as u64);
            return;
        };
        batch = failed.into_iter().map(|(ack, _)| ack).collect();
        shards::sleep(pause).await;
    }
}

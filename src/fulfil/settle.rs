//! The order transaction of a batch: run it, read the outcome of each message, send each on its way.

use std::rc::Rc;
use std::time::Duration;

use super::in_hand::Held;
use super::lanes::Job;
use super::{Fulfil, ack, attempts, puller};
use crate::domain::{OrderCreateEvent, OrderOutcome};
use crate::observe::metrics::Processed;
use crate::observe::trace::{Span, Step};
use crate::ports::{AttemptRow, FinalResult, MessageSource, OrderError, OrderMessage, Orders, ResultBoard, ResultRow};
use crate::resilience::Retry;

/// Starts transactions while there are free workers and lanes that want one.
pub(super) fn work<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    loop {
        let free = fulfil.settings.workers.saturating_sub(fulfil.working.get());
        let Some(batch) = fulfil.lanes.borrow_mut().take(free) else { break };
        fulfil.working.set(fulfil.working.get() + batch.len());
        let fulfil = fulfil.clone();
        shards::spawn(async move { supervise(fulfil, batch).await });
    }
    fulfil.metrics.mq_jobs_queue.set(fulfil.lanes.borrow().waiting() as i64);
}

/// Runs one batch so that a panic in it frees its workers and slots, acks nothing, and is counted.
async fn supervise<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>, batch: Vec<Job<S::Handle>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let (count, since) = (batch.len(), shards::now());
    let sku = batch.first().map(|job| job.event.sku);
    let inner = fulfil.clone();
    if shards::spawn(async move { settle(&inner, batch).await }).await.is_err() {
        fulfil.panicked("order transaction");
        (0..count).for_each(|_| fulfil.finished(Processed::Panicked, since));
    }
    fulfil.working.set(fulfil.working.get() - count);
    if let Some(sku) = sku {
        fulfil.lanes.borrow_mut().done(sku);
    }
    work(&fulfil);
}

async fn settle<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, mut batch: Vec<Job<S::Handle>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let mut retry = Retry::started(shards::now());
    loop {
        let spans: Vec<Span> = batch.iter().map(|job| job.held.span.child(Step::Transaction)).collect();
        let messages: Vec<OrderMessage<'_>> = batch.iter().zip(&spans).map(message).collect();
        let deadline = shards::now() + fulfil.limits.transaction;
        shards::faults::point("order transaction");
        let outcomes = fulfil.orders.settle(&messages, deadline).await;
        shards::faults::point("order transaction done");
        for (span, outcome) in spans.iter().zip(&outcomes) {
            match outcome {
                Ok(outcome) => span.note("seckill.outcome", || outcome.label()),
                Err(error) => span.fail(error.code()),
            }
        }
        drop(messages);
        drop(spans);
        let passing = outcomes.iter().any(|outcome| outcome.as_ref().is_err_and(OrderError::is_passing));
        let pause = match passing && !fulfil.cancelled.is_closed() {
            true => retry.next(shards::now(), shards::random_u64()).filter(|_| fulfil.orders.may_retry()),
            false => None,
        };
        let mut again = Vec::new();
        for (job, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => settled(fulfil, job, outcome),
                Err(error) if pause.is_some() && error.is_passing() => again.push(job),
                Err(error) => failed(fulfil, job, &error),
            }
        }
        let Some(pause) = pause else { return };
        batch = again;
        shards::sleep(pause).await;
    }
}

fn message<'a, H: Clone>((job, span): (&'a Job<H>, &'a Span)) -> OrderMessage<'a> {
    let delivery = &job.held.delivery;
    OrderMessage {
        event: &job.event,
        body: &delivery.body,
        broker_message_id: &delivery.broker_message_id,
        attempt: delivery.attempt,
        span,
    }
}

/// The outcome is committed: ack, show, log.
fn settled<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, job: Job<S::Handle>, outcome: OrderOutcome)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    fulfil.store_is_up();
    let Job { held, event } = job;
    let metrics = &fulfil.metrics;
    let result = match outcome {
        OrderOutcome::Created => {
            metrics.order_created.inc();
            let delay_micros = shards::unix_micros().saturating_sub(event.created_at_micros);
            metrics.order_creation_delay.observe_duration(Duration::from_micros(delay_micros));
            fulfil.finished(Processed::Created, held.received_at);
            Some(FinalResult::Created { order_id: event.order_id })
        }
        OrderOutcome::DuplicateCreated { order_id } => {
            fulfil.finished(Processed::Duplicate, held.received_at);
            Some(FinalResult::Created { order_id })
        }
        OrderOutcome::Rejected(reason) => {
            metrics.order_rejected[reason as usize].inc();
            fulfil.finished(Processed::Rejected, held.received_at);
            Some(FinalResult::Rejected { reason })
        }
        OrderOutcome::DuplicateRejected(reason) => {
            fulfil.finished(Processed::Duplicate, held.received_at);
            Some(FinalResult::Rejected { reason })
        }
        OrderOutcome::MessageIdReused => None,
    };
    held.span.note("seckill.outcome", || outcome.label());
    attempts::push(fulfil, attempt_row(&event, &held, outcome.label(), outcome.error_code()));
    let Some(result) = result else {
        let fulfil = fulfil.clone();
        let detail = "the message_id is known with other contents".to_owned();
        shards::spawn(async move { puller::set_aside(&fulfil, held, "MESSAGE_ID_REUSED", detail).await });
        return;
    };
    fulfil.board.project(ResultRow {
        sku: event.sku,
        request_id: event.request_id,
        reservation_id: event.reservation_id,
        user_id: event.user_id,
        result,
    });
    tracing::debug!(
        request_id = %event.request_id, reservation_id = %event.reservation_id, message_id = %event.message_id,
        order_id = event.order_id.get(), activity_id = event.sku.activity.get(), sku_id = event.sku.sku.get(),
        outcome = outcome.label(), "message settled"
    );
    ack::push(fulfil, held);
}

/// Not settled: no ack, the slot is freed when `job` is dropped, the broker delivers it again.
fn failed<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, job: Job<S::Handle>, error: &OrderError)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    if error.is_fault_of_store() {
        fulfil.store_is_down();
    }
    job.held.span.fail(error.code());
    attempts::push(fulfil, attempt_row(&job.event, &job.held, "FAILED", error.code()));
    fulfil.finished(Processed::Failed, job.held.received_at);
    tracing::warn!(
        message_id = %job.event.message_id, delivery_attempt = job.held.delivery.attempt, %error,
        "message not settled, left to redelivery"
    );
}

fn attempt_row<H: Clone>(
    event: &OrderCreateEvent,
    held: &Held<H>,
    outcome: &'static str,
    error_code: &'static str,
) -> AttemptRow {
    AttemptRow {
        message_id: event.message_id,
        broker_message_id: held.delivery.broker_message_id.clone(),
        attempt: held.delivery.attempt,
        outcome,
        error_code,
        duration: shards::now() - held.received_at,
        occurred_at_micros: shards::unix_micros(),
    }
}

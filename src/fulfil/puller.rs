//! The puller: slots first, then messages; checks each message and sends it on its way.

use std::rc::Rc;
use std::time::Duration;

use super::in_hand::Held;
use super::lanes::Job;
use super::{Fulfil, Slot, ack, settle};
use crate::domain::{EventError, OrderCreateEvent, UnitHolder};
use crate::observe::metrics::{Attempt, Processed};
use crate::observe::trace::{Span, Step, Tracer, unix_nanos};
use crate::ports::{Delivery, MessageSource, Orders, QuarantineRow, ResultBoard};
use crate::race::race;
use crate::trace_context::TraceContext;

/// Pause after a failed receive, and while the broker sends us away.
const RECEIVE_BACKOFF: Duration = Duration::from_millis(500);
/// Longest write of a quarantine row or a dead letter.
const SET_ASIDE: Duration = Duration::from_secs(5);

/// Pulls until fulfilment stops.
pub(super) async fn run<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>, index: usize)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    while !fulfil.stopping.is_closed() {
        if let Some(at) = fulfil.probe_at.get() {
            if at > shards::now() {
                race(shards::sleep_until(at), fulfil.stopping.closed()).await;
            } else {
                fulfil.probe().await;
            }
            continue;
        }
        let slots = fulfil.take_slots(fulfil.settings.receive_max);
        if slots.is_empty() {
            race(fulfil.slot_freed.notified(), fulfil.stopping.closed()).await;
            continue;
        }
        receive(&fulfil, index, slots).await;
    }
}

async fn receive<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, index: usize, slots: Vec<Slot>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    // A pop that has been sent is waited for even while stopping: messages in its answer would otherwise stay hidden
    // for their whole invisible time.
    match fulfil.source.receive(slots.len(), index).await {
        Ok(deliveries) => {
            fulfil.metrics.mq_receive_batch.observe(deliveries.len() as f64);
            let overrun = deliveries.len().saturating_sub(slots.len());
            if overrun > 0 {
                // What has no slot is left to redelivery (spec section 12).
                fulfil.metrics.mq_receive_overrun.add(overrun as u64);
                tracing::warn!(overrun, "the broker handed over more than was asked for");
            }
            for (delivery, slot) in deliveries.into_iter().zip(slots) {
                take_in(fulfil, delivery, slot);
            }
            settle::work(fulfil);
        }
        Err(error) => {
            fulfil.metrics.mq_receive_failures.inc();
            tracing::warn!(%error, "receive failed");
            drop(slots);
            race(shards::sleep(RECEIVE_BACKOFF), fulfil.stopping.closed()).await;
        }
    }
}

/// Checks one message: a lane for a good one, quarantine for a bad one, the dead-letter topic for one that came too
/// often.
fn take_in<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, delivery: Delivery<S::Handle>, slot: Slot)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    fulfil.metrics.mq_delivery_attempt[Attempt::of(delivery.attempt) as usize].inc();
    let attempt = delivery.attempt;
    let began_ns = if fulfil.tracer.is_on() { unix_nanos() } else { 0 };
    let decoded = OrderCreateEvent::decode(&delivery.body, &delivery.tag, delivery.key.as_deref());
    let span = consume_span(&fulfil.tracer, decoded.as_ref().ok()).since(began_ns);
    if span.context().is_some() {
        span.past(Step::Decode, began_ns, unix_nanos());
        span.note("messaging.system", || "rocketmq");
        span.note("seckill.broker_message_id", || delivery.broker_message_id.clone());
        span.note("seckill.delivery_attempt", || i64::from(attempt));
    }
    let held = fulfil.in_hand.hold(delivery, slot, fulfil.limits.invisible, span);
    match decoded {
        Ok(event) if attempt <= fulfil.limits.deliveries_max => {
            fulfil.lanes.borrow_mut().push(Job { held, event });
        }
        Ok(_) => {
            let fulfil = fulfil.clone();
            shards::spawn(async move { dead_letter(&fulfil, held).await });
        }
        Err(error) => {
            let fulfil = fulfil.clone();
            shards::spawn(async move { quarantine(&fulfil, held, &error).await });
        }
    }
}

/// The span of a message in hand: below that of its send, and linked to it, as the two may be far apart in time (reference [12.4]). A message
/// without a trace may begin one.
fn consume_span(tracer: &Tracer, event: Option<&OrderCreateEvent>) -> Span {
    if !tracer.is_on() {
        return Span::none();
    }
    let span = match event.and_then(|event| TraceContext::from_event(&event.trace)) {
        Some(send) => tracer.child(Step::Consume, &send).linked(send),
        None => {
            let random: [u64; 3] = std::array::from_fn(|_| shards::random_u64());
            tracer.span(Step::Consume, TraceContext::start(random, tracer.samples(random[1])), None)
        }
    };
    if let Some(event) = event {
        span.note_event(event);
    }
    span
}

/// Writes the quarantine row, then acks. Without the row there is no ack: the message comes again.
pub(super) async fn quarantine<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, held: Rc<Held<S::Handle>>, error: &EventError)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    set_aside(fulfil, held, error.reason(), error.to_string()).await;
}

/// [`quarantine`] for a reason that is not in the bytes.
pub(super) async fn set_aside<S, O, B>(
    fulfil: &Rc<Fulfil<S, O, B>>,
    held: Rc<Held<S::Handle>>,
    reason: &'static str,
    detail: String,
) where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let delivery = &held.delivery;
    let row = QuarantineRow {
        body: delivery.body.clone(),
        reason,
        detail,
        broker_message_id: delivery.broker_message_id.clone(),
        tag: delivery.tag.clone(),
        key: delivery.key.clone(),
        attempt: delivery.attempt,
        holder: UnitHolder::salvage(&delivery.body),
    };
    match fulfil.orders.quarantine(&row, shards::now() + SET_ASIDE).await {
        Ok(()) => {
            fulfil.metrics.mq_quarantined.inc();
            held.span.fail(reason);
            tracing::warn!(
                broker_message_id = row.broker_message_id,
                reason,
                detail = row.detail,
                delivery_attempt = row.attempt,
                "message quarantined"
            );
            fulfil.finished(Processed::Quarantined, held.received_at);
            ack::push(fulfil, held);
        }
        Err(error) => {
            fulfil.finished(Processed::Failed, held.received_at);
            tracing::error!(broker_message_id = row.broker_message_id, reason, %error, "message not quarantined, not acked");
        }
    }
}

/// Stores the message in the dead-letter topic, then acks. A crash in between doubles the dead letter, never loses it.
async fn dead_letter<S, O, B>(fulfil: &Rc<Fulfil<S, O, B>>, held: Rc<Held<S::Handle>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let delivery = &held.delivery;
    match fulfil.source.dead_letter(delivery, shards::now() + SET_ASIDE).await {
        Ok(()) => {
            fulfil.metrics.mq_dlq.inc();
            held.span.fail("moved to the dead-letter topic");
            tracing::error!(
                broker_message_id = delivery.broker_message_id,
                delivery_attempt = delivery.attempt,
                "message moved to the dead-letter topic"
            );
            fulfil.finished(Processed::DeadLettered, held.received_at);
            ack::push(fulfil, held);
        }
        Err(error) => {
            fulfil.finished(Processed::Failed, held.received_at);
            tracing::error!(broker_message_id = delivery.broker_message_id, %error, "dead letter not stored, not acked");
        }
    }
}

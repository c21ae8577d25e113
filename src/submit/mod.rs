//! Submit: admission, validation, reserve, publish, answer (spec section 1).
//!
//! A request that has reached Redis is never assumed undone. Whoever stops waiting (deadline, client gone) leaves its
//! effects behind in good hands: a unit reserved for nobody's ears is still published ([`SubmitService::run_orphans`]).

mod answer;
mod recent_keys;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::{Gate, PushError, Queue};

pub use answer::{Refusal, SubmitAnswer};
use recent_keys::RecentKeys;

use crate::config::{OnSendFailure, Submit as Settings};
use crate::domain::{
    OrderCreateEvent, ReservationState, ReserveOutcome, Sku, TraceContext as EventTrace, UserId, Uuid, UuidV7Source,
};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::Metrics;
use crate::observe::trace::{Span, Step, Tracer};
use crate::ports::{EventBus, PortError, PublishError, Reservations, ReserveRequest};
use crate::race::{First, race};
use crate::trace_context::TraceContext;

/// Request keys of this shard remembered to refuse the same key on another SKU.
const RECENT_KEYS: usize = 65_536;
/// How long an orphan's message is tried in one go.
const ORPHAN_PUBLISH: Duration = Duration::from_secs(3);
/// Tries for an orphan before it is left to the pending index.
const ORPHAN_TRIES: u32 = 5;
/// Orphans sent at a time: four of the topic's batches.
const ORPHANS: Limits = Limits { batch_max: 64, in_flight_max: 4 };

/// A validated request for one unit.
#[derive(Debug, Clone)]
pub struct SubmitCommand {
    /// The buyer's idempotency key.
    pub request_id: Uuid,
    /// What is wanted.
    pub sku: Sku,
    /// Who wants it.
    pub user_id: UserId,
    /// The span it belongs to. Written out only for an event: most clicks never become one.
    pub trace: TraceContext,
    /// The caller's tracestate where it is valid, else empty.
    pub tracestate: String,
}

impl SubmitCommand {
    fn event_trace(&self) -> EventTrace {
        self.trace.to_event(&self.tracestate)
    }
}

/// An event whose publication nobody waits for.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// What to publish.
    pub event: OrderCreateEvent,
    /// Tries so far.
    pub tries: u32,
    /// Nothing says that the send failed, only that no success was noted: ask the book at this time, then send.
    pub suspect_until: Option<Instant>,
}

/// The submit path of one shard.
pub struct SubmitService<R, B> {
    reservations: Rc<R>,
    bus: Rc<B>,
    settings: Settings,
    metrics: Rc<Metrics>,
    ids: RefCell<UuidV7Source>,
    recent: RefCell<RecentKeys>,
    orphans: Rc<Queue<Orphan>>,
    /// Suspects in the queue, so that a buyer who asks often makes only one.
    suspects: RefCell<HashSet<Uuid>>,
    tracer: Tracer,
}

impl<R: Reservations + 'static, B: EventBus + 'static> SubmitService<R, B> {
    /// A service over the two ports. `orphans` is shared with the ports, which put there what they made for callers
    /// that had stopped waiting.
    pub fn new(
        reservations: Rc<R>,
        bus: Rc<B>,
        settings: Settings,
        metrics: Rc<Metrics>,
        orphans: Rc<Queue<Orphan>>,
    ) -> Self {
        let recent = RefCell::new(RecentKeys::new(RECENT_KEYS));
        Self {
            reservations,
            bus,
            settings,
            metrics,
            ids: RefCell::default(),
            recent,
            orphans,
            suspects: RefCell::default(),
            tracer: Tracer::off(),
        }
    }

    /// Records spans by `tracer`.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// Takes one validated request to its answer before `deadline`.
    pub async fn submit(&self, command: SubmitCommand, client: &Gate, deadline: Instant) -> SubmitAnswer {
        if self.recent.borrow().is_other_sku(&command.request_id, command.user_id, command.sku) {
            return SubmitAnswer::Refused(Refusal::KeyReused);
        }
        let reserve_deadline = deadline.min(shards::now() + Duration::from_millis(self.settings.reserve_ms));
        let request = match self.request(&command, reserve_deadline).await {
            Ok(request) => request,
            Err(error) => return SubmitAnswer::Refused(Refusal::from(error)),
        };
        let span = self.tracer.child(Step::Reserve, &command.trace);
        // Dropping the reserve future takes the request back if it is still waiting, and makes it an orphan if not.
        let reserved = match race(self.reservations.reserve(request, reserve_deadline), client.closed()).await {
            First::Left(reserved) => reserved,
            First::Right(()) => {
                self.metrics.client_canceled.inc();
                span.fail("the client left");
                return SubmitAnswer::Refused(Refusal::Timeout);
            }
        };
        match &reserved {
            Ok(outcome) => span.note("seckill.outcome", || outcome.name()),
            Err(error) => span.fail(Refusal::from(*error).status_and_code().1),
        }
        drop(span);
        match reserved {
            Ok(outcome) => self.answer(command, request, outcome, deadline).await,
            Err(error) => SubmitAnswer::Refused(Refusal::from(error)),
        }
    }

    async fn request(&self, command: &SubmitCommand, deadline: Instant) -> Result<ReserveRequest, PortError> {
        let order_id = self.reservations.next_order_id(deadline).await?;
        let created_at_micros = shards::unix_micros();
        let mut ids = self.ids.borrow_mut();
        Ok(ReserveRequest {
            sku: command.sku,
            user_id: command.user_id,
            request_id: command.request_id,
            reservation_id: ids.next(created_at_micros / 1_000, shards::random_u64()),
            message_id: ids.next(created_at_micros / 1_000, shards::random_u64()),
            order_id,
            created_at_micros,
        })
    }

    async fn answer(
        &self,
        command: SubmitCommand,
        request: ReserveRequest,
        outcome: ReserveOutcome,
        deadline: Instant,
    ) -> SubmitAnswer {
        match outcome {
            ReserveOutcome::Created => {
                self.metrics.reservation_created.inc();
                self.recent.borrow_mut().insert(request.request_id, request.user_id, request.sku);
                let span = self.tracer.child(Step::Send, &command.trace);
                // The message names the span of its send: whoever works on it goes on from there.
                let trace = span.context().unwrap_or(command.trace).to_event(&command.tracestate);
                self.publish(request.event(trace), span, deadline).await
            }
            ReserveOutcome::SameRequest { reservation_id, message_id, order_id, state, created_at_ms } => {
                self.metrics.duplicate_request.inc();
                let original = ReserveRequest {
                    reservation_id,
                    message_id,
                    order_id,
                    created_at_micros: created_at_ms * 1_000,
                    ..request
                };
                self.resend_if_stuck(&original, state, command.event_trace());
                SubmitAnswer::Accepted { reservation_id, order_id, state: shown_state(state) }
            }
            ReserveOutcome::SameUser { reservation_id } => {
                self.metrics.duplicate_user.inc();
                SubmitAnswer::Refused(Refusal::DuplicateOrder { reservation_id })
            }
            ReserveOutcome::SoldOut => {
                self.metrics.sold_out.inc();
                SubmitAnswer::Refused(Refusal::SoldOut)
            }
            ReserveOutcome::Unavailable | ReserveOutcome::Closed => SubmitAnswer::Refused(Refusal::ActivityUnavailable),
            ReserveOutcome::NotStarted => SubmitAnswer::Refused(Refusal::NotStarted),
            ReserveOutcome::Ended => SubmitAnswer::Refused(Refusal::Ended),
            ReserveOutcome::KeyReused => SubmitAnswer::Refused(Refusal::KeyReused),
        }
    }

    async fn publish(&self, event: OrderCreateEvent, span: Span, deadline: Instant) -> SubmitAnswer {
        span.note_event(&event);
        let (sku, reservation_id, order_id) = (event.sku, event.reservation_id, event.order_id);
        let publish_deadline = deadline.min(shards::now() + Duration::from_millis(self.settings.publish_ms));
        let accepted = |state| SubmitAnswer::Accepted { reservation_id, order_id, state };
        // The copy is for a resend; it is made before the send because afterwards the event is gone.
        let again = event.clone();
        match self.bus.publish(event, publish_deadline).await {
            Ok(()) => {
                self.reservations.mark_sent(sku, reservation_id);
                accepted("QUEUED")
            }
            Err(error) => {
                self.metrics.mq_send_failures.inc();
                span.fail(error.code());
                drop(span);
                self.unsent(again, error).await.unwrap_or_else(|| accepted("MQ_PENDING"))
            }
        }
    }

    /// What a failed send means: an answer in strict mode, `None` when the reservation waits to be sent again.
    async fn unsent(&self, event: OrderCreateEvent, error: PublishError) -> Option<SubmitAnswer> {
        let (sku, user_id, reservation_id) = (event.sku, event.user_id, event.reservation_id);
        // The request's own deadline may be over; leaving the reservation without a note would be worse than late.
        let deadline = shards::now() + Duration::from_millis(self.settings.reserve_ms);
        let strict = self.settings.on_send_failure == OnSendFailure::Strict;
        let mut suspect_until = None;
        if strict && error == PublishError::NotStored {
            match self.reservations.release(sku, user_id, reservation_id, deadline).await {
                Ok(true) => return Some(SubmitAnswer::Refused(Refusal::DependencyUnavailable)),
                Ok(false) => tracing::warn!(%reservation_id, "not released: the reservation has moved on"),
                Err(error) => {
                    tracing::warn!(%reservation_id, %error, "whether it was released is unknown");
                    // It may have been, or may be yet: the book is asked before anything is sent.
                    suspect_until = Some(shards::now());
                }
            }
        }
        self.metrics.reservation_pending.inc();
        if let Err(error) = self.reservations.mark_pending(sku, reservation_id, deadline).await {
            // It stays RESERVED in the pending index, which recovery reads too.
            tracing::warn!(%reservation_id, %error, "not marked MQ_PENDING");
        }
        self.adopt(Orphan { event, tries: 0, suspect_until });
        // Strict mode promises nothing it does not know: the same key tells the outcome later.
        strict.then_some(SubmitAnswer::Refused(Refusal::DependencyUnavailable))
    }

    /// A buyer who asks again heals a reservation whose message was never confirmed: the api may have died in between.
    ///
    /// Whoever made it may also still be at work, so it is only suspected until that time is over.
    fn resend_if_stuck(&self, original: &ReserveRequest, state: ReservationState, trace: EventTrace) {
        let open = matches!(state, ReservationState::Reserved | ReservationState::MqPending);
        if !open || !self.suspects.borrow_mut().insert(original.reservation_id) {
            return;
        }
        let age = Duration::from_micros(shards::unix_micros().saturating_sub(original.created_at_micros));
        let suspect_until = shards::now() + (2 * self.settings.deadline()).saturating_sub(age);
        let event = original.event(trace);
        self.adopt(Orphan { event, tries: 0, suspect_until: Some(suspect_until) });
    }

    fn adopt(&self, orphan: Orphan) {
        if let Err(PushError::Full(orphan) | PushError::Closed(orphan)) = self.orphans.try_push(orphan) {
            self.suspects.borrow_mut().remove(&orphan.event.reservation_id);
            tracing::warn!("too many unsent messages in hand; the pending index keeps the rest");
        }
    }

    /// Publishes what nobody waits for, until the queue is closed and empty. Many at a time, so that they share sends with
    /// everybody else; the pending index in Redis remembers whatever is given up here.
    pub async fn run_orphans(self: Rc<Self>) {
        let (service, metrics) = (self.clone(), self.metrics.clone());
        let send = move |batch: Vec<Orphan>| {
            let service = service.clone();
            async move {
                let sending: Vec<_> =
                    batch.into_iter().map(|orphan| shards::spawn(service.clone().bring_up(orphan))).collect();
                for sent in sending {
                    if sent.await.is_err() {
                        service.metrics.task_panics.inc();
                    }
                }
            }
        };
        group_commit::run(self.orphans.clone(), ORPHANS, send, move || metrics.task_panics.inc()).await;
    }

    /// Sends one orphan, or puts it back for another try.
    async fn bring_up(self: Rc<Self>, mut orphan: Orphan) {
        let reservation_id = orphan.event.reservation_id;
        if let Err(error) = self.send_orphan(&mut orphan).await {
            orphan.tries += 1;
            tracing::warn!(%reservation_id, %error, tries = orphan.tries, "message not sent");
            if orphan.tries < ORPHAN_TRIES && !self.orphans.is_closed() {
                shards::sleep(Duration::from_millis(100 << orphan.tries)).await;
                self.adopt(orphan);
                return;
            }
        }
        self.suspects.borrow_mut().remove(&reservation_id);
    }

    async fn send_orphan(&self, orphan: &mut Orphan) -> Result<(), OrphanError> {
        let (sku, reservation_id) = (orphan.event.sku, orphan.event.reservation_id);
        if let Some(until) = orphan.suspect_until {
            shards::sleep_until(until).await;
            if !self.reservations.mark_pending(sku, reservation_id, shards::now() + ORPHAN_PUBLISH).await? {
                return Ok(());
            }
            orphan.suspect_until = None;
        }
        let mut event = orphan.event.clone();
        let span = match TraceContext::from_event(&event.trace) {
            Some(first) => self.tracer.child(Step::Send, &first),
            None => Span::none(),
        };
        if let Some(context) = span.context() {
            event.trace.traceparent = context.to_string();
        }
        span.note_event(&event);
        span.note("seckill.retry", || i64::from(orphan.tries) + 1);
        self.bus.publish(event, shards::now() + ORPHAN_PUBLISH).await.inspect_err(|error| span.fail(error.code()))?;
        self.reservations.mark_sent(sku, reservation_id);
        Ok(())
    }
}

/// Why the message of an orphan is still not known to be sent.
#[derive(Debug, thiserror::Error)]
enum OrphanError {
    #[error("the book cannot be asked: {0}")]
    Book(#[from] PortError),
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// The `state` of a 202: QUEUED while the order is on its way, else what the reservation says.
fn shown_state(state: ReservationState) -> &'static str {
    match state {
        ReservationState::Reserved | ReservationState::MqSent => "QUEUED",
        other => other.name(),
    }
}

impl Orphan {
    /// The message of a reservation that was made for a caller who had stopped waiting.
    pub fn of(request: &ReserveRequest) -> Self {
        Self { event: request.event(EventTrace::default()), tries: 0, suspect_until: None }
    }
}

#[cfg(test)]
mod tests;

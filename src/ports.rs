//! The few traits through which submit, fulfil and query reach the outside. Nothing else crosses.
//!
//! `services/` implements them over Redis, RocketMQ and PostgreSQL. They are used by static dispatch on one shard, so
//! futures are neither boxed nor `Send`.
#![allow(async_fn_in_trait, reason = "single-shard futures: nobody needs them Send")]

use std::time::{Duration, Instant};

use crate::domain::{
    OrderCreateEvent, OrderId, OrderOutcome, RejectReason, ReservationState, ReserveOutcome, Sku, TraceContext,
    UnitHolder, UserId, Uuid,
};
use crate::observe::trace::Span;

/// Why a call through a port did not give an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The deadline passed. Whether it was done is **unknown**; the same ids may be tried again.
    #[error("the deadline passed and the outcome is unknown")]
    Timeout,
    /// The connection broke after bytes had left. Whether it was done is **unknown**.
    #[error("the connection broke and the outcome is unknown")]
    Unknown,
    /// Down, refusing or not reachable. It was **not** done.
    #[error("the dependency is not available")]
    Unavailable,
    /// The bounded queue in front of the call is full. It was **not** done.
    #[error("the queue in front of the dependency is full")]
    Overloaded,
    /// An answer that cannot be understood, or a bug. Not worth a retry.
    #[error("the dependency gave an answer that makes no sense")]
    Internal,
}

impl PortError {
    /// Whether the effect may have happened although no answer says so.
    pub const fn outcome_unknown(self) -> bool {
        matches!(self, Self::Timeout | Self::Unknown | Self::Internal)
    }
}

/// One request for a unit, with all ids that its effects will carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveRequest {
    /// What is wanted.
    pub sku: Sku,
    /// Who wants it.
    pub user_id: UserId,
    /// The buyer's idempotency key.
    pub request_id: Uuid,
    /// The reservation's id if one is made.
    pub reservation_id: Uuid,
    /// The message's id if one is made.
    pub message_id: Uuid,
    /// The order's id if one is made.
    pub order_id: OrderId,
    /// Wall clock of the request, Unix microseconds.
    pub created_at_micros: u64,
}

impl ReserveRequest {
    /// The message that asks for its order, as it is sent the first time.
    pub fn event(&self, trace: TraceContext) -> OrderCreateEvent {
        OrderCreateEvent {
            message_id: self.message_id,
            request_id: self.request_id,
            reservation_id: self.reservation_id,
            sku: self.sku,
            user_id: self.user_id,
            order_id: self.order_id,
            created_at_micros: self.created_at_micros,
            retry_count: 0,
            trace,
        }
    }
}

/// The reservation book.
pub trait Reservations {
    /// Decides one request, atomically with its effects.
    async fn reserve(&self, request: ReserveRequest, deadline: Instant) -> Result<ReserveOutcome, PortError>;

    /// The next order id, never given out before.
    async fn next_order_id(&self, deadline: Instant) -> Result<OrderId, PortError>;

    /// Notes that the broker has the message. Done soon, in a batch; when it is lost, recovery finds the reservation.
    fn mark_sent(&self, sku: Sku, reservation_id: Uuid);

    /// Notes that the send is to be repeated. `Ok(false)`: it need not be, the message has arrived or the unit went back.
    async fn mark_pending(&self, sku: Sku, reservation_id: Uuid, deadline: Instant) -> Result<bool, PortError>;

    /// Gives the unit back if the reservation is still RESERVED or MQ_PENDING. `Ok(false)`: it was not.
    async fn release(
        &self,
        sku: Sku,
        user_id: UserId,
        reservation_id: Uuid,
        deadline: Instant,
    ) -> Result<bool, PortError>;
}

/// Reservations whose message was never confirmed.
pub trait PendingIndex {
    /// Sales that may have some.
    async fn live_sales(&self, deadline: Instant) -> Result<Vec<Sku>, PortError>;

    /// Takes up to `max` that were made more than `age` ago, oldest first, as the messages to send again. Nobody else gets
    /// them for `lease`.
    async fn claim(
        &self,
        sku: Sku,
        age: Duration,
        lease: Duration,
        max: usize,
        deadline: Instant,
    ) -> Result<Vec<OrderCreateEvent>, PortError>;
}

/// A unit on its way back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Its row in the outbox.
    pub id: i64,
    /// Whose stock it goes back to.
    pub sku: Sku,
    /// The reservation that held it.
    pub reservation_id: Uuid,
    /// The buyer's key.
    pub request_id: Uuid,
    /// The buyer.
    pub user_id: UserId,
    /// The order in the way, or the id that was reserved.
    pub order_id: Option<i64>,
    /// Why, as the buyer sees it.
    pub reason: String,
}

/// What became of a release in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// The unit is back, now or already, or there is no such reservation any more.
    Done,
    /// The books do not agree: the reservation is somebody's order there. Tried again later, and an alarm.
    Refused,
}

/// Units whose release PostgreSQL has decided, and the way back for them.
pub trait ReleaseOutbox {
    /// Takes up to `max` that are due; nobody else gets them for a while.
    async fn claim(&self, max: usize, deadline: Instant) -> Result<Vec<Release>, PortError>;

    /// Shows the rejections of one SKU and gives their units back; one answer each, in order. Safe to repeat.
    async fn give_back(&self, sku: Sku, rows: &[Release], deadline: Instant) -> Result<Vec<Returned>, PortError>;

    /// Takes rows out of the outbox.
    async fn applied(&self, ids: &[i64], deadline: Instant) -> Result<(), PortError>;
}

/// A committed outcome and its place in the order of outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledRow {
    /// When it was settled by PostgreSQL's clock, Unix microseconds.
    pub processed_at: i64,
    /// The message.
    pub message_id: Uuid,
    /// What to show; `None` when nobody is left to show it to.
    pub result: Option<ResultRow>,
}

/// Committed outcomes in order, and how far they have been shown.
pub trait SettledOutcomes {
    /// Makes the cursor.
    async fn open(&self, deadline: Instant) -> Result<(), PortError>;

    /// The next `max` outcomes, for this caller alone for a while; none while another one has them.
    async fn claim(&self, max: usize, deadline: Instant) -> Result<Vec<SettledRow>, PortError>;

    /// Shows outcomes of one SKU; how many the reservations contradict. Safe to repeat.
    async fn show(&self, sku: Sku, rows: &[ResultRow], deadline: Instant) -> Result<u64, PortError>;

    /// All outcomes up to `last` are shown.
    async fn advance(&self, last: &SettledRow, deadline: Instant) -> Result<(), PortError>;
}

/// Why an event was not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker does not have it.
    #[error("the broker did not take the message")]
    NotStored,
    /// The broker may have it.
    #[error("whether the broker took the message is unknown")]
    Unknown,
}

impl PublishError {
    /// One word for it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotStored => "NOT_STORED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// The durable queue of order events, producer side.
pub trait EventBus {
    /// Whether it makes sense to publish now. `false`: the broker is known to be down.
    fn is_available(&self) -> bool {
        true
    }

    /// Publishes one event; Ok means that the broker answered that it has it.
    async fn publish(&self, event: OrderCreateEvent, deadline: Instant) -> Result<(), PublishError>;
}

/// One message in hand.
#[derive(Debug, Clone)]
pub struct Delivery<H> {
    /// The body as it came.
    pub body: bytes::Bytes,
    /// The broker's tag.
    pub tag: String,
    /// The broker's key.
    pub key: Option<String>,
    /// The broker's own id of the record, for logs and quarantine.
    pub broker_message_id: String,
    /// Which delivery this is, from 1.
    pub attempt: u32,
    /// What acknowledges it.
    pub handle: H,
}

/// The durable queue of order events, consumer side.
pub trait MessageSource {
    /// What acknowledges a message.
    type Handle: Clone + 'static;

    /// Up to `max` messages; waits for the long poll when there are none. `puller` tells concurrent callers apart.
    async fn receive(&self, max: usize, puller: usize) -> Result<Vec<Delivery<Self::Handle>>, PortError>;

    /// Acknowledges; for each handle whether the broker took it.
    async fn ack(&self, handles: &[Self::Handle], deadline: Instant) -> Vec<Result<(), PortError>>;

    /// Whether the retry budget has room for acks that just failed; counts it if so.
    fn may_retry(&self) -> bool {
        true
    }

    /// Hides the message for `for_time` from now; the handle to use from then on.
    async fn extend(&self, handle: &Self::Handle, for_time: Duration) -> Result<Self::Handle, PortError>;

    /// Stores the message in the dead-letter topic. The caller acks after Ok.
    async fn dead_letter(&self, delivery: &Delivery<Self::Handle>, deadline: Instant) -> Result<(), PortError>;

    /// Messages that no one has received yet, as far as the broker knows.
    async fn lag(&self, deadline: Instant) -> Result<u64, PortError>;
}

/// Why a message could not be settled now. It stays unacknowledged and comes again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The store is down or refuses work: stop pulling for a while.
    #[error("the order store is not available: {0}")]
    Unavailable(String),
    /// A passing fault of this transaction; tried again with the same ids.
    #[error("the order transaction failed for now: {0}")]
    Transient(String),
    /// It did not answer, in time or at all: perhaps committed. Tried again with the same ids.
    #[error("the order store did not answer: {0}")]
    Unanswered(String),
    /// A broken rule of the store or a bug.
    #[error("the order transaction failed: {0}")]
    Internal(String),
}

impl OrderError {
    /// Whether the store is ill, rather than this transaction.
    pub const fn is_fault_of_store(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unanswered(_))
    }

    /// Whether the same messages may fare better in a moment.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Transient(_) | Self::Unanswered(_))
    }

    /// The attempt log's code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "STORE_UNAVAILABLE",
            Self::Transient(_) => "TRANSIENT",
            Self::Unanswered(_) => "UNANSWERED",
            Self::Internal(_) => "INTERNAL_ERROR",
        }
    }
}

/// A checked message, and what is kept of it should the order transaction find that it must be put aside.
#[derive(Debug, Clone, Copy)]
pub struct OrderMessage<'a> {
    /// What it asks for.
    pub event: &'a OrderCreateEvent,
    /// The body as it came.
    pub body: &'a [u8],
    /// The broker's own id of the record.
    pub broker_message_id: &'a str,
    /// Which delivery this is, from 1.
    pub attempt: u32,
    /// The span of its transaction.
    pub span: &'a Span,
}

/// The order store, writing side.
pub trait Orders {
    /// Settles messages of one SKU: one outcome each, in order, every `Ok` durably committed.
    async fn settle(&self, messages: &[OrderMessage<'_>], deadline: Instant) -> Vec<Result<OrderOutcome, OrderError>>;

    /// Whether the retry budget has room for what just failed; counts it if so.
    fn may_retry(&self) -> bool {
        true
    }

    /// Whether the store takes work. Cheap; asked once in a while after it refused some.
    async fn probe(&self, deadline: Instant) -> bool;

    /// Puts a message aside with its reason and, when it holds a unit, writes that unit's release in the same
    /// transaction. Safe to repeat.
    async fn quarantine(&self, row: &QuarantineRow, deadline: Instant) -> Result<(), PortError>;

    /// Appends delivery attempts, at most 100 (spec section 5).
    async fn log_attempts(&self, rows: &[AttemptRow], deadline: Instant) -> Result<(), PortError>;
}

/// A message that cannot be ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineRow {
    /// The body as it came.
    pub body: bytes::Bytes,
    /// Why, as a code.
    pub reason: &'static str,
    /// Why, in words.
    pub detail: String,
    /// The broker's id of the record.
    pub broker_message_id: String,
    /// The broker's tag.
    pub tag: String,
    /// The broker's key.
    pub key: Option<String>,
    /// Which delivery it was.
    pub attempt: u32,
    /// The unit it holds, where the bytes tell.
    pub holder: Option<UnitHolder>,
}

/// One delivery, as logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// The message.
    pub message_id: Uuid,
    /// The broker's own id of the record.
    pub broker_message_id: String,
    /// Which delivery it was.
    pub attempt: u32,
    /// What became of it.
    pub outcome: &'static str,
    /// Why, as a code; empty where there is nothing to explain.
    pub error_code: &'static str,
    /// From receipt to outcome.
    pub duration: Duration,
    /// When it was done, Unix microseconds.
    pub occurred_at_micros: u64,
}

/// The final answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalResult {
    /// The order exists.
    Created {
        /// Its id.
        order_id: OrderId,
    },
    /// There will be no order.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// The unit was given back before an order was tried.
    Released,
}

/// A result on its way to where buyers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultRow {
    /// The SKU.
    pub sku: Sku,
    /// Whose request.
    pub request_id: Uuid,
    /// The reservation.
    pub reservation_id: Uuid,
    /// The buyer.
    pub user_id: UserId,
    /// What became of it.
    pub result: FinalResult,
}

/// Where results are shown.
pub trait ResultBoard {
    /// Shows results, soon and in batches. Lost ones are found again from the order store.
    fn project(&self, row: ResultRow);
}

/// What the board says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known of it.
    Missing,
    /// It belongs to another user.
    NotOwner,
    /// A reservation, not final.
    Open {
        /// The reservation.
        reservation_id: Uuid,
        /// Its order id.
        order_id: OrderId,
        /// Its state.
        state: ReservationState,
        /// When it was made, Unix milliseconds.
        created_at_ms: u64,
    },
    /// Final.
    Final {
        /// The reservation.
        reservation_id: Uuid,
        /// The answer.
        result: FinalResult,
    },
}

/// Looks results up for their owners.
pub trait ResultLookup {
    /// What the board says.
    async fn standing(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError>;

    /// What the order store says; `Missing` or `Final`. Slow and scarce: the caller limits the rate.
    async fn stored(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError>;
}

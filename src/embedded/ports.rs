//! The ports of the capabilities over the book, the journal and the order store.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use shards::mailbox;
use shards::sync::{Queue, oneshot};

use super::lane::{Answers, BATCH_MAX, Lane, Message, ask};
use super::store::{Store, StoredMessage};
use crate::domain::{
    EVENT_TAG, OrderCreateEvent, OrderId, OrderIdBlock, OrderOutcome, ReserveOutcome, Sku, TraceContext, UserId, Uuid,
};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::Metrics;
use crate::ports::{
    AttemptRow, Delivery, EventBus, MessageSource, OrderError, OrderMessage, Orders, PortError, PublishError,
    QuarantineRow, Reservations, ReserveRequest, ResultBoard, ResultLookup, ResultRow, Standing,
};

/// A shard's way to the owner of the book.
#[derive(Clone)]
pub enum Desk {
    /// This shard is the owner.
    Here(Rc<Lane>),
    /// Another one is.
    There(mailbox::Sender<Message>),
}

impl Desk {
    async fn reserve(&self, requests: Vec<ReserveRequest>) -> Answers {
        let count = requests.len();
        match self {
            Self::Here(lane) => lane.reserve(requests).await,
            Self::There(owner) => match ask(owner, |reply| Message::Reserve(requests, reply)).await {
                Ok(answers) => answers,
                Err(error) => vec![Err(error); count],
            },
        }
    }

    async fn standing(&self, sku: Sku, request_id: Uuid, user_id: UserId) -> Result<Standing, PortError> {
        match self {
            Self::Here(lane) => Ok(lane.standing(sku, &request_id, user_id)),
            Self::There(owner) => ask(owner, |reply| Message::Look { sku, request_id, user_id, reply }).await,
        }
    }
}

/// Where order ids come from: blocks of a counter that starts above every id in the book and never below the clock. Blocks
/// that a process took and did not use are thrown away with it; only ids in the book were ever told to anybody.
#[derive(Debug, Clone)]
pub struct OrderIdBlocks(Arc<AtomicI64>);

impl OrderIdBlocks {
    /// Blocks after the largest id in the book.
    pub fn after(order_id_max: i64, unix_ms: u64) -> Self {
        let clock = i64::try_from(unix_ms.saturating_sub(OrderIdBlock::EPOCH_UNIX_MS)).unwrap_or(i64::MAX);
        Self(Arc::new(AtomicI64::new(clock.max(order_id_max / OrderIdBlock::SIZE + 1).max(1))))
    }

    fn next(&self) -> Option<OrderIdBlock> {
        OrderIdBlock::new(self.0.fetch_add(1, Ordering::Relaxed), 1)
    }
}

struct Waiting {
    request: ReserveRequest,
    answer: oneshot::Sender<Result<ReserveOutcome, PortError>>,
}

/// [`Reservations`] of one shard.
pub struct EmbeddedReservations {
    desk: Desk,
    waiting: Rc<Queue<Waiting>>,
    blocks: OrderIdBlocks,
    block: RefCell<OrderIdBlock>,
    metrics: Rc<Metrics>,
}

impl EmbeddedReservations {
    /// A book behind `desk`; as many requests wait for it as the shard admits.
    pub fn new(desk: Desk, waiting_max: usize, blocks: OrderIdBlocks, metrics: Rc<Metrics>) -> Rc<Self> {
        let block = RefCell::new(OrderIdBlock::empty());
        Rc::new(Self { desk, waiting: Rc::new(Queue::new(waiting_max)), blocks, block, metrics })
    }

    /// Hands requests to the owner until [`close`](Self::close) and until what waits is answered.
    pub async fn run(self: Rc<Self>) {
        let (book, counter) = (self.clone(), self.metrics.clone());
        let reserve = move |batch| {
            let book = book.clone();
            async move { book.reserve_batch(batch).await }
        };
        let limits = Limits { batch_max: BATCH_MAX, in_flight_max: 1 };
        group_commit::run(self.waiting.clone(), limits, reserve, move || counter.task_panics.inc()).await;
    }

    /// Takes no new requests.
    pub fn close(&self) {
        self.waiting.close();
    }

    async fn reserve_batch(&self, mut batch: Vec<Waiting>) {
        // Who has stopped waiting before anything was decided wants nothing any more.
        batch.retain(|waiting| !waiting.answer.is_closed());
        if batch.is_empty() {
            return;
        }
        let requests = batch.iter().map(|waiting| waiting.request).collect();
        let answers = self.desk.reserve(requests).await;
        for (waiting, answer) in batch.into_iter().zip(answers) {
            // What was reserved for a caller who has stopped waiting is in the book, and ordered from there.
            let _ = waiting.answer.send(answer);
        }
    }
}

impl Reservations for EmbeddedReservations {
    async fn reserve(&self, request: ReserveRequest, deadline: Instant) -> Result<ReserveOutcome, PortError> {
        let (answer, answered) = oneshot::channel();
        self.waiting.try_push(Waiting { request, answer }).map_err(|_| PortError::Overloaded)?;
        match shards::timeout_at(deadline, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(PortError::Internal),
            Err(_) => Err(PortError::Timeout),
        }
    }

    async fn next_order_id(&self, _deadline: Instant) -> Result<OrderId, PortError> {
        let mut block = self.block.borrow_mut();
        if let Some(id) = block.take() {
            return Ok(id);
        }
        *block = self.blocks.next().ok_or(PortError::Internal)?;
        block.take().ok_or(PortError::Internal)
    }

    /// Durable in the journal is as good as in the topic.
    fn mark_sent(&self, _sku: Sku, _reservation_id: Uuid) {}

    /// There is nothing to send again: the owner hands every reservation to the worker until it has its order.
    async fn mark_pending(&self, _sku: Sku, _reservation_id: Uuid, _deadline: Instant) -> Result<bool, PortError> {
        Ok(false)
    }

    /// A send never fails here, so nothing is ever given back for one.
    async fn release(
        &self,
        _sku: Sku,
        _user_id: UserId,
        _reservation_id: Uuid,
        _deadline: Instant,
    ) -> Result<bool, PortError> {
        Ok(false)
    }
}

/// [`EventBus`]: the journal has the event already.
pub struct JournalBus;

impl EventBus for JournalBus {
    async fn publish(&self, _event: OrderCreateEvent, _deadline: Instant) -> Result<(), PublishError> {
        Ok(())
    }
}

/// [`MessageSource`] on the owner's shard: what the book holds and the order store does not.
pub struct BookSource {
    lane: Rc<Lane>,
    invisible: Duration,
    poll: Duration,
}

impl BookSource {
    /// Reservations of `lane`, hidden for `invisible` while they are worked on; an empty look waits `poll`.
    pub fn new(lane: Rc<Lane>, invisible: Duration, poll: Duration) -> Self {
        Self { lane, invisible, poll }
    }
}

impl MessageSource for BookSource {
    type Handle = u32;

    async fn receive(&self, max: usize, _puller: usize) -> Result<Vec<Delivery<u32>>, PortError> {
        let ready = self.lane.take_ready(max, self.invisible, self.poll).await;
        let deliveries = ready.into_iter().map(|(number, attempt, request)| {
            let event = request.event(TraceContext::default());
            let mut body = Vec::with_capacity(512);
            event.encode(&mut body);
            Delivery {
                body: Bytes::from(body),
                tag: EVENT_TAG.to_owned(),
                key: Some(event.message_key()),
                broker_message_id: format!("journal:{number}"),
                attempt,
                handle: number,
            }
        });
        Ok(deliveries.collect())
    }

    async fn ack(&self, handles: &[u32], _deadline: Instant) -> Vec<Result<(), PortError>> {
        for number in handles {
            self.lane.done(*number);
        }
        vec![Ok(()); handles.len()]
    }

    async fn extend(&self, handle: &u32, for_time: Duration) -> Result<u32, PortError> {
        self.lane.extend(*handle, for_time);
        Ok(*handle)
    }

    /// Nothing is ever given up here: a promise in the journal is kept, however long its order takes.
    async fn dead_letter(&self, _delivery: &Delivery<u32>, _deadline: Instant) -> Result<(), PortError> {
        Err(PortError::Internal)
    }

    async fn lag(&self, _deadline: Instant) -> Result<u64, PortError> {
        Ok(self.lane.waiting() as u64)
    }
}

/// [`Orders`] over the store's thread.
pub struct StoredOrders(pub Store);

impl Orders for StoredOrders {
    async fn settle(&self, messages: &[OrderMessage<'_>], deadline: Instant) -> Vec<Result<OrderOutcome, OrderError>> {
        let owned = messages.iter().map(|message| StoredMessage {
            event: message.event.clone(),
            body: message.body.to_vec(),
            broker_message_id: message.broker_message_id.to_owned(),
            attempt: message.attempt,
        });
        match shards::timeout_at(deadline, self.0.settle(owned.collect())).await {
            Ok(outcomes) => outcomes,
            // The thread may still be at it; the same messages again are answered by the inbox.
            Err(_) => vec![Err(OrderError::Transient("the order store is slow".to_owned())); messages.len()],
        }
    }

    /// The store's thread is part of this process.
    async fn probe(&self, _deadline: Instant) -> bool {
        true
    }

    async fn quarantine(&self, row: &QuarantineRow, _deadline: Instant) -> Result<(), PortError> {
        self.0.quarantine(row.clone()).await
    }

    async fn log_attempts(&self, rows: &[AttemptRow], _deadline: Instant) -> Result<(), PortError> {
        self.0.attempts(rows.to_vec()).await
    }
}

/// [`ResultBoard`]: the book itself.
pub struct BookBoard(pub Rc<Lane>);

impl ResultBoard for BookBoard {
    fn project(&self, row: ResultRow) {
        self.0.settle(&row);
    }
}

/// [`ResultLookup`]: the book, and behind it the order store.
pub struct BookLookup {
    /// The way to the book.
    pub desk: Desk,
    /// The order store.
    pub store: Store,
}

impl ResultLookup for BookLookup {
    async fn standing(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError> {
        let looked = self.desk.standing(sku, request_id, user_id);
        shards::timeout_at(deadline, looked).await.unwrap_or(Err(PortError::Timeout))
    }

    async fn stored(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError> {
        let asked = self.store.stored(sku, request_id, user_id);
        shards::timeout_at(deadline, asked).await.unwrap_or(Err(PortError::Timeout))
    }
}

//! The reservation book in Redis (spec sections 2 and 3).

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use proto_clients::redis::{Command, Pool, Reply, dump};
use shards::sync::{Queue, oneshot};

use super::Shared;
use super::order_ids::OrderIds;
use super::redis_call::{Redis, codes};
use super::scripts::key_prefix;
use crate::domain::{OrderId, ReservationState, ReserveOutcome, Sku, UserId, Uuid, by_sku};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::RedisOperation;
use crate::ports::{PortError, Reservations, ReserveRequest};
use crate::submit::Orphan;

/// Arguments a request takes in `reserve.lua`.
const RESERVE_STRIDE: usize = 7;
/// SKUs remembered as sold out.
const DRY_MAX: usize = 1_024;
/// The version of a reservation that nothing has happened to yet.
const VERSION_RESERVED: &[u8] = b"1";
/// A reservation's record is shorter than this.
const RECORD_BYTES: usize = 320;
/// Marks that may wait. One that finds no room is only a note lost: recovery reads the broker's truth from the order.
const MARKS_MAX: usize = 65_536;
/// Marks in one script call (the script's own bound).
const MARK_BATCH: usize = 512;
/// Longest mark call; nobody waits for it.
const MARK_TIME: Duration = Duration::from_millis(500);

/// How the book is used.
#[derive(Debug, Clone, Copy)]
pub struct ReserveLimits {
    /// Requests that may wait for the next call; as many as the shard admits.
    pub waiting_max: usize,
    /// Requests in one script call.
    pub batch_max: usize,
    /// How long a second call with the same ids may take after the first one's outcome stayed unknown.
    pub second_try: Duration,
}

struct Waiting {
    request: ReserveRequest,
    deadline: Instant,
    answer: oneshot::Sender<Result<ReserveOutcome, PortError>>,
}

struct Mark {
    sku: Sku,
    reservation_id: Uuid,
}

/// [`Reservations`] of one shard over Redis.
pub struct RedisReservations {
    redis: Redis,
    limits: ReserveLimits,
    waiting: Rc<Queue<Waiting>>,
    marks: Rc<Queue<Mark>>,
    orphans: Rc<Queue<Orphan>>,
    order_ids: Rc<OrderIds>,
    /// SKUs that had no unit left when last asked for.
    dry: RefCell<HashSet<Sku>>,
}

impl RedisReservations {
    /// A book over `pool`. Reservations made for callers who had stopped waiting go to `orphans`.
    pub fn new(pool: Pool, shared: &Shared, limits: ReserveLimits, orphans: Rc<Queue<Orphan>>) -> Rc<Self> {
        let redis = Redis::new(pool, shared);
        Rc::new(Self {
            order_ids: OrderIds::new(redis.clone()),
            redis,
            limits,
            waiting: Rc::new(Queue::new(limits.waiting_max)),
            marks: Rc::new(Queue::new(MARKS_MAX)),
            orphans,
            dry: RefCell::default(),
        })
    }

    /// Runs the pumps until [`close`](Self::close) and until what waits is done.
    pub async fn run(self: Rc<Self>) {
        let (book, counter) = (self.clone(), self.redis.metrics.clone());
        let reserve = move |batch| {
            let book = book.clone();
            async move { book.reserve_batch(batch).await }
        };
        let limits = Limits { batch_max: self.limits.batch_max, in_flight_max: 1 };
        let reserving =
            shards::spawn(group_commit::run(self.waiting.clone(), limits, reserve, move || counter.task_panics.inc()));
        let (book, counter) = (self.clone(), self.redis.metrics.clone());
        let mark = move |batch| {
            let book = book.clone();
            async move { book.mark_batch(batch).await }
        };
        let limits = Limits { batch_max: MARK_BATCH, in_flight_max: 1 };
        group_commit::run(self.marks.clone(), limits, mark, move || counter.task_panics.inc()).await;
        if reserving.await.is_err() {
            self.redis.metrics.task_panics.inc();
        }
    }

    /// No new reservations; marks are still taken.
    pub fn close_reserving(&self) {
        self.waiting.close();
    }

    /// Nothing more is taken; [`run`](Self::run) ends when what waits is done.
    pub fn close(&self) {
        self.waiting.close();
        self.marks.close();
    }

    async fn reserve_batch(self: Rc<Self>, mut batch: Vec<Waiting>) {
        let now = shards::now();
        // Who has stopped waiting before anything was sent wants nothing any more.
        batch.retain(|waiting| !waiting.answer.is_closed() && waiting.deadline > now);
        let mut groups = by_sku(batch, |waiting| waiting.request.sku);
        let Some((last_sku, last)) = groups.pop() else { return };
        let others: Vec<_> = groups
            .into_iter()
            .map(|(sku, group)| {
                let book = self.clone();
                shards::spawn(async move { book.reserve_group(sku, group).await })
            })
            .collect();
        self.reserve_group(last_sku, last).await;
        for other in others {
            if other.await.is_err() {
                self.redis.metrics.task_panics.inc();
            }
        }
    }

    async fn reserve_group(&self, sku: Sku, group: Vec<Waiting>) {
        self.redis.metrics.reserve_batch.observe(group.len() as f64);
        let deadline = group.iter().map(|waiting| waiting.deadline).max().unwrap_or_else(shards::now);
        let mut outcome = self.call(sku, &group, deadline).await;
        if let Err(PortError::Timeout | PortError::Unknown) = outcome
            && self.redis.guard.may_retry()
        {
            // The script may have run: the same ids again find what it did. Never a release on this (spec section 2).
            outcome = self.call(sku, &group, shards::now() + self.limits.second_try).await;
        }
        let outcomes = match outcome {
            Ok(outcomes) => outcomes,
            Err(error) => {
                for waiting in group {
                    // A caller who is gone has had its 504 already; what may have been reserved stands in the pending index.
                    let _ = waiting.answer.send(Err(error));
                }
                return;
            }
        };
        for (waiting, outcome) in group.into_iter().zip(outcomes) {
            self.redis.metrics.redis_lua_result[lua_code(&outcome)].inc();
            let unheard = waiting.answer.send(Ok(outcome)).is_err();
            if unheard
                && outcome == ReserveOutcome::Created
                && self.orphans.try_push(Orphan::of(&waiting.request)).is_err()
            {
                tracing::warn!(
                    reservation_id = %waiting.request.reservation_id,
                    "too many unsent messages in hand; the pending index keeps the rest"
                );
            }
        }
    }

    async fn call(&self, sku: Sku, group: &[Waiting], deadline: Instant) -> Result<Vec<ReserveOutcome>, PortError> {
        let script = &self.redis.scripts.reserve;
        let mut command = script.command(1, 1 + RESERVE_STRIDE * group.len());
        command.arg(key_prefix(sku).as_bytes());
        let dry = self.dry.borrow().contains(&sku);
        let mut record = Vec::with_capacity(if dry { 0 } else { RECORD_BYTES });
        for waiting in group {
            let request = &waiting.request;
            command.arg_i64(request.user_id.get());
            command.arg(&request.request_id.text());
            command.arg(&request.reservation_id.text());
            command.arg(&request.message_id.text());
            command.arg_i64(request.order_id.get());
            command.arg_u64(request.created_at_micros / 1_000);
            // A click that wins nothing needs no record; the script writes one itself should a unit have come back.
            if !dry {
                record.clear();
                write_record(&mut record, request);
            }
            command.arg(&record);
        }
        let reply = self.redis.eval(RedisOperation::Reserve, script, command, deadline).await?;
        self.note_stock(sku, dry, &reply);
        read_outcomes(&reply, group.iter().map(|waiting| &waiting.request)).ok_or_else(|| {
            tracing::error!(?reply, "reserve.lua answered in another shape than its header says");
            PortError::Internal
        })
    }

    /// Remembers whether the SKU had a unit left, from the reply's second field.
    fn note_stock(&self, sku: Sku, dry: bool, reply: &Reply) {
        let stock = reply.as_array().and_then(|fields| fields.get(1)?.as_i64());
        match stock {
            Some(1..) if dry => {
                self.dry.borrow_mut().remove(&sku);
            }
            Some(0) if !dry => {
                let mut known = self.dry.borrow_mut();
                // Only a hint: forgetting it costs records that nobody needs.
                if known.len() >= DRY_MAX {
                    known.clear();
                }
                known.insert(sku);
            }
            _ => {}
        }
    }

    async fn mark_batch(&self, batch: Vec<Mark>) {
        for (sku, marks) in by_sku(batch, |mark| mark.sku) {
            let script = &self.redis.scripts.mark_sent;
            let mut command = script.command(1, 1 + 2 * marks.len());
            command.arg(key_prefix(sku).as_bytes());
            for mark in &marks {
                command.arg(&mark.reservation_id.text());
                command.arg(b"");
            }
            let deadline = shards::now() + MARK_TIME;
            let reply = self.redis.eval(RedisOperation::MarkSent, script, command, deadline).await;
            match reply.as_ref().map_err(|error| *error).and_then(|reply| codes(reply, marks.len())) {
                Ok((_, 0)) => {}
                Ok((codes, refused)) => {
                    self.redis.metrics.reservation_illegal_transition.add(refused);
                    tracing::error!(%sku, codes = %String::from_utf8_lossy(codes), "messages sent for released reservations");
                }
                // They stay in the pending index. A resend of theirs changes nothing: the inbox answers it.
                Err(error) => tracing::warn!(%sku, %error, count = marks.len(), "reservations not marked MQ_SENT"),
            }
        }
    }

    async fn one_code(
        &self,
        operation: RedisOperation,
        script: &proto_clients::redis::Script,
        command: Command,
        deadline: Instant,
    ) -> Result<u8, PortError> {
        let reply = self.redis.eval(operation, script, command, deadline).await?;
        let (codes, refused) = codes(&reply, 1)?;
        self.redis.metrics.reservation_illegal_transition.add(refused);
        Ok(codes[0])
    }
}

impl Reservations for RedisReservations {
    async fn reserve(&self, request: ReserveRequest, deadline: Instant) -> Result<ReserveOutcome, PortError> {
        let (answer, answered) = oneshot::channel();
        self.waiting.try_push(Waiting { request, deadline, answer }).map_err(|_| PortError::Overloaded)?;
        match shards::timeout_at(deadline, answered).await {
            Ok(Ok(outcome)) => outcome,
            // The pump dropped it: over its deadline before it was sent, or a panic.
            Ok(Err(_)) if shards::now() >= deadline => Err(PortError::Timeout),
            Ok(Err(_)) => Err(PortError::Internal),
            Err(_) => Err(PortError::Timeout),
        }
    }

    async fn next_order_id(&self, deadline: Instant) -> Result<OrderId, PortError> {
        self.order_ids.next(deadline).await
    }

    fn mark_sent(&self, sku: Sku, reservation_id: Uuid) {
        if self.marks.try_push(Mark { sku, reservation_id }).is_err() {
            tracing::warn!(%reservation_id, "not marked MQ_SENT: too many marks wait");
        }
    }

    async fn mark_pending(&self, sku: Sku, reservation_id: Uuid, deadline: Instant) -> Result<bool, PortError> {
        let script = &self.redis.scripts.mark_pending;
        let mut command = script.command(1, 4);
        command.arg(key_prefix(sku).as_bytes());
        command.arg(&reservation_id.text());
        command.arg(b"");
        command.arg(b"");
        match self.one_code(RedisOperation::MarkPending, script, command, deadline).await? {
            b'0' | b'1' => Ok(true),
            b'2' => Ok(false),
            code => {
                tracing::warn!(%reservation_id, code = %(code as char), "mark_pending refused");
                Ok(false)
            }
        }
    }

    async fn release(
        &self,
        sku: Sku,
        user_id: UserId,
        reservation_id: Uuid,
        deadline: Instant,
    ) -> Result<bool, PortError> {
        let script = &self.redis.scripts.release;
        let mut command = script.command(1, 5);
        command.arg(key_prefix(sku).as_bytes());
        command.arg(b"unsent");
        command.arg(&reservation_id.text());
        command.arg_i64(user_id.get());
        // Only as it was reserved: a release that arrives late must not find it MQ_PENDING, claimed and sent by somebody else.
        command.arg(VERSION_RESERVED);
        Ok(matches!(self.one_code(RedisOperation::Release, script, command, deadline).await?, b'0' | b'1'))
    }
}

/// Appends the reservation hash of a request, as `reserve.lua` restores it.
fn write_record(out: &mut Vec<u8>, request: &ReserveRequest) {
    let text = |value: i64| value.to_string();
    let created_at_ms = (request.created_at_micros / 1_000).to_string();
    dump::hash(
        out,
        [
            (&b"request_id"[..], &request.request_id.text()[..]),
            (b"user_id", text(request.user_id.get()).as_bytes()),
            (b"message_id", &request.message_id.text()),
            (b"order_id", text(request.order_id.get()).as_bytes()),
            (b"status", ReservationState::Reserved.name().as_bytes()),
            (b"version", VERSION_RESERVED),
            (b"created_at_ms", created_at_ms.as_bytes()),
        ],
    );
}

fn lua_code(outcome: &ReserveOutcome) -> usize {
    match outcome {
        ReserveOutcome::Created => 0,
        ReserveOutcome::SameRequest { .. } => 1,
        ReserveOutcome::SameUser { .. } => 2,
        ReserveOutcome::SoldOut => 3,
        ReserveOutcome::Unavailable => 4,
        ReserveOutcome::NotStarted => 5,
        ReserveOutcome::Ended => 6,
        ReserveOutcome::KeyReused => 7,
        ReserveOutcome::Closed => 8,
    }
}

/// One outcome a request, from the reply that the header of `reserve.lua` describes. `None`: another shape.
fn read_outcomes<'a>(
    reply: &Reply,
    requests: impl ExactSizeIterator<Item = &'a ReserveRequest>,
) -> Option<Vec<ReserveOutcome>> {
    let fields = reply.as_array()?;
    let codes = fields.first()?.as_bytes()?;
    if codes.len() != requests.len() {
        return None;
    }
    let mut rest = fields.get(3..)?.iter();
    let mut outcomes = Vec::with_capacity(codes.len());
    for (code, request) in codes.iter().zip(requests) {
        outcomes.push(match code {
            b'0' => ReserveOutcome::Created,
            b'1' => same_request(&mut rest, request)?,
            b'2' => ReserveOutcome::SameUser { reservation_id: Uuid::parse(rest.next()?.as_bytes()?)? },
            b'3' => ReserveOutcome::SoldOut,
            b'4' => ReserveOutcome::Unavailable,
            b'5' => ReserveOutcome::NotStarted,
            b'6' => ReserveOutcome::Ended,
            b'7' => ReserveOutcome::KeyReused,
            b'8' => ReserveOutcome::Closed,
            _ => return None,
        });
    }
    Some(outcomes)
}

fn same_request<'a>(fields: &mut impl Iterator<Item = &'a Reply>, request: &ReserveRequest) -> Option<ReserveOutcome> {
    let mut text = || fields.next()?.as_bytes();
    let (reservation_id, message_id, order_id, status, _version, created_at_ms) =
        (Uuid::parse(text()?)?, text()?, text()?, text()?, text()?, text()?);
    if reservation_id == request.reservation_id {
        // The first call of these very ids had run although its reply was lost.
        return Some(ReserveOutcome::Created);
    }
    if status.is_empty() {
        // The reservation expired between two reads; the key is still known to be used up.
        return Some(ReserveOutcome::Unavailable);
    }
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    Some(ReserveOutcome::SameRequest {
        reservation_id,
        // A reservation restored from PostgreSQL has its order; its message is not known and not needed any more.
        message_id: if message_id.is_empty() { Uuid([0; 16]) } else { Uuid::parse(message_id)? },
        order_id: OrderId::new(number(order_id)?)?,
        state: ReservationState::from_name(status)?,
        created_at_ms: u64::try_from(number(created_at_ms)?).ok()?,
    })
}

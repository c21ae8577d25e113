//! Results in Redis, and behind it in PostgreSQL (spec section 6).

use std::rc::Rc;
use std::time::{Duration, Instant};

use proto_clients::postgres::{Params, Pool as PgPool, Row, Statement, Type};
use proto_clients::redis::{Pool, Reply};
use shards::sync::{Queue, oneshot};

use super::Shared;
use super::postgres_call::Postgres;
use super::redis_call::{Redis, codes};
use super::scripts::key_prefix;
use crate::domain::{OrderId, RejectReason, ReservationState, Sku, UserId, Uuid, by_sku};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::RedisOperation;
use crate::ports::{FinalResult, PortError, ResultBoard, ResultLookup, ResultRow, Standing};

/// Results that may wait. One that finds no room is found again from the inbox.
const WAITING_MAX: usize = 65_536;
/// Results in one script call (the script's own bound).
const BATCH: Limits = Limits { batch_max: 512, in_flight_max: 1 };
/// Longest projection call, and pause before its second try.
const PROJECT: Duration = Duration::from_millis(500);
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Looks in one script call, below the script's own bound.
const LOOKS: Limits = Limits { batch_max: 128, in_flight_max: 1 };
/// Fields a request in the reply of `read_result.lua`.
const RESULT_FIELDS: usize = 9;

static ORDER_BY_REQUEST: Statement = Statement {
    sql: include_str!("../../sql/query/order_by_request.sql"),
    params: &[Type::Int8, Type::Int8, Type::Uuid, Type::Int8],
};

struct Board {
    redis: Redis,
    waiting: Rc<Queue<ResultRow>>,
}

/// [`ResultBoard`] of one shard.
#[derive(Clone)]
pub struct RedisBoard(Rc<Board>);

impl RedisBoard {
    /// A board over `pool`.
    pub fn new(pool: Pool, shared: &Shared) -> Self {
        Self(Rc::new(Board { redis: Redis::new(pool, shared), waiting: Rc::new(Queue::new(WAITING_MAX)) }))
    }

    /// Writes results until [`close`](Self::close) and until what waits is written.
    pub async fn run(self) {
        let (board, counter) = (self.0.clone(), self.0.redis.metrics.clone());
        let project = move |batch| {
            let board = board.clone();
            async move { board.project(batch).await }
        };
        group_commit::run(self.0.waiting.clone(), BATCH, project, move || counter.task_panics.inc()).await;
    }

    /// Takes no more results.
    pub fn close(&self) {
        self.0.waiting.close();
    }
}

impl ResultBoard for RedisBoard {
    fn project(&self, row: ResultRow) {
        if self.0.waiting.try_push(row).is_err() {
            self.0.redis.metrics.result_projection_failures.inc();
        }
    }
}

impl Board {
    async fn project(&self, batch: Vec<ResultRow>) {
        for (sku, rows) in by_sku(batch, |row| row.sku) {
            let mut written = write_results(&self.redis, sku, &rows, shards::now() + PROJECT).await;
            if written.is_err() && self.redis.guard.may_retry() {
                shards::sleep(AGAIN_AFTER).await;
                written = write_results(&self.redis, sku, &rows, shards::now() + PROJECT).await;
            }
            let metrics = &self.redis.metrics;
            match written {
                Ok(refused) => {
                    metrics.result_projected.add(rows.len() as u64 - refused);
                    metrics.reservation_illegal_transition.add(refused);
                }
                Err(error) => {
                    metrics.result_projection_failures.add(rows.len() as u64);
                    tracing::warn!(%sku, %error, count = rows.len(), "results not shown");
                }
            }
        }
    }
}

/// A result as `project_result.lua` takes it.
pub(super) struct Shown<'a> {
    pub(super) request_id: Uuid,
    pub(super) reservation_id: Uuid,
    pub(super) user_id: UserId,
    pub(super) state: &'static str,
    pub(super) order_id: Option<i64>,
    pub(super) code: &'a str,
}

impl From<&ResultRow> for Shown<'static> {
    fn from(row: &ResultRow) -> Self {
        let (state, order_id, code) = match row.result {
            FinalResult::Created { order_id } => ("CREATED", Some(order_id.get()), ""),
            FinalResult::Rejected { reason } => ("REJECTED", None, reason.code()),
            // The order store rejects such a message with a reason of its own, so it never sends this one.
            FinalResult::Released => ("REJECTED", None, RejectReason::ReservationReleased.code()),
        };
        let ResultRow { request_id, reservation_id, user_id, .. } = *row;
        Self { request_id, reservation_id, user_id, state, order_id, code }
    }
}

/// Runs `project_result.lua` on results of one SKU.
pub(super) async fn project<'a>(
    redis: &Redis,
    sku: Sku,
    results: impl ExactSizeIterator<Item = Shown<'a>>,
    deadline: Instant,
) -> Result<Reply, PortError> {
    let script = &redis.scripts.project_result;
    let mut command = script.command(1, 1 + 6 * results.len());
    command.arg(key_prefix(sku).as_bytes());
    for shown in results {
        command.arg(&shown.request_id.text());
        command.arg(&shown.reservation_id.text());
        command.arg_i64(shown.user_id.get());
        command.arg(shown.state.as_bytes());
        command.arg(shown.order_id.map(|id| id.to_string()).unwrap_or_default().as_bytes());
        command.arg(shown.code.as_bytes());
    }
    redis.eval(RedisOperation::Project, script, command, deadline).await
}

/// Shows the results of one SKU; how many of them the reservations contradict.
pub(super) async fn write_results(
    redis: &Redis,
    sku: Sku,
    rows: &[ResultRow],
    deadline: Instant,
) -> Result<u64, PortError> {
    let reply = project(redis, sku, rows.iter().map(Shown::from), deadline).await?;
    let (codes, refused) = codes(&reply, rows.len())?;
    if codes.contains(&b'6') {
        // Its owners are answered from PostgreSQL until the sale is rebuilt.
        tracing::debug!(%sku, "results of a sale that Redis does not know");
    }
    if refused > 0 {
        let codes = String::from_utf8_lossy(codes);
        tracing::error!(%sku, %codes, "results that the reservations contradict");
    }
    Ok(refused)
}

/// A look at one request, and where the answer goes.
struct Look {
    sku: Sku,
    request_id: Uuid,
    user_id: UserId,
    deadline: Instant,
    answer: oneshot::Sender<Result<Standing, PortError>>,
}

/// [`ResultLookup`] of one shard: Redis first, PostgreSQL through a small pool of its own.
///
/// Long polls look often, so looks share round trips as every other call does.
pub struct Results {
    redis: Redis,
    postgres: Postgres,
    looks: Rc<Queue<Look>>,
}

impl Results {
    /// A lookup over both; at most `waiting_max` looks wait for the next round trip.
    pub fn new(redis: Pool, postgres: PgPool, shared: &Shared, waiting_max: usize) -> Rc<Self> {
        let looks = Rc::new(Queue::new(waiting_max));
        Rc::new(Self { redis: Redis::new(redis, shared), postgres: Postgres::new(postgres, shared), looks })
    }

    /// Looks until [`close`](Self::close) and until what waits is answered.
    pub async fn run(self: Rc<Self>) {
        let (results, counter) = (self.clone(), self.redis.metrics.clone());
        let look = move |batch| {
            let results = results.clone();
            async move { results.look(batch).await }
        };
        group_commit::run(self.looks.clone(), LOOKS, look, move || counter.task_panics.inc()).await;
    }

    /// Takes no more looks.
    pub fn close(&self) {
        self.looks.close();
    }

    async fn look(&self, mut batch: Vec<Look>) {
        batch.retain(|look| !look.answer.is_closed());
        for (sku, looks) in by_sku(batch, |look| look.sku) {
            let reply = self.read(sku, &looks).await;
            for (index, look) in looks.into_iter().enumerate() {
                let standing = reply.as_ref().map_err(|error| *error).and_then(|reply| {
                    read_standing(reply, index, look.user_id).ok_or_else(|| {
                        tracing::error!(?reply, "read_result.lua answered in another shape than its header says");
                        PortError::Internal
                    })
                });
                // Whoever looked may have gone.
                let _ = look.answer.send(standing);
            }
        }
    }

    async fn read(&self, sku: Sku, looks: &[Look]) -> Result<Reply, PortError> {
        let script = &self.redis.scripts.read_result;
        let mut command = script.command(1, 1 + looks.len());
        command.arg(key_prefix(sku).as_bytes());
        for look in looks {
            command.arg(&look.request_id.text());
        }
        let deadline = looks.iter().map(|look| look.deadline).max().unwrap_or_else(shards::now);
        self.redis.eval(RedisOperation::Result, script, command, deadline).await
    }
}

impl ResultLookup for Results {
    async fn standing(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError> {
        let (answer, answered) = oneshot::channel();
        let look = Look { sku, request_id, user_id, deadline, answer };
        self.looks.try_push(look).map_err(|_| PortError::Overloaded)?;
        match shards::timeout_at(deadline, answered).await {
            Ok(Ok(standing)) => standing,
            Ok(Err(_)) => Err(PortError::Internal),
            Err(_) => Err(PortError::Timeout),
        }
    }

    async fn stored(
        &self,
        sku: Sku,
        request_id: Uuid,
        user_id: UserId,
        deadline: Instant,
    ) -> Result<Standing, PortError> {
        let mut params = Params::new();
        params.i64(sku.activity.get()).i64(sku.sku.get()).uuid(request_id.0).i64(user_id.get());
        let rows = self.postgres.query(&ORDER_BY_REQUEST, &params, deadline).await?;
        if rows.is_empty() {
            return Ok(Standing::Missing);
        }
        read_stored(&rows.row(0)).map_err(|error| {
            tracing::error!(%error, "order_by_request.sql answered in another shape than its header says");
            PortError::Internal
        })
    }
}

pub(super) fn reject_reason(code: &str) -> RejectReason {
    // Releases of quarantined messages carry the reason of the quarantine, which is no business of the buyer's.
    RejectReason::from_code(code).unwrap_or(RejectReason::InternalError)
}

/// The answer about request `index`, from the reply that the header of `read_result.lua` describes. `None`: another shape.
fn read_standing(reply: &Reply, index: usize, user_id: UserId) -> Option<Standing> {
    let fields = reply.as_array()?.get(index * RESULT_FIELDS..)?;
    let text = |index: usize| std::str::from_utf8(fields.get(index)?.as_bytes()?).ok();
    // Two integers, then: owner, reservation, status, reserved order, created at, result state, order, code, time.
    let (owner, reservation_id, status) = (text(2)?, text(3)?, text(4)?);
    let (reserved_order, created_at, result, order, code) = (text(5)?, text(6)?, text(7)?, text(8)?, text(9)?);
    if owner.is_empty() {
        return Some(Standing::Missing);
    }
    if owner.parse::<i64>().ok()? != user_id.get() {
        return Some(Standing::NotOwner);
    }
    let reservation_id = Uuid::parse(reservation_id.as_bytes())?;
    let order_id = |text: &str| OrderId::new(text.parse().ok()?);
    match result {
        "CREATED" => {
            let result = FinalResult::Created { order_id: order_id(order)? };
            return Some(Standing::Final { reservation_id, result });
        }
        "REJECTED" => {
            let result = FinalResult::Rejected { reason: reject_reason(code) };
            return Some(Standing::Final { reservation_id, result });
        }
        "" => {}
        _ => return None,
    }
    if status.is_empty() {
        return Some(Standing::Missing);
    }
    let state = ReservationState::from_name(status.as_bytes())?;
    if state == ReservationState::Released {
        return Some(Standing::Final { reservation_id, result: FinalResult::Released });
    }
    Some(Standing::Open {
        reservation_id,
        order_id: order_id(reserved_order)?,
        state,
        created_at_ms: created_at.parse().ok()?,
    })
}

fn read_stored(row: &Row<'_>) -> Result<Standing, proto_clients::postgres::DecodeError> {
    let reservation_id = Uuid(row.uuid(2)?);
    let result = match (row.text(0)?, row.opt_i64(1)?.and_then(OrderId::new)) {
        ("CREATED", Some(order_id)) => FinalResult::Created { order_id },
        _ => FinalResult::Rejected { reason: reject_reason(row.opt_text(3)?.unwrap_or_default()) },
    };
    Ok(Standing::Final { reservation_id, result })
}

//! The index of unconfirmed reservations: sales from PostgreSQL, reservations from Redis (spec sections 3 and 7).

use std::time::{Duration, Instant};

use proto_clients::postgres::{CallError, DecodeError, Params, Pool as PgPool, Row, Statement, Type};
use proto_clients::redis::{Pool, Reply};

use super::Shared;
use super::postgres_call::Postgres;
use super::redis_call::Redis;
use super::scripts::key_prefix;
use crate::domain::{OrderCreateEvent, OrderId, Sku, TraceContext, UserId, Uuid};
use crate::observe::metrics::RedisOperation;
use crate::ports::{PendingIndex, PortError};

/// Sales scanned at a time.
const SALES_MAX: i64 = 1_000;
/// Fields of a claimed reservation in the reply of `claim_pending.lua`.
const FIELDS: usize = 8;

static LIVE: Statement = Statement { sql: include_str!("../../sql/activity/live.sql"), params: &[Type::Int8] };

/// [`PendingIndex`] over both stores.
pub struct RedisPending {
    redis: Redis,
    postgres: Postgres,
}

impl RedisPending {
    /// An index over the pools.
    pub fn new(redis: Pool, postgres: PgPool, shared: &Shared) -> Self {
        Self { redis: Redis::new(redis, shared), postgres: Postgres::new(postgres, shared) }
    }
}

/// Sales whose reservations may still be on their way.
///
/// # Errors
/// When PostgreSQL cannot be asked.
pub(crate) async fn live_sales(postgres: &PgPool, deadline: Instant) -> Result<Vec<Sku>, CallError> {
    let mut client = postgres.acquire(deadline).await?;
    let mut params = Params::new();
    params.i64(SALES_MAX);
    let rows = client.query(&LIVE, &params, deadline).await?;
    let sku = |row: Row<'_>| -> Result<Option<Sku>, DecodeError> { Ok(Sku::new(row.i64(0)?, row.i64(1)?)) };
    // The table's own checks keep both ids positive; a row that cannot be read is not ours to judge here.
    Ok(rows.iter().filter_map(|row| sku(row).ok().flatten()).collect())
}

impl PendingIndex for RedisPending {
    async fn live_sales(&self, deadline: Instant) -> Result<Vec<Sku>, PortError> {
        self.postgres.call(live_sales(self.postgres.pool(), deadline)).await
    }

    async fn claim(
        &self,
        sku: Sku,
        age: Duration,
        lease: Duration,
        max: usize,
        deadline: Instant,
    ) -> Result<Vec<OrderCreateEvent>, PortError> {
        let script = &self.redis.scripts.claim_pending;
        let mut command = script.command(1, 4);
        command.arg(key_prefix(sku).as_bytes());
        for number in [age.as_millis(), lease.as_millis(), max as u128] {
            command.arg_u64(u64::try_from(number).unwrap_or(u64::MAX));
        }
        let reply = self.redis.eval(RedisOperation::Claim, script, command, deadline).await?;
        let fields = reply.as_array().ok_or(PortError::Internal)?;
        let (rows, []) = fields.as_chunks::<FIELDS>() else { return Err(PortError::Internal) };
        let events = rows.iter().filter_map(|row| {
            let event = event(sku, row);
            if event.is_none() {
                // It stays where it is, and is named every time its lease is over.
                tracing::error!(%sku, reservation = ?row[0], "a pending reservation that cannot be read");
            }
            event
        });
        Ok(events.collect())
    }
}

fn event(sku: Sku, row: &[Reply; FIELDS]) -> Option<OrderCreateEvent> {
    let text = |at: usize| std::str::from_utf8(row[at].as_bytes()?).ok();
    let uuid = |at: usize| Uuid::parse(row[at].as_bytes()?);
    let number = |at: usize| text(at)?.parse::<i64>().ok();
    Some(OrderCreateEvent {
        reservation_id: uuid(0)?,
        request_id: uuid(1)?,
        user_id: UserId::new(number(2)?)?,
        message_id: uuid(3)?,
        order_id: OrderId::new(number(4)?)?,
        sku,
        created_at_micros: u64::try_from(number(5)?).ok()?.checked_mul(1_000)?,
        retry_count: u32::try_from(number(6)?).ok()?,
        trace: TraceContext { traceparent: text(7)?.to_owned(), tracestate: String::new() },
    })
}

//! The release outbox in PostgreSQL, and the units in Redis (spec sections 3 and 5).

use std::time::Instant;

use proto_clients::postgres::{DecodeError, Params, Pool as PgPool, Row, Statement, Type};
use proto_clients::redis::Pool;

use super::Shared;
use super::postgres_call::Postgres;
use super::redis_call::{Redis, codes};
use super::results::{Shown, project};
use super::scripts::key_prefix;
use crate::domain::{Sku, UserId, Uuid};
use crate::observe::metrics::RedisOperation;
use crate::ports::{PortError, Release, ReleaseOutbox, Returned};

static CLAIM: Statement = Statement { sql: include_str!("../../sql/release/claim_due.sql"), params: &[Type::Int8] };
static APPLIED: Statement =
    Statement { sql: include_str!("../../sql/release/applied.sql"), params: &[Type::Int8Array] };

/// [`ReleaseOutbox`] over both stores.
pub struct Releases {
    redis: Redis,
    postgres: Postgres,
}

impl Releases {
    /// The outbox over the pools.
    pub fn new(redis: Pool, postgres: PgPool, shared: &Shared) -> Self {
        Self { redis: Redis::new(redis, shared), postgres: Postgres::new(postgres, shared) }
    }
}

fn release(row: &Row<'_>) -> Result<Option<Release>, DecodeError> {
    let (Some(sku), Some(user_id)) = (Sku::new(row.i64(1)?, row.i64(2)?), UserId::new(row.i64(5)?)) else {
        return Ok(None);
    };
    Ok(Some(Release {
        id: row.i64(0)?,
        sku,
        reservation_id: Uuid(row.uuid(3)?),
        request_id: Uuid(row.uuid(4)?),
        user_id,
        order_id: row.opt_i64(6)?,
        reason: row.text(7)?.to_owned(),
    }))
}

impl ReleaseOutbox for Releases {
    async fn claim(&self, max: usize, deadline: Instant) -> Result<Vec<Release>, PortError> {
        let mut params = Params::new();
        params.i64(i64::try_from(max).unwrap_or(i64::MAX));
        let rows = self.postgres.query(&CLAIM, &params, deadline).await?;
        let mut due = Vec::with_capacity(rows.len());
        for at in 0..rows.len() {
            let row = release(&rows.row(at)).map_err(|error| {
                tracing::error!(%error, "a release that cannot be read");
                PortError::Internal
            })?;
            due.extend(row);
        }
        Ok(due)
    }

    async fn give_back(&self, sku: Sku, rows: &[Release], deadline: Instant) -> Result<Vec<Returned>, PortError> {
        let rejected = rows.iter().map(|row| Shown {
            request_id: row.request_id,
            reservation_id: row.reservation_id,
            user_id: row.user_id,
            state: "REJECTED",
            order_id: row.order_id,
            code: &row.reason,
        });
        // What it refuses, the release refuses too, and that is what counts.
        codes(&project(&self.redis, sku, rejected, deadline).await?, rows.len())?;
        let script = &self.redis.scripts.release;
        let mut command = script.command(1, 2 + 3 * rows.len());
        command.arg(key_prefix(sku).as_bytes());
        command.arg(b"rejected");
        for row in rows {
            command.arg(&row.reservation_id.text());
            command.arg_i64(row.user_id.get());
            command.arg(b"");
        }
        let reply = self.redis.eval(RedisOperation::Release, script, command, deadline).await?;
        let (codes, refused) = codes(&reply, rows.len())?;
        self.redis.metrics.reservation_illegal_transition.add(refused);
        // 0 given back, 1 given back before, 5 no such reservation any more: its keys have expired.
        Ok(codes.iter().map(|code| if b"015".contains(code) { Returned::Done } else { Returned::Refused }).collect())
    }

    async fn applied(&self, ids: &[i64], deadline: Instant) -> Result<(), PortError> {
        let mut params = Params::new();
        params.i64_array(ids.iter().copied());
        self.postgres.query(&APPLIED, &params, deadline).await.map(drop)
    }
}

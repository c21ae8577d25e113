//! Committed outcomes from the inbox in PostgreSQL, shown in Redis (spec sections 5 and 6).

use std::time::{Duration, Instant};

use proto_clients::postgres::{DecodeError, Params, Pool as PgPool, Row, Statement, Type};
use proto_clients::redis::Pool;

use super::Shared;
use super::postgres_call::Postgres;
use super::redis_call::Redis;
use super::results::{reject_reason, write_results};
use crate::domain::{OrderId, Sku, UserId, Uuid};
use crate::ports::{FinalResult, PortError, ResultRow, SettledOutcomes, SettledRow};

static OPEN: Statement = Statement { sql: include_str!("../../sql/projection/open.sql"), params: &[Type::Text] };
static CLAIM: Statement = Statement {
    sql: include_str!("../../sql/projection/claim.sql"),
    params: &[Type::Text, Type::Int8, Type::Int8, Type::Int8],
};
static ADVANCE: Statement = Statement {
    sql: include_str!("../../sql/projection/advance.sql"),
    params: &[Type::Text, Type::Timestamptz, Type::Uuid],
};
/// How long one projector has what it claimed for itself.
const LEASE: Duration = Duration::from_secs(10);

/// [`SettledOutcomes`] over both stores.
pub struct InboxOutcomes {
    redis: Redis,
    postgres: Postgres,
    group: String,
    /// Rows younger than this are left alone: longer than any order transaction takes.
    lag: Duration,
}

impl InboxOutcomes {
    /// The outcomes of `group`, a `lag` behind.
    pub fn new(redis: Pool, postgres: PgPool, group: String, lag: Duration, shared: &Shared) -> Self {
        Self { redis: Redis::new(redis, shared), postgres: Postgres::new(postgres, shared), group, lag }
    }
}

fn settled(row: &Row<'_>) -> Result<SettledRow, DecodeError> {
    let (order_id, user_id) = (row.opt_i64(4)?.and_then(OrderId::new), row.opt_i64(9)?.and_then(UserId::new));
    let sku = match (row.opt_i64(7)?, row.opt_i64(8)?) {
        (Some(activity), Some(sku)) => Sku::new(activity, sku),
        _ => None,
    };
    let result = match (row.text(2)?, order_id) {
        ("COMPLETED", Some(order_id)) => Some(FinalResult::Created { order_id }),
        ("COMPLETED", None) => None,
        _ => Some(FinalResult::Rejected { reason: reject_reason(row.opt_text(3)?.unwrap_or_default()) }),
    };
    let (request_id, reservation_id) = (Uuid(row.uuid(5)?), Uuid(row.uuid(6)?));
    let result = match (sku, user_id, result) {
        (Some(sku), Some(user_id), Some(result)) => {
            Some(ResultRow { sku, request_id, reservation_id, user_id, result })
        }
        _ => None,
    };
    Ok(SettledRow { processed_at: row.timestamptz_micros(0)?, message_id: Uuid(row.uuid(1)?), result })
}

impl SettledOutcomes for InboxOutcomes {
    async fn open(&self, deadline: Instant) -> Result<(), PortError> {
        let mut params = Params::new();
        params.text(&self.group);
        self.postgres.query(&OPEN, &params, deadline).await.map(drop)
    }

    async fn claim(&self, max: usize, deadline: Instant) -> Result<Vec<SettledRow>, PortError> {
        let mut params = Params::new();
        params.text(&self.group).i64(i64::try_from(max).unwrap_or(i64::MAX));
        for time in [self.lag, LEASE] {
            params.i64(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        }
        let rows = self.postgres.query(&CLAIM, &params, deadline).await?;
        (0..rows.len())
            .map(|at| {
                settled(&rows.row(at)).map_err(|error| {
                    tracing::error!(%error, "projection/claim.sql answered in another shape than its header says");
                    PortError::Internal
                })
            })
            .collect()
    }

    async fn show(&self, sku: Sku, rows: &[ResultRow], deadline: Instant) -> Result<u64, PortError> {
        write_results(&self.redis, sku, rows, deadline).await
    }

    async fn advance(&self, last: &SettledRow, deadline: Instant) -> Result<(), PortError> {
        let mut params = Params::new();
        params.text(&self.group).timestamptz_micros(last.processed_at).uuid(last.message_id.0);
        self.postgres.query(&ADVANCE, &params, deadline).await.map(drop)
    }
}

//! A sale before and after its rush: put on the list, opened in Redis, looked at, closed (design section 6).

mod books;
mod rebuild;

use std::time::{Duration, Instant};

use proto_clients::postgres::{CallError as PgError, DecodeError, Params, Pool as PgPool, Statement, Type};
use proto_clients::redis::{CallError as RedisError, Command, Pool, Reply, Script};
use proto_clients::rocketmq::MqError;

use crate::domain::Sku;
use crate::services::{Scripts, key_prefix, live_sales};

pub use books::{Counts, Decided, Inspected, OrderRow, PAGE, Recounted, Reindex};
pub use rebuild::Rebuilt;

static CREATE: Statement = Statement {
    sql: include_str!("../sql/activity/create.sql"),
    params: &[Type::Int8, Type::Int8, Type::Timestamptz, Type::Timestamptz, Type::Timestamptz, Type::Int4],
};
static LOAD: Statement = Statement { sql: include_str!("../sql/activity/load.sql"), params: &[Type::Int8, Type::Int8] };
static STUCK_INBOX: Statement =
    Statement { sql: include_str!("../sql/recovery/stuck_inbox.sql"), params: &[Type::Int8] };
static CLOSE: Statement =
    Statement { sql: include_str!("../sql/activity/close.sql"), params: &[Type::Int8, Type::Int8] };

/// Longest step of a command.
const STEP: Duration = Duration::from_secs(10);

/// Why a command on a sale failed.
#[derive(Debug, thiserror::Error)]
pub enum SaleError {
    /// PostgreSQL did not do it, or it is not known whether it did.
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] PgError),
    /// Redis did not do it, or it is not known whether it did.
    #[error("Redis: {0}")]
    Redis(#[from] RedisError),
    /// RocketMQ did not answer.
    #[error("RocketMQ: {0}")]
    RocketMq(#[from] MqError),
    /// Messages are still on their way to their orders.
    #[error(
        "sale {sku} cannot be rebuilt yet: {lag} messages wait in the topic, or orders are still being made. Let the order \
         workers finish (raise --wait), or rebuild all the same with --wait 0: units may then be sold twice in Redis, and \
         PostgreSQL turns the later buyers down"
    )]
    Backlog {
        /// Which.
        sku: Sku,
        /// Messages not popped.
        lag: u64,
    },
    /// A reply that the script or statement does not give.
    #[error("{0}")]
    Reply(String),
    /// No such sale.
    #[error("there is no sale {0}; make it with `seckill activity create`")]
    Unknown(Sku),
    /// It is there with other values.
    #[error("sale {sku} is there with other values: {there}")]
    Different {
        /// Which.
        sku: Sku,
        /// What stands.
        there: String,
    },
    /// Orders exist, but Redis knows nothing of the sale.
    #[error(
        "sale {sku} has {sold} orders but Redis does not know it: it was lost. It stays shut until it is rebuilt from \
         PostgreSQL: run `seckill activity warm --rebuild`"
    )]
    Lost {
        /// Which.
        sku: Sku,
        /// Orders in PostgreSQL.
        sold: i32,
    },
    /// Redis refuses to warm it.
    #[error("Redis refuses to warm sale {sku}: {why}")]
    Refused {
        /// Which.
        sku: Sku,
        /// Why.
        why: &'static str,
    },
}

impl From<DecodeError> for SaleError {
    fn from(error: DecodeError) -> Self {
        Self::Reply(error.to_string())
    }
}

/// A sale as PostgreSQL has it. Times are Unix microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Sale {
    /// First instant of the sale.
    pub start_at: i64,
    /// First instant after it.
    pub end_at: i64,
    /// When its Redis keys expire.
    pub expire_at: i64,
    /// CLOSED by hand.
    pub closed: bool,
    /// Grows with each rebuild.
    pub generation: i64,
    /// Units for sale.
    pub total: i32,
    /// Units with an order.
    pub sold: i32,
}

/// A sale as Redis has it (`lua/status.lua`). Times are Unix milliseconds; -1 = not there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the fields are those of lua/status.lua")]
pub struct Gate {
    pub warmed: bool,
    pub state: String,
    pub total: i64,
    pub stock: i64,
    pub buyers: i64,
    pub pending: i64,
    pub oldest_pending_ms: i64,
    pub start_ms: i64,
    pub end_ms: i64,
    pub expire_at_ms: i64,
    pub generation: i64,
    pub redis_now_ms: i64,
}

/// Whether a command changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It did.
    Changed,
    /// It had been done before, with the same values.
    Already,
}

/// Commands on sales.
pub struct Sales {
    postgres: PgPool,
    redis: Pool,
    scripts: Scripts,
}

fn deadline() -> Instant {
    shards::now() + STEP
}

fn sku_params(sku: Sku) -> Params {
    let mut params = Params::new();
    params.i64(sku.activity.get()).i64(sku.sku.get());
    params
}

impl Sales {
    /// Commands over both stores.
    pub fn new(postgres: PgPool, redis: Pool) -> Self {
        Self { postgres, redis, scripts: Scripts::new() }
    }

    /// Puts a sale on the list; the same values again change nothing.
    ///
    /// # Errors
    /// [`SaleError::Different`] when it is there with other values.
    pub async fn create(&self, sku: Sku, sale: Sale) -> Result<Done, SaleError> {
        let mut params = sku_params(sku);
        params.timestamptz_micros(sale.start_at).timestamptz_micros(sale.end_at);
        params.timestamptz_micros(sale.expire_at).i32(sale.total);
        let mut client = self.postgres.acquire(deadline()).await?;
        let rows = client.query(&CREATE, &params, deadline()).await?;
        let made = rows.row(0).i64(0)? + rows.row(0).i64(1)?;
        drop(client);
        let there = self.load(sku).await?.ok_or(SaleError::Unknown(sku))?;
        let key = |sale: &Sale| (sale.start_at, sale.end_at, sale.expire_at, sale.total);
        if key(&there) != key(&sale) {
            return Err(SaleError::Different { sku, there: there.to_string() });
        }
        Ok(if made > 0 { Done::Changed } else { Done::Already })
    }

    /// Sales that are on, or whose reservations may still be on their way.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn live(&self) -> Result<Vec<Sku>, SaleError> {
        Ok(live_sales(&self.postgres, deadline()).await?)
    }

    /// Inbox rows that have had no outcome for longer than `age`.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn stuck_inbox(&self, age: Duration) -> Result<i64, SaleError> {
        let mut params = Params::new();
        params.i64(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        let rows = self.postgres.acquire(deadline()).await?.query(&STUCK_INBOX, &params, deadline()).await?;
        Ok(rows.row(0).i64(0)?)
    }

    /// The sale in PostgreSQL.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn load(&self, sku: Sku) -> Result<Option<Sale>, SaleError> {
        let mut client = self.postgres.acquire(deadline()).await?;
        let rows = client.query(&LOAD, &sku_params(sku), deadline()).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let row = rows.row(0);
        Ok(Some(Sale {
            start_at: row.timestamptz_micros(0)?,
            end_at: row.timestamptz_micros(1)?,
            expire_at: row.timestamptz_micros(2)?,
            closed: row.text(3)? == "CLOSED",
            generation: row.i64(4)?,
            total: row.i32(5)?,
            sold: row.i32(6)?,
        }))
    }

    /// Opens a sale in Redis; the live stock of an open one is never touched.
    ///
    /// # Errors
    /// [`SaleError::Lost`] when Redis lost a sale that has orders; [`SaleError::Refused`] when Redis holds other values.
    pub async fn warm(&self, sku: Sku) -> Result<Done, SaleError> {
        let sale = self.load(sku).await?.ok_or(SaleError::Unknown(sku))?;
        if sale.sold > 0 && !self.gate(sku).await?.warmed {
            return Err(SaleError::Lost { sku, sold: sale.sold });
        }
        let mut command = self.scripts.warm.command(1, 8);
        command.arg(key_prefix(sku).as_bytes());
        command.arg_i64(i64::from(sale.total));
        command.arg_i64(i64::from(sale.total - sale.sold));
        for micros in [sale.start_at, sale.end_at, sale.expire_at] {
            command.arg_i64(micros / 1_000);
        }
        command.arg(if sale.closed { b"closed".as_slice() } else { b"open" });
        command.arg_i64(sale.generation);
        let refused = |why| Err(SaleError::Refused { sku, why });
        match self.code(&self.scripts.warm, command).await? {
            0 => Ok(Done::Changed),
            1 => Ok(Done::Already),
            2 => refused("it is open with other values, and a live sale is never overwritten"),
            3 => refused("stock, buyers or pending reservations of an earlier life are there"),
            _ => refused("its values make no sense; has it expired already?"),
        }
    }

    /// What Redis knows.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn gate(&self, sku: Sku) -> Result<Gate, SaleError> {
        let mut command = self.scripts.status.command(1, 1);
        command.arg(key_prefix(sku).as_bytes());
        let reply = self.redis.eval(&self.scripts.status, command, deadline()).await?;
        read_gate(&reply).ok_or_else(|| SaleError::Reply(format!("status.lua answered {reply:?}")))
    }

    /// Closes a sale: Redis first, so that nobody buys any more, then PostgreSQL, so that it stays so.
    ///
    /// # Errors
    /// When a store cannot be reached; run it again then.
    pub async fn close(&self, sku: Sku) -> Result<(), SaleError> {
        let mut command = self.scripts.set_state.command(1, 2);
        command.arg(key_prefix(sku).as_bytes());
        command.arg(b"closed");
        let in_redis = self.code(&self.scripts.set_state, command).await?;
        let mut client = self.postgres.acquire(deadline()).await?;
        let closed = client.query(&CLOSE, &sku_params(sku), deadline()).await?.affected();
        match (in_redis, closed) {
            (0 | 1 | 4, 1) => Ok(()),
            (_, 0) => Err(SaleError::Unknown(sku)),
            (code, _) => Err(SaleError::Reply(format!("set_state.lua answered {code}"))),
        }
    }

    async fn code(&self, script: &Script, command: Command) -> Result<i64, SaleError> {
        let reply = self.redis.eval(script, command, deadline()).await?;
        let code = reply.as_array().and_then(|fields| fields.first()?.as_i64());
        code.ok_or_else(|| SaleError::Reply(format!("a script answered {reply:?}")))
    }
}

fn read_gate(reply: &Reply) -> Option<Gate> {
    let fields = reply.as_array()?;
    let number = |index: usize| fields.get(index)?.as_i64();
    Some(Gate {
        warmed: number(0)? == 1,
        state: String::from_utf8(fields.get(1)?.as_bytes()?.to_vec()).ok()?,
        total: number(2)?,
        stock: number(3)?,
        buyers: number(4)?,
        pending: number(5)?,
        oldest_pending_ms: number(6)?,
        start_ms: number(7)?,
        end_ms: number(8)?,
        expire_at_ms: number(9)?,
        generation: number(10)?,
        redis_now_ms: number(11)?,
    })
}

impl std::fmt::Display for Sale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = |micros: i64| {
            let text = crate::domain::format_rfc3339_micros(micros.unsigned_abs());
            String::from_utf8_lossy(&text).into_owned()
        };
        write!(
            f,
            "{} units, {} sold, from {} to {}, Redis keys until {}",
            self.total,
            self.sold,
            time(self.start_at),
            time(self.end_at),
            time(self.expire_at)
        )
    }
}

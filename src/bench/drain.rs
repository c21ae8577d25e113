//! `bench drain`: a backlog of one hot SKU, and how fast workers turn it into orders.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proto_clients::postgres::{Params, Pool, Statement, Type};
use proto_clients::rocketmq::{Client, Outgoing, SendOutcome};

use super::report::DrainReport;
use super::{BenchError, cpu};
use crate::config::Config;
use crate::domain::{OrderCreateEvent, OrderId, OrderIdBlock, Sku, TraceContext, UserId, UuidV7Source};
use crate::serve::pools::{postgres_pool, rocketmq_client};
use crate::services::order_message;

/// Messages in one send.
const BATCH: u64 = 64;
const STEP: Duration = Duration::from_secs(10);

static PROGRESS: Statement = Statement {
    sql: "SELECT count(*), min(created_at), max(created_at) FROM orders WHERE activity_id = $1 AND sku_id = $2",
    params: &[Type::Int8, Type::Int8],
};
static SOLD: Statement = Statement {
    sql: "SELECT sold_stock FROM seckill_inventory WHERE activity_id = $1 AND sku_id = $2",
    params: &[Type::Int8, Type::Int8],
};

/// A backlog to drain.
#[derive(Debug, Clone)]
pub struct DrainOptions {
    /// The hot SKU; it must have stock for every message, and no orders yet.
    pub sku: Sku,
    /// Messages.
    pub messages: u64,
    /// Worker processes, started when the backlog is there. No others may run.
    pub workers: usize,
    /// Arguments for them: `--config`, `--set`.
    pub worker_args: Vec<String>,
    /// Longest drain.
    pub limit: Duration,
}

/// Ends a worker that is let go.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn service(error: impl std::fmt::Display) -> BenchError {
    BenchError::Service(error.to_string())
}

/// Fills the topic, starts workers, and reports how fast the orders came.
///
/// # Errors
/// [`BenchError`].
pub fn drain(config: &Config, options: &DrainOptions) -> Result<DrainReport, BenchError> {
    shards::run(async {
        let pool = postgres_pool(config, 1).map_err(service)?;
        let sold = sold(&pool, options.sku).await?;
        if sold != 0 {
            return Err(BenchError::Service(format!(
                "sale {} has {sold} orders already; take a fresh one",
                options.sku
            )));
        }
        let client = rocketmq_client(config, format!("bench@{}", std::process::id()));
        let filling = shards::now();
        fill(&client, config, options).await?;
        let fill_s = (shards::now() - filling).as_secs_f64();
        client.close().await;

        let mut workers = (0..options.workers).map(|_| start(options)).collect::<Result<Vec<_>, _>>()?;
        let pids: Vec<u32> = workers.iter().map(|worker| worker.0.id()).collect();
        let deadline = shards::now() + options.limit;
        wait_until_sold(&pool, options, &mut workers, deadline).await?;
        let worker_cpu = cpu::used_by_all(&pids);
        drop(workers);

        let (orders, drain_s) = first_to_last(&pool, options.sku).await?;
        pool.close().await;
        Ok(DrainReport {
            messages: options.messages,
            fill_s,
            orders,
            drain_s,
            orders_per_s: orders as f64 / drain_s.max(1e-9),
            worker_cpu_us_per_order: worker_cpu.as_secs_f64() * 1e6 / orders.max(1) as f64,
        })
    })
}

async fn fill(client: &Client, config: &Config, options: &DrainOptions) -> Result<(), BenchError> {
    let mut ids = UuidV7Source::default();
    // Order ids from far below those that a running system leases, which follow the clock.
    let mut order_ids = OrderIdBlock::new(1 + i64::from(std::process::id()) * 1_024, 1_024)
        .ok_or_else(|| service("no order ids for so many messages"))?;
    let mut sent = 0;
    while sent < options.messages {
        let count = BATCH.min(options.messages - sent);
        let batch: Option<Vec<Outgoing>> =
            (sent..sent + count).map(|index| message(options.sku, index, &mut ids, &mut order_ids)).collect();
        let batch = batch.ok_or_else(|| service("no order ids for so many messages"))?;
        match client.send(&config.rocketmq.topic, &batch, shards::now() + STEP).await {
            SendOutcome::Stored(_) => sent += count,
            SendOutcome::NotStored(error) | SendOutcome::Unknown(error) => return Err(service(error)),
        }
    }
    Ok(())
}

fn message(sku: Sku, index: u64, ids: &mut UuidV7Source, order_ids: &mut OrderIdBlock) -> Option<Outgoing> {
    let micros = shards::unix_micros();
    let mut id = || ids.next(micros / 1_000, shards::random_u64());
    let order_id: OrderId = order_ids.take()?;
    let event = OrderCreateEvent {
        message_id: id(),
        request_id: id(),
        reservation_id: id(),
        sku,
        user_id: UserId::new(i64::try_from(index).ok()? + 1)?,
        order_id,
        created_at_micros: micros,
        retry_count: 0,
        trace: TraceContext::default(),
    };
    Some(order_message(&event))
}

fn start(options: &DrainOptions) -> Result<Worker, BenchError> {
    let program = std::env::current_exe().map_err(service)?;
    let child = Command::new(program)
        .args(["serve", "--role", "worker"])
        .args(&options.worker_args)
        .args(["--set", "admin.listen=127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    child.map(Worker).map_err(service)
}

fn params(sku: Sku) -> Params {
    let mut params = Params::new();
    params.i64(sku.activity.get()).i64(sku.sku.get());
    params
}

async fn sold(pool: &Pool, sku: Sku) -> Result<i64, BenchError> {
    let deadline = shards::now() + STEP;
    let mut client = pool.acquire(deadline).await.map_err(service)?;
    let rows = client.query(&SOLD, &params(sku), deadline).await.map_err(service)?;
    if rows.is_empty() {
        return Err(BenchError::Service(format!("there is no sale {sku}; make it with `seckill activity create`")));
    }
    rows.row(0).i32(0).map(i64::from).map_err(service)
}

async fn wait_until_sold(
    pool: &Pool,
    options: &DrainOptions,
    workers: &mut [Worker],
    deadline: Instant,
) -> Result<(), BenchError> {
    let wanted = i64::try_from(options.messages).unwrap_or(i64::MAX);
    while sold(pool, options.sku).await? < wanted {
        for worker in &mut *workers {
            if let Some(status) = worker.0.try_wait().map_err(service)? {
                return Err(BenchError::Service(format!("a worker ended by itself: {status}")));
            }
        }
        if shards::now() > deadline {
            return Err(BenchError::TooLong(options.limit.as_secs()));
        }
        shards::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// How many orders there are, and the seconds between the first and the last.
async fn first_to_last(pool: &Pool, sku: Sku) -> Result<(u64, f64), BenchError> {
    let deadline = shards::now() + STEP;
    let mut client = pool.acquire(deadline).await.map_err(service)?;
    let rows = client.query(&PROGRESS, &params(sku), deadline).await.map_err(service)?;
    let row = rows.row(0);
    let orders = row.i64(0).map_err(service)?;
    let first = row.timestamptz_micros(1).map_err(service)?;
    let last = row.timestamptz_micros(2).map_err(service)?;
    Ok((u64::try_from(orders).unwrap_or(0), (last - first) as f64 / 1e6))
}

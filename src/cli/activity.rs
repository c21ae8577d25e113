//! `seckill activity create|warm|status|close`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use proto_clients::rocketmq::Client;
use serde_json::json;

use super::when::{When, WhenError, Window};
use super::{Global, SkuArgs, output, services};
use crate::config::Config;
use crate::domain::Sku;
use crate::embedded::operator::{Operator, OperatorError};
use crate::embedded::record::Opening;
use crate::sale::{Done, Rebuilt, Sale, SaleError, Sales};

/// `seckill activity`
#[derive(Debug, Args)]
pub struct ActivityArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ActivityCommand,
}

/// The subcommands of `seckill activity`.
#[derive(Debug, Subcommand)]
pub enum ActivityCommand {
    /// Write a SKU's stock and sale window to PostgreSQL
    #[command(after_help = "\
Examples:
  seckill activity create --activity-id 1001 --sku-id 2001 --total 10000 --starts-at +5m --ends-at +2h
  seckill activity create --activity-id 1001 --sku-id 2001 --total 10000 \\
      --starts-at 2026-06-25T20:00:00+08:00 --ends-at 2026-06-25T22:00:00+08:00

A time is RFC 3339, Unix seconds, `now`, or an offset from now such as +2h, +90s, -10m, +1h30m.
Buyers are answered 503 ACTIVITY_UNAVAILABLE until `activity warm` has put it into Redis.")]
    Create(CreateArgs),
    /// Put a created SKU on sale: stock and window go to Redis
    #[command(after_help = "\
Examples:
  seckill activity warm --activity-id 1001 --sku-id 2001
  seckill activity warm --activity-id 1001 --sku-id 2001 --rebuild    after Redis was lost or came back empty")]
    Warm(WarmArgs),
    /// Show stock, window and reservations of a SKU
    #[command(after_help = "\
Examples:
  seckill activity status --activity-id 1001 --sku-id 2001 --json")]
    Status(SkuArgs),
    /// Stop selling a SKU at once; reservations already made are still ordered
    #[command(after_help = "\
Examples:
  seckill activity close --activity-id 1001 --sku-id 2001")]
    Close(SkuArgs),
}

/// `seckill activity create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// Units on sale
    #[arg(long, value_name = "UNITS", value_parser = clap::value_parser!(i64).range(0..=1_000_000_000))]
    pub total: i64,
    /// First moment of the sale: RFC 3339, Unix seconds, `now`, or an offset such as +5m
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub starts_at: When,
    /// First moment after the sale, in the same forms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub ends_at: When,
}

impl CreateArgs {
    /// The sale window, offsets counted from `now_ms` (Unix milliseconds).
    ///
    /// # Errors
    /// [`WhenError`] unless it starts before it ends and both lie within the years 1970 to 9999.
    pub fn window(&self, now_ms: u64) -> Result<Window, WhenError> {
        Window::new(self.starts_at, self.ends_at, now_ms)
    }

    /// The terms of the sale, beginning now where they say so; its records outlive it by `sale.key_ttl_s`.
    fn opening(&self, sku: Sku, settings: &Config) -> Result<Opening, WhenError> {
        let Window { start_ms, end_ms } = self.window(shards::unix_micros() / 1_000)?;
        let expire_at_ms = end_ms.saturating_add(settings.sale.key_ttl_s.saturating_mul(1_000));
        Ok(Opening { sku, start_ms, end_ms, expire_at_ms, total: self.total })
    }
}

impl ActivityCommand {
    const fn sku(&self) -> SkuArgs {
        match self {
            Self::Create(args) => args.sku,
            Self::Warm(args) => args.sku,
            Self::Status(sku) | Self::Close(sku) => *sku,
        }
    }
}

/// `seckill activity warm`
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// Rebuild stock, buyers and results from PostgreSQL; what Redis still holds is kept, the sale is shut meanwhile
    #[arg(long)]
    pub rebuild: bool,
    /// With --rebuild: how long to wait for the topic to run empty, in seconds; 0 does not look
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "rebuild")]
    pub wait: u64,
}

/// Runs `seckill activity`.
pub fn run(args: &ActivityArgs, global: &Global) -> ExitCode {
    let settings = match global.settings() {
        Ok(settings) => settings,
        Err(error) => return output::bad_settings(global, &error),
    };
    if !settings.names_services() {
        return embedded(&settings, &args.command, global);
    }
    let done = services::with(&settings, async |services| {
        let sales = Sales::new(services.postgres.clone(), services.redis.clone());
        command(&sales, &services.rocketmq, &settings, &args.command, global).await
    });
    done.unwrap_or_else(|error| output::failed(global, error))
}

/// The same on a running embedded process. Its sales are open as soon as they are made.
fn embedded(settings: &Config, command: &ActivityCommand, global: &Global) -> ExitCode {
    let operator = match Operator::find(&settings.embedded.data, &settings.admin.token) {
        Ok(operator) => operator,
        Err(error) => return output::failed(global, error),
    };
    let Some(sku) = command.sku().sku() else {
        return output::bad_usage(global, "activity_id and sku_id must be positive");
    };
    let done = |what: &str, result: Result<bool, OperatorError>| match result {
        Ok(new) => changed(global, if new { Done::Changed } else { Done::Already }, what),
        Err(error) => output::failed(global, error),
    };
    match command {
        ActivityCommand::Create(args) => {
            let opening = match args.opening(sku, settings) {
                Ok(opening) => opening,
                Err(error) => return output::bad_usage(global, error),
            };
            done("created", operator.open(&opening))
        }
        ActivityCommand::Warm(_) => done("warm", operator.view(sku).map(|_| false)),
        ActivityCommand::Close(_) => done("closed", operator.close(sku)),
        ActivityCommand::Status(_) => match operator.view(sku) {
            Ok(view) => {
                let text = || {
                    let state = if view.closed { "closed" } else { "open" };
                    format!(
                        "sale {sku}\n  embedded  {state}, {} units, {} left, {} buyers",
                        view.total, view.stock, view.buyers
                    )
                };
                output::answer(global, text, || json!({ "ok": true, "embedded": view }))
            }
            Err(error) => output::failed(global, error),
        },
    }
}

async fn command(
    sales: &Sales,
    rocketmq: &Client,
    settings: &Config,
    command: &ActivityCommand,
    global: &Global,
) -> ExitCode {
    let Some(sku) = command.sku().sku() else {
        return output::bad_usage(global, "activity_id and sku_id must be positive");
    };
    match command {
        ActivityCommand::Create(args) => create(sales, settings, args, sku, global).await,
        ActivityCommand::Warm(args) if args.rebuild => {
            match rebuild(sales, rocketmq, &settings.rocketmq.topic, args, sku).await {
                Ok(rebuilt) => {
                    let text = || {
                        let Rebuilt { generation, orders, restored, contradicted, buyers, stock } = rebuilt;
                        let alarm = match contradicted {
                            0 => String::new(),
                            count => format!("\n  {count} of them contradict Redis: see `seckill reconcile`"),
                        };
                        format!(
                            "sale {sku} rebuilt as generation {generation}: {orders} orders ({restored} were incomplete), \
                         {buyers} buyers, {stock} units for sale{alarm}"
                        )
                    };
                    output::answer(global, text, || json!({ "ok": true, "changed": true, "rebuilt": rebuilt }))
                }
                Err(error) => output::failed(global, error),
            }
        }
        ActivityCommand::Warm(_) => match sales.warm(sku).await {
            Ok(done) => changed(global, done, "warm"),
            Err(error) => output::failed(global, error),
        },
        ActivityCommand::Status(_) => status(sales, sku, global).await,
        ActivityCommand::Close(_) => match sales.close(sku).await {
            Ok(()) => changed(global, Done::Changed, "closed"),
            Err(error) => output::failed(global, error),
        },
    }
}

fn changed(global: &Global, done: Done, what: &str) -> ExitCode {
    let changed = done == Done::Changed;
    let text = || if changed { what.to_owned() } else { format!("already {what}, nothing changed") };
    output::answer(global, text, || json!({ "ok": true, "changed": changed }))
}

async fn rebuild(
    sales: &Sales,
    rocketmq: &Client,
    topic: &str,
    args: &WarmArgs,
    sku: Sku,
) -> Result<Rebuilt, SaleError> {
    if args.wait > 0 {
        sales.wait_for_topic(sku, rocketmq, topic, shards::now() + Duration::from_secs(args.wait)).await?;
    }
    sales.rebuild(sku).await
}

async fn create(sales: &Sales, settings: &Config, args: &CreateArgs, sku: Sku, global: &Global) -> ExitCode {
    let opening = match args.opening(sku, settings) {
        Ok(opening) => opening,
        Err(error) => return output::bad_usage(global, error),
    };
    let micros = |ms: u64| i64::try_from(ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let Ok(total) = i32::try_from(opening.total) else { return output::bad_usage(global, "total is out of range") };
    let sale = Sale {
        start_at: micros(opening.start_ms),
        end_at: micros(opening.end_ms),
        expire_at: micros(opening.expire_at_ms),
        closed: false,
        generation: 1,
        total,
        sold: 0,
    };
    match sales.create(sku, sale).await {
        Ok(done) => changed(global, done, "created"),
        Err(error) => output::failed(global, error),
    }
}

async fn status(sales: &Sales, sku: Sku, global: &Global) -> ExitCode {
    let (sale, gate) = match (sales.load(sku).await, sales.gate(sku).await) {
        (Ok(Some(sale)), Ok(gate)) => (sale, gate),
        (Ok(None), _) => return output::failed(global, SaleError::Unknown(sku)),
        (Err(error), _) | (_, Err(error)) => return output::failed(global, error),
    };
    let text = || {
        let redis = if gate.warmed {
            format!("{}, {} left, {} buyers, {} unsent", gate.state, gate.stock, gate.buyers, gate.pending)
        } else {
            "not warmed".to_owned()
        };
        format!("sale {sku}\n  PostgreSQL  {}{sale}\n  Redis       {redis}", if sale.closed { "closed, " } else { "" })
    };
    output::answer(global, text, || json!({ "ok": true, "postgres": sale, "redis": gate }))
}

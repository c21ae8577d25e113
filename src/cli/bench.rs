//! `seckill bench submit|drain|e2e`.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde::Serialize;

use super::{Global, SkuArgs, output};
use crate::bench::{self, BenchError, Buyers, DrainOptions, E2eOptions, LoadOptions, Pace};
use crate::config::{Config, IdentityMode, JwtAlgorithm};

/// `seckill bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The subcommands of `seckill bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Orders at a fixed rate against a running API; latencies from the planned moment, not from the late one
    #[command(after_help = "\
Examples:
  seckill bench submit --activity-id 1001 --sku-id 2001 --rate 20000 --duration-s 30
  seckill bench submit --target 10.0.0.5:8080 --activity-id 1001 --sku-id 2001 --rate 5000 --json

Open loop: a request is due at its planned moment whether or not the ones before it are answered, and its latency
counts from there, so a stalled server cannot hide its stall. Users are signed with the configured identity.")]
    Submit(SubmitArgs),
    /// How fast a backlog of order messages becomes orders
    #[command(after_help = "\
Examples:
  seckill bench drain --config shop.toml --activity-id 1001 --sku-id 2001 --messages 100000")]
    Drain(DrainArgs),
    /// From click to final result: submit, then follow every accepted order to its end
    #[command(after_help = "\
Examples:
  seckill bench e2e --activity-id 1001 --sku-id 2001 --orders 10000 --rate 4000
  seckill bench e2e --activity-id 1001 --sku-id 2001 --orders 10000 --rate 4000 --settle-s 30 --json")]
    E2e(E2eArgs),
}

/// How load is made.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// The API's address; several may be named, connections are spread over them
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', default_value = "127.0.0.1:8080")]
    pub target: Vec<String>,
    /// Requests a second, over all connections
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub rate: u32,
    /// Connections kept open
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
    /// The first user id; each request takes the next one
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    pub first_user: i64,
    /// Charge the CPU time of this process to the answers; may be repeated
    #[arg(long, value_name = "PID")]
    pub watch: Vec<u32>,
}

/// `seckill bench submit`
#[derive(Debug, Clone, Args)]
pub struct SubmitArgs {
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
    /// How long to send
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration_s: u32,
    /// Send the next request when the last one is answered, as fast as that goes: for CPU per answer, not for latency
    #[arg(long, conflicts_with = "rate")]
    pub closed_loop: bool,
}

/// `seckill bench drain`
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// Messages in the backlog
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub messages: u32,
    /// Worker processes to start for it
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Give up when the backlog is not empty by then
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub limit_s: u32,
}

/// `seckill bench e2e`
#[derive(Debug, Clone, Args)]
pub struct E2eArgs {
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The query API's address, where it is another one
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub query: Vec<String>,
    /// Orders to place
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub orders: u32,
    /// How long an accepted order may take to its final state
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub settle_s: u32,
    /// Results followed at a time
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub followers: u32,
}

/// Runs `seckill bench`.
pub fn run(args: &BenchArgs, global: &Global) -> ExitCode {
    let settings = match global.settings() {
        Ok(settings) => settings,
        Err(error) => return output::bad_settings(global, &error),
    };
    match &args.command {
        BenchCommand::Submit(args) => {
            let pace = if args.closed_loop { Pace::Closed } else { open(&args.load) };
            let lasts = Some(Duration::from_secs(u64::from(args.duration_s)));
            match load(&args.load, &settings, pace, u64::MAX, lasts) {
                Ok(mut options) => {
                    let clicks = (!args.closed_loop).then(|| u64::from(args.load.rate) * u64::from(args.duration_s));
                    report(global, "submitting", clicks, |sign| {
                        options.progress = sign;
                        bench::submit(options)
                    })
                }
                Err(refusal) => output::bad_usage(global, refusal),
            }
        }
        BenchCommand::Drain(args) => drain(args, &settings, global),
        BenchCommand::E2e(args) => match load(&args.load, &settings, open(&args.load), u64::from(args.orders), None) {
            Ok(mut load) => {
                let settle = Duration::from_secs(u64::from(args.settle_s));
                load.patience = settle;
                let options =
                    E2eOptions { load, queries: args.query.clone(), settle, followers: args.followers as usize };
                report(global, "submitting and following", Some(u64::from(args.orders)), |sign| {
                    let mut options = options;
                    options.load.progress = sign;
                    bench::e2e(options)
                })
            }
            Err(refusal) => output::bad_usage(global, refusal),
        },
    }
}

fn open(load: &LoadArgs) -> Pace {
    Pace::Open { rate: f64::from(load.rate) }
}

fn load(
    args: &LoadArgs,
    settings: &Config,
    pace: Pace,
    count: u64,
    lasts: Option<Duration>,
) -> Result<LoadOptions, &'static str> {
    let identity = &settings.identity;
    let buyers = match (identity.mode, identity.jwt_algorithm) {
        (IdentityMode::GatewayHeader, _) => Buyers::Header(identity.gateway_header.clone()),
        (IdentityMode::Jwt, JwtAlgorithm::HS256) if !identity.jwt_key.is_empty() => {
            Buyers::Token { secret: identity.jwt_key.clone(), audience: identity.jwt_audience.clone() }
        }
        (IdentityMode::Jwt, _) => {
            return Err("buyers need an identity: give the server's HS256 secret (SECKILL_JWT_KEY), or --set \
                        identity.mode=gateway_header where the server trusts that header");
        }
    };
    Ok(LoadOptions {
        targets: args.target.clone(),
        sku: args.sku.sku().ok_or("activity_id and sku_id must be positive")?,
        buyers,
        first_user: args.first_user,
        pace,
        connections: args.connections as usize,
        count,
        lasts,
        patience: Duration::ZERO,
        watch: args.watch.clone(),
        twice_every: 0,
        progress: ProgressBar::hidden(),
    })
}

fn drain(args: &DrainArgs, settings: &Config, global: &Global) -> ExitCode {
    if !settings.names_services() {
        return output::bad_usage(global, "a drain needs the services: name them in --config or the environment");
    }
    let Some(sku) = args.sku.sku() else { return output::bad_usage(global, "activity_id and sku_id must be positive") };
    let mut worker_args = Vec::new();
    if let Some(path) = &global.config {
        worker_args.extend(["--config".to_owned(), path.display().to_string()]);
    }
    worker_args.extend(global.set.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
    let options = DrainOptions {
        sku,
        messages: u64::from(args.messages),
        workers: args.workers as usize,
        worker_args,
        limit: Duration::from_secs(u64::from(args.limit_s)),
    };
    report(global, "filling and draining", None, |_| bench::drain(settings, &options))
}

/// Runs a measurement with a sign of life on a terminal, and prints what it says.
fn report<R: Serialize + Display>(
    global: &Global,
    doing: &'static str,
    clicks: Option<u64>,
    measure: impl FnOnce(ProgressBar) -> Result<R, BenchError>,
) -> ExitCode {
    // Drawn only where standard error is a terminal.
    let sign = match clicks {
        Some(clicks) => ProgressBar::new(clicks).with_style(output::bar_style()),
        None => ProgressBar::new_spinner(),
    };
    let sign = sign.with_message(doing);
    sign.enable_steady_tick(Duration::from_millis(200));
    let measured = measure(sign.clone());
    sign.finish_and_clear();
    match measured {
        Ok(report) => output::answer(global, || report.to_string(), || serde_json::json!(report)),
        Err(error) => output::failed(global, error),
    }
}

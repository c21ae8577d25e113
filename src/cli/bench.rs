//! `seckill bench submit|drain|e2e`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{Global, SkuArgs, output};

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
    /// The API's address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub target: String,
    /// Requests a second, over all connections
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    pub rate: u32,
    /// Connections kept open
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
    /// The first user id; each request takes the next one
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    pub first_user: i64,
}

/// `seckill bench submit`
#[derive(Debug, Clone, Args)]
pub struct SubmitArgs {
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
    /// How long to send, after the warm-up
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub duration_s: u32,
    /// Sent before it, at the same rate, and not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    pub warm_up_s: u32,
}

/// `seckill bench drain`
#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// Messages in the backlog
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub messages: u32,
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
    /// Orders to place
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub orders: u32,
    /// How long an accepted order may take to its final state
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub settle_s: u32,
}

/// Runs `seckill bench`.
pub fn run(args: BenchArgs, global: &Global) -> ExitCode {
    if let Err(error) = global.settings() {
        return output::bad_settings(global, &error);
    }
    let name = match args.command {
        BenchCommand::Submit(_) => "submit",
        BenchCommand::Drain(_) => "drain",
        BenchCommand::E2e(_) => "e2e",
    };
    output::failed(global, format!("`seckill bench {name}` is not built yet"))
}

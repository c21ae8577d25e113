//! `seckill plan`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{Global, output};
use crate::plan::{Costs, Demand, plan};

fn positive(text: &str) -> Result<f64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(format!("{text} is no positive number")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    positive(text).and_then(|value| if value <= 1.0 { Ok(value) } else { Err(format!("{text} is more than 1")) })
}

/// `seckill plan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill plan --qps 300000 --stock 10000 --window-s 3
  seckill plan --qps 50000 --stock 200000 --skus 20 --window-s 60 --api-sold-out-us 9.1 --json

The costs of one unit of work were measured on one machine (benches/README.md says how). Measure yours and give them: a plan is as
good as its figures. Every line shows its arithmetic.")]
pub struct PlanArgs {
    /// Clicks a second at the peak
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    pub qps: f64,
    /// Units for sale, all SKUs together
    #[arg(long, value_name = "UNITS", value_parser = positive)]
    pub stock: f64,
    /// Seconds in which the units are gone and every order is final
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = positive)]
    pub window_s: f64,
    /// SKUs on sale at the same time
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = positive)]
    pub skus: f64,
    /// Open client connections at the peak [default: a third of --qps]
    #[arg(long, value_name = "COUNT", value_parser = positive)]
    pub connections: Option<f64>,
    /// CPU of an api answer that sold nothing, microseconds
    #[arg(long, value_name = "US", default_value_t = Costs::default().api_sold_out_us, value_parser = positive)]
    pub api_sold_out_us: f64,
    /// CPU of an api answer that sold a unit
    #[arg(long, value_name = "US", default_value_t = Costs::default().api_created_us, value_parser = positive)]
    pub api_created_us: f64,
    /// CPU of Redis for a click that sold nothing
    #[arg(long, value_name = "US", default_value_t = Costs::default().redis_sold_out_us, value_parser = positive)]
    pub redis_sold_out_us: f64,
    /// CPU of Redis from a reservation to its shown result
    #[arg(long, value_name = "US", default_value_t = Costs::default().redis_created_us, value_parser = positive)]
    pub redis_created_us: f64,
    /// CPU of the broker for a message from send to ack
    #[arg(long, value_name = "US", default_value_t = Costs::default().broker_us, value_parser = positive)]
    pub broker_us: f64,
    /// CPU of a worker for an order
    #[arg(long, value_name = "US", default_value_t = Costs::default().worker_us, value_parser = positive)]
    pub worker_us: f64,
    /// Orders a second of one SKU that PostgreSQL commits (`seckill bench drain`)
    #[arg(long, value_name = "PER_SECOND", default_value_t = Costs::default().postgres_orders_per_s, value_parser = positive)]
    pub postgres_orders_per_s: f64,
    /// Share of a core that may be used at the peak
    #[arg(long, value_name = "0..1", default_value_t = Costs::default().use_max, value_parser = share)]
    pub use_max: f64,
}

/// Runs `seckill plan`.
pub fn run(args: &PlanArgs, global: &Global) -> ExitCode {
    let demand = Demand {
        qps: args.qps,
        stock: args.stock,
        skus: args.skus,
        window_s: args.window_s,
        connections: args.connections.unwrap_or((args.qps / 3.0).ceil()),
    };
    let costs = Costs {
        api_sold_out_us: args.api_sold_out_us,
        api_created_us: args.api_created_us,
        redis_sold_out_us: args.redis_sold_out_us,
        redis_created_us: args.redis_created_us,
        broker_us: args.broker_us,
        worker_us: args.worker_us,
        postgres_orders_per_s: args.postgres_orders_per_s,
        use_max: args.use_max,
    };
    let lines = plan(&demand, &costs);
    let text = || {
        lines.iter().fold(String::new(), |mut out, line| {
            let gap = if out.is_empty() { "" } else { "\n" };
            // Writing to a String does not fail.
            let _ = write!(out, "{gap}{:<23} {:>8} {}\n{:<23} {}", line.what, line.value, line.unit, "", line.because);
            out
        })
    };
    output::answer(global, text, || json!({ "ok": true, "plan": lines, "costs": costs }))
}

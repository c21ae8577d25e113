//! `seckill reconcile`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{EXIT_FAILED, Global, SkuArgs, output, services};
use crate::domain::Sku;
use crate::reconcile::{Reconciler, Report};
use crate::sale::Sales;

/// `seckill reconcile`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill reconcile --activity-id 1001 --sku-id 2001             what does not agree, in words
  seckill reconcile --activity-id 1001 --sku-id 2001 --repair    and put right what can be put right safely

Exit code 0 when nothing is wrong, or all of it is repaired or heals by itself; 1 when something is left. It may run during a
sale: what is under way is left alone. Every repair is judged again where it is done, and may be run twice.")]
pub struct ReconcileArgs {
    /// Which SKU.
    #[command(flatten)]
    pub sku: SkuArgs,
    /// Put right what can be put right safely
    #[arg(long)]
    pub repair: bool,
    /// How long a reservation may be under way before it counts as stuck, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub patience: u64,
}

/// Runs `seckill reconcile`.
pub fn run(args: &ReconcileArgs, global: &Global) -> ExitCode {
    let without = "there is nothing to reconcile in embedded mode: it has one book, the journal";
    let settings = match services::required(global, without) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let Some(sku) = args.sku.sku() else { return output::bad_usage(global, "activity_id and sku_id must be positive") };
    let report = services::with(&settings, async |services| {
        let reconciler = Reconciler {
            sales: &Sales::new(services.postgres.clone(), services.redis.clone()),
            client: &services.rocketmq,
            topic: &settings.rocketmq.topic,
            patience: Duration::from_secs(args.patience),
            repair: args.repair,
        };
        reconciler.run(sku).await
    });
    match report {
        Ok(Ok(report)) => {
            let ok = report.open == 0;
            let json = || json!({ "ok": ok, "report": report });
            let answered = output::answer(global, || text(sku, &report, args.repair), json);
            if ok { answered } else { ExitCode::from(EXIT_FAILED) }
        }
        Ok(Err(error)) => output::failed(global, error),
        Err(error) => output::failed(global, error),
    }
}

fn text(sku: Sku, report: &Report, repair: bool) -> String {
    let (redis, counts) = (&report.redis, &report.counts);
    let mut out = format!(
        "sale {sku}\n  PostgreSQL  {} of {} sold, {} orders, {} releases due\n  Redis       {} left, {} buyers, {} unsent, {}\n  \
         topic       {} messages not popped\n",
        report.postgres.sold,
        report.postgres.total,
        counts.orders,
        counts.releases_due,
        redis.stock,
        redis.buyers,
        redis.pending,
        if redis.warmed { redis.state.as_str() } else { "not warmed" },
        report.lag
    );
    if report.findings.0.is_empty() {
        out.push_str("the books agree");
        return out;
    }
    for (kind, finding) in &report.findings.0 {
        let done = match (kind.heals(), finding.repaired) {
            (true, _) => "heals by itself".to_owned(),
            (false, 0) if kind.is_repaired() && !repair => "--repair puts it right".to_owned(),
            (false, repaired) => format!("{repaired} repaired"),
        };
        // Writing to a String does not fail.
        let _ = write!(
            out,
            "{:>8}  {}\n          {done}; for instance {}\n",
            finding.count,
            finding.explanation,
            finding.examples.join(", ")
        );
    }
    out.push_str(if report.open == 0 { "nothing is left to do" } else { "this needs somebody" });
    out
}

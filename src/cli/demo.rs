//! `seckill demo`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::{EXIT_FAILED, Global, output};
use crate::demo::{self, DemoOptions, DemoReport, Server};

/// `seckill demo`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill demo                            5,000 units, 40,000 clicks in five seconds
  seckill demo --keep                     and leave the server up, to try it with curl
  seckill demo --units 50 --rate 20000 --seconds 10")]
pub struct DemoArgs {
    /// Where the journal and the orders are kept
    #[arg(long, value_name = "FOLDER", default_value = "seckill-demo")]
    pub data: PathBuf,
    /// Address of the shop; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub listen: String,
    /// Units on sale
    #[arg(long, value_name = "COUNT", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub units: u32,
    /// Clicks a second
    #[arg(long, value_name = "PER_SECOND", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// Seconds of the rush
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Leave the server up until Ctrl-C
    #[arg(long)]
    pub keep: bool,
}

/// Runs `seckill demo`.
pub fn run(args: &DemoArgs, global: &Global) -> ExitCode {
    let options = DemoOptions {
        data: args.data.clone(),
        listen: args.listen.clone(),
        units: args.units,
        rate: args.rate,
        seconds: args.seconds,
        settings: global.set.clone(),
    };
    let server = match Server::start(&options) {
        Ok(server) => server,
        Err(error) => return output::failed(global, error),
    };
    // Drawn only where standard error is a terminal.
    let sign = ProgressBar::new(0).with_style(output::bar_style()).with_message("clicking");
    sign.enable_steady_tick(Duration::from_millis(100));
    let shown = demo::run(&server, &options, sign.clone());
    sign.finish_and_clear();
    let report = match shown {
        Ok(report) => report,
        Err(error) => return output::failed(global, error),
    };
    let text = || if args.keep { format!("{report}\n\n{}", try_next(&report)) } else { format!("{report}\n\n{AGAIN}") };
    let answered = output::answer(global, text, || serde_json::json!(report));
    if args.keep
        && let Err(error) = server.wait()
    {
        return output::failed(global, error);
    }
    if report.wrong.is_empty() { answered } else { ExitCode::from(EXIT_FAILED) }
}

const AGAIN: &str = "  Try `seckill demo --keep` to leave the server up and buy something yourself.";

/// What to do with a server that stays up.
fn try_next(report: &DemoReport) -> String {
    let DemoReport { public, admin, data, .. } = report;
    let data = data.display();
    format!(
        "  The server is up. A sale of your own, a click, its result:

    seckill activity create --activity-id 7 --sku-id 1 --total 3 --starts-at now --ends-at +1h --set embedded.data={data}
    curl -i {public}/v1/seckill/orders -H 'Content-Type: application/json' -H 'X-User-Id: 42' \\
         -H 'Idempotency-Key: 0190f3a2-1111-7222-9333-0123456789ab' -d '{{\"activity_id\":7,\"sku_id\":1}}'
    curl '{public}/v1/seckill/activities/7/skus/1/requests/0190f3a2-1111-7222-9333-0123456789ab?wait=3000' -H 'X-User-Id: 42'
    curl {admin}/metrics

  Its dashboard: http://{admin}/

  Ctrl-C ends it in order; `kill -9` may too: what was promised is there at the next start."
    )
}

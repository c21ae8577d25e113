//! `seckill doctor`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{EXIT_FAILED, Global, output};
use crate::doctor::host::Host;
use crate::doctor::{Check, Grade, services};

/// `seckill doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill doctor                        this host
  seckill doctor --config shop.toml     and the services that shop.toml names

It changes nothing. Exit code 1 when something will fail under load or loses what must not be lost.")]
pub struct DoctorArgs {
    /// Show what is as it should be, too
    #[arg(long)]
    pub all: bool,
}

/// Runs `seckill doctor`.
pub fn run(args: &DoctorArgs, global: &Global) -> ExitCode {
    let settings = match global.settings() {
        Ok(settings) => settings,
        Err(error) => return output::bad_settings(global, &error),
    };
    let host = Host::here();
    let mut checks = host.checks(&settings);
    if settings.names_services() {
        let asked = super::services::with(&settings, async |named| {
            let mut checks = services::redis(&named.redis).await;
            checks.extend(services::postgres(&named.postgres, &settings, host.shards(&settings)).await);
            checks.extend(services::rocketmq(&named.rocketmq, &settings).await);
            checks
        });
        match asked {
            Ok(more) => checks.extend(more),
            Err(error) => return output::failed(global, error),
        }
    }
    let wrong = checks.iter().filter(|check| check.grade == Grade::Wrong).count();
    let answered = output::answer(global, || text(&checks, args.all), || json!({ "ok": wrong == 0, "checks": checks }));
    if wrong > 0 { ExitCode::from(EXIT_FAILED) } else { answered }
}

fn text(checks: &[Check], all: bool) -> String {
    let mut out = String::new();
    let mut sorted: Vec<&Check> = checks.iter().filter(|check| all || check.grade > Grade::Good).collect();
    sorted.sort_by_key(|check| std::cmp::Reverse(check.grade));
    for check in sorted {
        let sign = match check.grade {
            Grade::Good => "good   ",
            Grade::Unknown => "unknown",
            Grade::Advice => "advice ",
            Grade::Wrong => "WRONG  ",
        };
        let found = if check.found.is_empty() { String::new() } else { format!(": {}", check.found) };
        // Writing to a String does not fail.
        let _ = writeln!(out, "{sign}  {}{found}", check.what);
        for line in [&check.why, &check.fix] {
            if !line.is_empty() {
                let _ = writeln!(out, "         {line}");
            }
        }
    }
    let count = |grade| checks.iter().filter(|check| check.grade == grade).count();
    let _ = write!(
        out,
        "{} looked at: {} wrong, {} to think about, {} unknown here",
        checks.len(),
        count(Grade::Wrong),
        count(Grade::Advice),
        count(Grade::Unknown)
    );
    out
}

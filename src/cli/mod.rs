//! The command line: one file a subcommand, each with its arguments and `run(args, &Global) -> ExitCode`.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage or bad settings. Answers go to standard output, complaints to standard
//! error; with `--json` both are one JSON object on standard output, so that a script reads one stream.

pub mod activity;
pub mod bench;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod migrate;
pub mod output;
pub mod plan;
pub mod reconcile;
pub mod serve;
mod services;
pub mod set_aside;
pub mod when;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, ENVIRONMENT, Sources, load};

/// Done.
pub const EXIT_OK: u8 = 0;
/// Understood, but it failed.
pub const EXIT_FAILED: u8 = 1;
/// Bad usage or bad settings: nothing was tried. The code that `clap` uses too.
pub const EXIT_USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  seckill demo                                         a whole sale on this machine, nothing else installed
  seckill serve                                        the same as a server: embedded, data in seckill-data
  seckill serve --config shop.toml                     API, worker and query in one process
  seckill serve --role api --config shop.toml          only the API, on the services that shop.toml names
  seckill activity create --activity-id 1001 --sku-id 2001 --total 10000 --starts-at +5m --ends-at +2h
  seckill config show --set shards.count=4             what the program would run on

Settings come from the built-in defaults < --config < environment (SECKILL_REDIS, SECKILL_PG_URL, SECKILL_NAMESRV,
SECKILL_JWT_KEY, SECKILL_ADMIN_TOKEN) < --set. Exit codes: 0 done, 1 failed, 2 bad usage or bad settings.";

#[derive(Debug, Parser)]
#[command(
    name = "seckill",
    version,
    about = "A flash-sale order engine: every win becomes exactly one durable order",
    after_help = EXAMPLES,
    arg_required_else_help = true,
    max_term_width = 110
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Settings file; it needs only what differs from the defaults
    #[arg(long, value_name = "FILE", global = true, help_heading = "Settings")]
    pub config: Option<PathBuf>,
    /// One setting, over everything else; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", global = true, help_heading = "Settings")]
    pub set: Vec<String>,
    /// Answer with JSON on standard output
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

impl Global {
    /// The settings this call runs on: defaults, `--config`, environment, `--set`.
    ///
    /// # Errors
    /// [`ConfigError`]; report it with [`output::bad_settings`].
    pub fn settings(&self) -> Result<Config, ConfigError> {
        let environment =
            ENVIRONMENT.iter().filter_map(|(name, _)| std::env::var(name).ok().map(|value| (name.to_string(), value)));
        load(&Sources { file: self.config.as_deref(), environment: environment.collect(), overrides: self.set.clone() })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a whole flash sale on this machine, nothing else installed
    Demo(demo::DemoArgs),
    /// Run the API, the order worker, the query API, or all three
    Serve(serve::ServeArgs),
    /// Bring the PostgreSQL tables to this version
    Migrate(migrate::MigrateArgs),
    /// Create, warm, look at and close a sale
    Activity(activity::ActivityArgs),
    /// Compare Redis, PostgreSQL and the topic of a sale, and put them right
    Reconcile(reconcile::ReconcileArgs),
    /// Look at messages that were delivered too often, and send them again
    Dlq(set_aside::DlqArgs),
    /// Look at messages that could not be ordered, and send them again
    Quarantine(set_aside::QuarantineArgs),
    /// Look at this host and the services: what deviates, why it matters, what changes it
    Doctor(doctor::DoctorArgs),
    /// Check or print the settings
    Config(config::ConfigArgs),
    /// Size a sale: cores, shards, connections, stores, with the arithmetic
    Plan(plan::PlanArgs),
    /// Measure a running system
    Bench(bench::BenchArgs),
}

/// Reads the command line of this process and runs it.
pub fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    match command {
        Command::Demo(args) => demo::run(&args, &global),
        Command::Serve(args) => serve::run(&args, &global),
        Command::Migrate(args) => migrate::run(&args, &global),
        Command::Activity(args) => activity::run(&args, &global),
        Command::Reconcile(args) => reconcile::run(&args, &global),
        Command::Dlq(args) => set_aside::dlq(&args, &global),
        Command::Quarantine(args) => set_aside::quarantine(&args, &global),
        Command::Doctor(args) => doctor::run(&args, &global),
        Command::Config(args) => config::run(args, &global),
        Command::Plan(args) => plan::run(&args, &global),
        Command::Bench(args) => bench::run(&args, &global),
    }
}

/// One SKU of one activity, as every `activity` and `bench` subcommand names it.
#[derive(Debug, Clone, Copy, Args)]
pub struct SkuArgs {
    /// The sale
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub activity_id: i64,
    /// The thing on sale
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub sku_id: i64,
}

impl SkuArgs {
    /// As the domain names it. Both ids are > 0: the parser let nothing else through, so `None` only for values that
    /// did not come from it.
    pub const fn sku(self) -> Option<crate::domain::Sku> {
        crate::domain::Sku::new(self.activity_id, self.sku_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_or_after_the_subcommand() {
        for line in [
            "seckill --json --set shards.count=2 --set log.level=warn config show",
            "seckill config show --set shards.count=2 --json --set log.level=warn",
        ] {
            let global = parse(line).unwrap().global;
            assert!(global.json, "{line}");
            assert_eq!(global.set, ["shards.count=2", "log.level=warn"], "{line}");
        }
    }

    #[test]
    fn a_whole_sale_is_read() {
        let line = "seckill activity create --activity-id 1001 --sku-id 2001 --total 10 --starts-at -1m --ends-at +2h";
        let Command::Activity(args) = parse(line).unwrap().command else { panic!("another command") };
        let activity::ActivityCommand::Create(create) = args.command else { panic!("another subcommand") };
        assert_eq!(create.sku.sku(), crate::domain::Sku::new(1001, 2001));
        assert_eq!(create.total, 10);
        let window = create.window(1_000_000).unwrap();
        assert_eq!((window.start_ms, window.end_ms), (940_000, 8_200_000));
    }

    #[test]
    fn bad_usage_is_refused_with_exit_code_2() {
        for (line, kind) in [
            ("seckill serve --role judge", ErrorKind::InvalidValue),
            ("seckill activity warm --activity-id 0 --sku-id 1", ErrorKind::ValueValidation),
            ("seckill activity warm --activity-id 1", ErrorKind::MissingRequiredArgument),
            ("seckill bench submit --rate 0", ErrorKind::ValueValidation),
            ("seckill sell", ErrorKind::InvalidSubcommand),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}: {error}");
            assert_eq!(error.exit_code(), i32::from(EXIT_USAGE), "{line}");
        }
    }
}

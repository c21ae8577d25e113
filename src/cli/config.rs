//! `seckill config check` and `seckill config show`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{Global, output};
use crate::config::{Config, IdentityMode};

/// `seckill config`
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The subcommands of `seckill config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Read and check the settings, and say everything that is wrong with them
    #[command(after_help = "\
Examples:
  seckill config check --config shop.toml
  seckill config check --config shop.toml --set submit.deadline_ms=80 --json

Exit code 0 if the settings can be used, 2 if not.")]
    Check,
    /// Print the settings the program would run on, secrets hidden
    #[command(after_help = "\
Examples:
  seckill config show                              all settings with their defaults, as TOML
  seckill config show --config shop.toml --json    as JSON, for scripts
  seckill config show > shop.toml                  a file to start from")]
    Show,
}

/// Runs `seckill config`.
pub fn run(args: ConfigArgs, global: &Global) -> ExitCode {
    let config = match global.settings() {
        Ok(config) => config,
        Err(error) => return output::bad_settings(global, &error),
    };
    match args.command {
        ConfigCommand::Check => check(&config, global),
        ConfigCommand::Show => show(&config, global),
    }
}

fn check(config: &Config, global: &Global) -> ExitCode {
    let mode = if config.names_services() { "services" } else { "embedded" };
    let notes = notes(config);
    output::answer(
        global,
        || {
            let notes = notes.iter().map(|note| format!("\nnote: {note}"));
            format!("ok: the settings can be used, mode {mode}{}", notes.collect::<String>())
        },
        || json!({ "ok": true, "mode": mode, "notes": notes }),
    )
}

/// What is allowed but may surprise.
fn notes(config: &Config) -> Vec<&'static str> {
    let mut notes = Vec::new();
    match config.identity.mode {
        IdentityMode::Jwt if config.identity.jwt_key.is_empty() => {
            notes.push("identity.jwt_key is empty: no buyer can be told apart, so orders need it (SECKILL_JWT_KEY)");
        }
        IdentityMode::GatewayHeader if !config.server.listen.ip().is_loopback() => {
            notes.push("identity.mode = gateway_header: whoever reaches server.listen directly can claim any user id");
        }
        _ => {}
    }
    if !config.admin.listen.ip().is_loopback() {
        notes.push("admin.listen is not a loopback address: keep it away from the public network");
    }
    notes
}

fn show(config: &Config, global: &Global) -> ExitCode {
    let shown = config.redacted();
    // Both forms are made before either is chosen: neither can fail for plain structs of strings and numbers, and if
    // one ever does it is reported as what it is.
    let (text, value) = match (toml::to_string(&shown), serde_json::to_value(&shown)) {
        (Ok(text), Ok(value)) => (text, value),
        (Err(error), _) => return output::failed(global, format!("cannot write the settings as TOML: {error}")),
        (_, Err(error)) => return output::failed(global, format!("cannot write the settings as JSON: {error}")),
    };
    output::answer(global, || text.trim_end().to_string(), || value)
}

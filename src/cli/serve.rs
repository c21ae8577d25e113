//! `seckill serve`.

use std::process::ExitCode;

use clap::Args;

use super::{Global, output};
use crate::serve::{Role, ServeError, serve};

/// `seckill serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill serve --config shop.toml                             everything in one process
  seckill serve --config shop.toml --role api                  one of several API processes
  seckill serve --config shop.toml --role worker --set worker.workers=64

SIGTERM: not ready, stop accepting, stop pulling, finish what is in hand (lifecycle.drain_s), close. A second signal
ends at once.")]
pub struct ServeArgs {
    /// Which parts run in this process
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub role: Role,
}

/// Runs `seckill serve`.
pub fn run(args: &ServeArgs, global: &Global) -> ExitCode {
    let settings = match global.settings() {
        Ok(settings) => settings,
        Err(error) => return output::bad_settings(global, &error),
    };
    match serve(settings, args.role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServeError::Settings(_)) => output::bad_usage(global, error),
        Err(error) => output::failed(global, error),
    }
}

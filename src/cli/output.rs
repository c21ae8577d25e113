//! How subcommands speak: text for people, JSON for scripts.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::{EXIT_FAILED, EXIT_USAGE, Global};
use crate::config::ConfigError;

/// Writes `text` and a line end to standard output. A reader that went away (`| head`) is no failure.
///
/// # Errors
/// What the system said, for instance that the disk behind a redirect is full.
pub fn line(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// How progress is drawn: what is done, of how much, how fast, how much longer.
pub fn bar_style() -> indicatif::ProgressStyle {
    let style = indicatif::ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}");
    style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar())
}

/// Ends a subcommand that answered: `text()` for people, `json()` with `--json`. Exit code 0, or 1 if the answer
/// could not be written.
pub fn answer(global: &Global, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> ExitCode {
    let written = if global.json { line(json()) } else { line(text()) };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(EXIT_FAILED, &format!("cannot write to standard output: {error}")),
    }
}

/// Ends a subcommand that was understood but failed: exit code 1.
pub fn failed(global: &Global, error: impl Display) -> ExitCode {
    refuse(global, EXIT_FAILED, &[error.to_string()])
}

/// Ends a subcommand whose arguments cannot be used together: exit code 2.
pub fn bad_usage(global: &Global, error: impl Display) -> ExitCode {
    refuse(global, EXIT_USAGE, &[error.to_string()])
}

/// Ends a subcommand whose settings cannot be used: every reason, exit code 2.
pub fn bad_settings(global: &Global, error: &ConfigError) -> ExitCode {
    match error {
        ConfigError::Rules(broken) => refuse(global, EXIT_USAGE, broken),
        other => refuse(global, EXIT_USAGE, &[other.to_string()]),
    }
}

/// `{"ok":false,"errors":[...]}` on standard output with `--json`, else a line each on standard error.
fn refuse(global: &Global, code: u8, errors: &[String]) -> ExitCode {
    if !global.json {
        return complain(code, &errors.join("\nerror: "));
    }
    match line(json!({ "ok": false, "errors": errors })) {
        Ok(()) => ExitCode::from(code),
        Err(error) => complain(code, &format!("cannot write to standard output: {error}")),
    }
}

fn complain(code: u8, text: &str) -> ExitCode {
    // Nothing is left to tell it to when standard error is gone too; the exit code still says it.
    let _ = writeln!(io::stderr().lock(), "error: {text}");
    ExitCode::from(code)
}

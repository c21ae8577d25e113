//! `seckill migrate`.

use std::process::ExitCode;

use clap::Args;

use proto_clients::postgres::{Pool, PoolConfig, UrlError};
use serde_json::json;

use super::{Global, output};
use crate::config::Config;
use crate::migrate::migrate;

/// `seckill migrate`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seckill migrate --config shop.toml
  SECKILL_PG_URL=postgres://shop:secret@db:5432/shop seckill migrate --json

Running it again changes nothing.")]
pub struct MigrateArgs {}

/// Runs `seckill migrate`.
pub fn run(_args: &MigrateArgs, global: &Global) -> ExitCode {
    let settings = match global.settings() {
        Ok(settings) => settings,
        Err(error) => return output::bad_settings(global, &error),
    };
    if settings.postgres.url.is_empty() {
        return output::bad_usage(global, "postgres.url is not set: name the database with --set or SECKILL_PG_URL");
    }
    let applied = shards::run(async {
        let pool = migration_pool(&settings).map_err(|error| error.to_string())?;
        let applied = migrate(&pool).await.map_err(|error| error.to_string());
        pool.close().await;
        applied
    });
    match applied {
        Ok(applied) => output::answer(
            global,
            || match applied.as_slice() {
                [] => "up to date".to_owned(),
                names => format!("applied {}", names.join(", ")),
            },
            || json!({ "ok": true, "applied": applied }),
        ),
        Err(error) => output::failed(global, error),
    }
}

/// A migration may take longer than any order transaction.
fn migration_pool(settings: &Config) -> Result<Pool, UrlError> {
    let mut config = PoolConfig::from_url(&settings.postgres.url)?;
    config.connections_max = 1;
    config.application_name = "seckill migrate".to_owned();
    Ok(Pool::new(config))
}

//! The services that the settings name, for the time of one command. Nothing is connected until it is used.

use std::process::ExitCode;

use proto_clients::postgres::UrlError;
use proto_clients::{postgres, redis, rocketmq};

use super::{Global, output};
use crate::config::Config;
use crate::serve::pools::{postgres_pool, redis_pool, rocketmq_client};

/// What a command works on.
pub(super) struct Services {
    pub(super) redis: redis::Pool,
    pub(super) postgres: postgres::Pool,
    pub(super) rocketmq: rocketmq::Client,
}

/// The settings of a command that has nothing to do `without` services.
///
/// # Errors
/// The exit code: it has been said why.
pub(super) fn required(global: &Global, without: &str) -> Result<Config, ExitCode> {
    match global.settings() {
        Ok(settings) if settings.names_services() => Ok(settings),
        Ok(_) => Err(output::bad_usage(global, format!("{without}. Name the services with --config"))),
        Err(error) => Err(output::bad_settings(global, &error)),
    }
}

/// Runs `command` on the services and closes them.
///
/// # Errors
/// When `postgres.url` cannot be read.
pub(super) fn with<T>(settings: &Config, command: impl AsyncFnOnce(&Services) -> T) -> Result<T, UrlError> {
    shards::run(async {
        let services = Services {
            postgres: postgres_pool(settings, 1)?,
            redis: redis_pool(settings),
            rocketmq: rocketmq_client(settings, format!("command@{}", std::process::id())),
        };
        let done = command(&services).await;
        services.rocketmq.close().await;
        services.redis.close().await;
        services.postgres.close().await;
        Ok(done)
    })
}

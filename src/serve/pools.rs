//! Connection pools of one shard, one a purpose, so that no purpose can starve another (spec section 7).

use std::time::Duration;

use proto_clients::{postgres, redis, rocketmq};

use crate::config::Config;

/// A Redis pool.
pub(crate) fn redis_pool(config: &Config) -> redis::Pool {
    let settings = &config.redis;
    let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
    redis::Pool::new(redis::PoolConfig {
        endpoint: settings.addr.clone(),
        username: text(&settings.username),
        password: text(&settings.password),
        database: settings.database,
        connections_max: settings.connections_max,
        wait_max: Duration::from_millis(settings.pool_wait_ms),
        dial_timeout: Duration::from_millis(settings.dial_timeout_ms),
        io_timeout: Duration::from_millis(settings.io_timeout_ms),
        idle_max: Duration::from_secs(settings.idle_max_s),
        lifetime_max: Duration::from_secs(settings.lifetime_max_s),
        ..redis::PoolConfig::default()
    })
}

/// A PostgreSQL pool of at most `connections_max`.
///
/// # Errors
/// When `postgres.url` cannot be read.
pub(crate) fn postgres_pool(config: &Config, connections_max: usize) -> Result<postgres::Pool, postgres::UrlError> {
    let settings = &config.postgres;
    let mut pool = postgres::PoolConfig::from_url(&settings.url)?;
    pool.application_name = "seckill".to_owned();
    pool.connections_max = connections_max;
    pool.wait_max = Duration::from_millis(settings.acquire_wait_ms);
    pool.dial_timeout = Duration::from_millis(settings.connect_timeout_ms);
    pool.idle_max = Duration::from_secs(settings.idle_max_s);
    pool.lifetime_max = Duration::from_secs(settings.lifetime_max_s);
    pool.statement_timeout = Some(Duration::from_millis(settings.transaction_timeout_ms));
    Ok(postgres::Pool::new(pool))
}

/// A RocketMQ client; `name` tells it from others of the group.
pub(crate) fn rocketmq_client(config: &Config, name: String) -> rocketmq::Client {
    let settings = &config.rocketmq;
    let access = (!settings.access_key.is_empty()).then(|| rocketmq::AccessKey {
        access_key: settings.access_key.clone(),
        secret_key: settings.secret_key.clone(),
    });
    rocketmq::Client::new(rocketmq::ClientConfig {
        name_servers: settings.name_servers.clone(),
        group: settings.group.clone(),
        client_id: name,
        access,
        dial_timeout: Duration::from_millis(settings.connect_timeout_ms),
        ..rocketmq::ClientConfig::default()
    })
}

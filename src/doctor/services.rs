//! The services, as they say themselves: what would lose a promise, and what would not last a sale.

use std::time::{Duration, Instant};

use proto_clients::postgres::{Params, Pool as PgPool, Statement};
use proto_clients::redis::{Command, Pool, Reply};
use proto_clients::rocketmq::Client;

use super::{Check, Grade};
use crate::config::Config;

static SETTINGS: Statement = Statement {
    sql: "SELECT name::text, setting::text FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes', \
          'max_connections')",
    params: &[],
};

/// Longest question.
const STEP: Duration = Duration::from_secs(5);

fn deadline() -> Instant {
    shards::now() + STEP
}

/// Redis: what it evicts, and what it keeps through a crash.
pub async fn redis(pool: &Pool) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, good, grade, why) in [
        (
            "maxmemory-policy",
            &["noeviction"][..],
            Grade::Wrong,
            "any other policy throws buyers and stock away when memory is full: units are sold twice, until PostgreSQL says no",
        ),
        (
            "appendonly",
            &["yes"][..],
            Grade::Wrong,
            "without AOF a crash loses every reservation whose order is not made yet",
        ),
        (
            "appendfsync",
            &["everysec", "always"][..],
            Grade::Wrong,
            "the kernel decides when reservations reach the disk, up to half a minute late",
        ),
    ] {
        let what = format!("Redis {name}");
        let mut command = Command::new("CONFIG", 3);
        command.arg(b"GET");
        command.arg(name.as_bytes());
        match pool.call(command, deadline()).await {
            Ok(reply) => {
                let value = reply.as_array().and_then(|fields| fields.get(1)).and_then(Reply::as_str);
                checks.push(match value {
                    Some(value) if good.contains(&value) => Check::good(what, value),
                    Some(value) => Check::off(
                        grade,
                        what,
                        value,
                        why,
                        format!("CONFIG SET {name} {}   # and in redis.conf", good[0]),
                    ),
                    None => Check::unknown(what, "this server does not say (a managed service?)"),
                });
            }
            Err(error) => {
                checks.push(Check::off(Grade::Wrong, "Redis", "not reachable", error.to_string(), "check redis.addr"));
                return checks;
            }
        }
    }
    checks
}

/// PostgreSQL: whether a commit is one, and whether all pools fit.
pub async fn postgres(pool: &PgPool, config: &Config, shards: usize) -> Vec<Check> {
    let rows = match pool.acquire(deadline()).await {
        Ok(mut client) => client.query(&SETTINGS, &Params::new(), deadline()).await,
        Err(error) => Err(error),
    };
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) => {
            return vec![Check::off(
                Grade::Wrong,
                "PostgreSQL",
                "not reachable",
                error.to_string(),
                "check postgres.url",
            )];
        }
    };
    let mut checks = Vec::new();
    for row in rows.iter() {
        let (Ok(name), Ok(value)) = (row.text(0), row.text(1)) else { continue };
        let what = format!("PostgreSQL {name}");
        checks.push(match name {
            "max_connections" => {
                let settings = &config.postgres;
                let one = (settings.order_connections_max
                    + settings.side_connections_max
                    + config.query.postgres_connections_max)
                    * shards
                    + 3;
                match value.parse::<usize>() {
                    Ok(max) if max >= one + 5 => Check::good(what, value),
                    _ => Check::off(
                        Grade::Wrong,
                        what,
                        value,
                        format!("one process with every role opens up to {one}, and people need a few"),
                        format!("ALTER SYSTEM SET max_connections = {}; restart", (2 * one).max(100)),
                    ),
                }
            }
            _ if value == "on" || (name == "synchronous_commit" && value != "off") => Check::good(what, value),
            _ => Check::off(
                Grade::Wrong,
                what,
                value,
                "an order that was committed, acked and shown can be lost in a crash",
                format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"),
            ),
        });
    }
    checks
}

/// RocketMQ: whether the topics are there.
pub async fn rocketmq(client: &Client, config: &Config) -> Vec<Check> {
    let dead = format!("%DLQ%{}", config.rocketmq.group);
    let mut checks = Vec::new();
    for (topic, why) in [
        (config.rocketmq.topic.as_str(), "no order reaches a worker without it"),
        (dead.as_str(), "a message that fails too often has nowhere to go and comes for ever"),
    ] {
        let what = format!("RocketMQ topic {topic}");
        match client.queues(topic, deadline()).await {
            Ok(queues) if queues.is_empty() => {
                checks.push(Check::off(Grade::Wrong, what, "cannot be read", why, "give it perm 6"));
            }
            Ok(queues) => checks.push(Check::good(what, format!("{} queues", queues.len()))),
            Err(error) => {
                let fix = format!("mqadmin updateTopic -n <name server> -c <cluster> -t '{topic}'");
                checks.push(Check::off(Grade::Wrong, what, error.to_string(), why, fix));
            }
        }
    }
    checks
}

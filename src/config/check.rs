//! The rules that values must keep: ranges, and relations across sections.

use super::{Config, IdentityMode, JwtAlgorithm};

/// Collects broken rules, each as one line that names the setting and what it may be.
struct Rules {
    broken: Vec<String>,
}

impl Rules {
    fn range(&mut self, setting: &str, value: u64, min: u64, max: u64) {
        if !(min..=max).contains(&value) {
            self.broken.push(format!("{setting} = {value} is out of range: {min}..={max}"));
        }
    }

    fn require(&mut self, holds: bool, explain: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(explain());
        }
    }
}

/// Every rule that `config` breaks.
pub(super) fn broken_rules(config: &Config) -> Vec<String> {
    let mut rules = Rules { broken: Vec::new() };
    ranges(&mut rules, config);
    admin(&mut rules, config);
    trace(&mut rules, config);
    budgets(&mut rules, config);
    identity(&mut rules, config);
    services(&mut rules, config);
    rules.broken
}

fn ranges(rules: &mut Rules, config: &Config) {
    let Config { server, shards, submit, worker, query, trace, .. } = config;
    for (setting, value, min, max) in [
        ("server.connections_max", server.connections_max as u64, 1, 200_000),
        ("server.head_timeout_ms", server.head_timeout_ms, 100, 15_000),
        ("server.body_timeout_ms", server.body_timeout_ms, 100, 60_000),
        ("server.idle_timeout_ms", server.idle_timeout_ms, 100, 3_600_000),
        ("server.write_timeout_ms", server.write_timeout_ms, 100, 60_000),
        ("shards.count", shards.count as u64, 0, 256),
        ("shards.ring_entries", u64::from(shards.ring_entries), 64, 32_768),
        ("submit.admission_max", submit.admission_max as u64, 1, 1_000_000),
        ("submit.reserve_batch_max", submit.reserve_batch_max as u64, 1, 512),
        ("submit.publish_batch_max", submit.publish_batch_max as u64, 1, 256),
        ("recovery.scan_ms", config.recovery.scan_ms, 10, 60_000),
        ("recovery.pending_age_ms", config.recovery.pending_age_ms, 500, 600_000),
        ("recovery.lease_ms", config.recovery.lease_ms, 500, 600_000),
        ("recovery.batch_max", config.recovery.batch_max as u64, 1, 512),
        ("recovery.reconcile_ms", config.recovery.reconcile_ms, 100, 3_600_000),
        ("resilience.breaker_failures", u64::from(config.resilience.breaker_failures), 1, 32),
        ("resilience.breaker_open_ms", config.resilience.breaker_open_ms, 10, 60_000),
        ("resilience.breaker_open_max_ms", config.resilience.breaker_open_max_ms, 10, 60_000),
        ("resilience.retry_percent", u64::from(config.resilience.retry_percent), 0, 100),
        ("resilience.retry_floor_per_min", u64::from(config.resilience.retry_floor_per_min), 0, 10_000),
        ("embedded.segment_mib", config.embedded.segment_mib, 1, 1_024),
        ("redis.connections_max", config.redis.connections_max as u64, 1, 64),
        ("redis.io_timeout_ms", config.redis.io_timeout_ms, 1, 60_000),
        ("rocketmq.deliveries_max", u64::from(config.rocketmq.deliveries_max), 1, 64),
        ("rocketmq.invisible_ms", config.rocketmq.invisible_ms, 10_000, 300_000),
        ("rocketmq.poll_ms", config.rocketmq.poll_ms, 100, 3_000),
        ("postgres.order_connections_max", config.postgres.order_connections_max as u64, 1, 64),
        ("postgres.side_connections_max", config.postgres.side_connections_max as u64, 1, 16),
        ("postgres.transaction_timeout_ms", config.postgres.transaction_timeout_ms, 100, 60_000),
        ("worker.workers", worker.workers as u64, 1, 512),
        ("worker.queue_capacity", worker.queue_capacity as u64, 0, 4_096),
        ("worker.receive_max", worker.receive_max as u64, 1, 32),
        ("worker.pullers", worker.pullers as u64, 1, 8),
        ("worker.sku_batches_max", worker.sku_batches_max as u64, 1, 8),
        ("worker.ack_tries_max", u64::from(worker.ack_tries_max), 1, 10),
        ("query.admission_max", query.admission_max as u64, 1, 1_000_000),
        ("query.wait_max_ms", query.wait_max_ms, 0, 60_000),
        ("query.postgres_connections_max", query.postgres_connections_max as u64, 1, 16),
        ("lifecycle.drain_s", config.lifecycle.drain_s, 1, 600),
        ("trace.limit_per_s", u64::from(trace.limit_per_s), 1, 1_000_000),
        ("identity.jwt_leeway_s", config.identity.jwt_leeway_s, 0, 300),
    ] {
        rules.range(setting, value, min, max);
    }
    rules.require(shards.ring_entries.is_power_of_two(), || {
        format!("shards.ring_entries = {} must be a power of two", shards.ring_entries)
    });
    rules.require(config.log.level.parse::<tracing::Level>().is_ok(), || {
        format!("log.level = {:?} must be one of error, warn, info, debug, trace", config.log.level)
    });
}

fn trace(rules: &mut Rules, config: &Config) {
    let trace = &config.trace;
    rules.require((0.0..=1.0).contains(&trace.sample), || {
        format!("trace.sample = {} is out of range: 0.0..=1.0", trace.sample)
    });
    let is_url = ["http://", "https://"].iter().any(|scheme| trace.otlp.starts_with(scheme));
    rules.require(is_url || trace.otlp.is_empty(), || {
        format!("trace.otlp = {:?} must begin with http:// or https://, as in http://127.0.0.1:4318", trace.otlp)
    });
}

/// The admin listener shows and changes what is nobody else's business.
fn admin(rules: &mut Rules, config: &Config) {
    let admin = &config.admin;
    rules.require(admin.listen.ip().is_loopback() || !admin.token.is_empty(), || {
        format!(
            "admin.listen = {} can be reached by others: set admin.token (and let scrapers send it as a bearer token), or listen on \
             127.0.0.1",
            admin.listen
        )
    });
    rules.require(admin.token.is_empty() || admin.token.len() >= 16, || {
        format!("admin.token has {} bytes and needs at least 16", admin.token.len())
    });
}

fn budgets(rules: &mut Rules, config: &Config) {
    let submit = &config.submit;
    let parts = submit.validate_ms + submit.reserve_ms + submit.publish_ms + submit.encode_ms;
    rules.require(parts <= submit.deadline_ms, || {
        format!(
            "submit.deadline_ms = {} is shorter than its parts: validate_ms + reserve_ms + publish_ms + encode_ms = {parts}",
            submit.deadline_ms
        )
    });
    let resilience = &config.resilience;
    rules.require(resilience.breaker_open_ms <= resilience.breaker_open_max_ms, || {
        format!(
            "resilience.breaker_open_ms = {} is longer than resilience.breaker_open_max_ms = {}",
            resilience.breaker_open_ms, resilience.breaker_open_max_ms
        )
    });
    let sale = &config.sale;
    let windows = sale.mq_window_s + sale.recovery_window_s + sale.reconciliation_window_s;
    rules.require(sale.key_ttl_s >= windows, || {
        format!(
            "sale.key_ttl_s = {} is too short: the idempotency records must outlive mq_window_s + recovery_window_s + reconciliation_window_s = {windows}",
            sale.key_ttl_s
        )
    });
    // A message that comes back while it is still worked on is only a waste, but a steady one.
    let needed = 2 * config.postgres.transaction_timeout_ms + config.rocketmq.poll_ms;
    rules.require(config.rocketmq.invisible_ms >= needed, || {
        format!(
            "rocketmq.invisible_ms = {} must be at least 2 x postgres.transaction_timeout_ms + rocketmq.poll_ms = {needed}",
            config.rocketmq.invisible_ms
        )
    });
}

fn identity(rules: &mut Rules, config: &Config) {
    let identity = &config.identity;
    match identity.mode {
        IdentityMode::GatewayHeader => rules.require(is_field_name(&identity.gateway_header), || {
            format!("identity.gateway_header = {:?} is not a header name", identity.gateway_header)
        }),
        IdentityMode::Jwt => {
            let usable = match identity.jwt_algorithm {
                JwtAlgorithm::HS256 => identity.jwt_key.len() >= 32,
                JwtAlgorithm::EdDSA => identity.jwt_key.contains("BEGIN PUBLIC KEY"),
            };
            // Without services there is nothing to protect yet; `serve` asks again.
            rules.require(usable || identity.jwt_key.is_empty(), || {
                "identity.jwt_key: HS256 needs a secret of at least 32 bytes, EdDSA a public key in PEM".into()
            });
        }
    }
}

fn is_field_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn services(rules: &mut Rules, config: &Config) {
    let named = [
        ("redis.addr", !config.redis.addr.is_empty()),
        ("rocketmq.name_servers", !config.rocketmq.name_servers.is_empty()),
        ("postgres.url", !config.postgres.url.is_empty()),
    ];
    let missing: Vec<&str> = named.iter().filter(|(_, set)| !set).map(|(name, _)| *name).collect();
    rules.require(missing.is_empty() || missing.len() == named.len(), || {
        format!("services are named only in part: set {} too, or none of the three", missing.join(" and "))
    });
    let has_port =
        |addr: &str| addr.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    rules.require(config.redis.addr.is_empty() || has_port(&config.redis.addr), || {
        format!("redis.addr = {:?} must be host:port", config.redis.addr)
    });
    for server in &config.rocketmq.name_servers {
        rules.require(has_port(server), || format!("rocketmq.name_servers: {server:?} must be host:port"));
    }
    rules.require(config.rocketmq.access_key.is_empty() == config.rocketmq.secret_key.is_empty(), || {
        "rocketmq.access_key and rocketmq.secret_key must be set together".into()
    });
}

//! The settings as types, a struct a section. `seckill.toml` documents each; ranges stand in `check.rs`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    };
}

section!(
    /// All settings.
    Config {
        /// `[server]`
        server: Server,
        /// `[shards]`
        shards: ShardSettings,
        /// `[admin]`
        admin: Admin,
        /// `[identity]`
        identity: Identity,
        /// `[submit]`
        submit: Submit,
        /// `[sale]`
        sale: Sale,
        /// `[recovery]`
        recovery: Recovery,
        /// `[resilience]`
        resilience: Resilience,
        /// `[embedded]`
        embedded: Embedded,
        /// `[redis]`
        redis: Redis,
        /// `[rocketmq]`
        rocketmq: RocketMq,
        /// `[postgres]`
        postgres: Postgres,
        /// `[worker]`
        worker: Worker,
        /// `[query]`
        query: Query,
        /// `[lifecycle]`
        lifecycle: Lifecycle,
        /// `[log]`
        log: Log,
        /// `[trace]`
        trace: Trace,
    }
);

section!(
    /// The public listener.
    Server {
        /// Address and port; port 0 takes a free one.
        listen: SocketAddr,
        /// Connections per shard.
        connections_max: usize,
        /// Time for a whole request head.
        head_timeout_ms: u64,
        /// Time for a whole body.
        body_timeout_ms: u64,
        /// Silence allowed between requests.
        idle_timeout_ms: u64,
        /// Time for a client to take an answer.
        write_timeout_ms: u64,
    }
);

/// Which driver the shards run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// io_uring, epoll where it is refused.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll.
    Epoll,
}

section!(
    /// The shards.
    ShardSettings {
        /// How many; 0 = one a core.
        count: usize,
        /// Bind each to its core.
        pin: bool,
        /// io_uring or epoll.
        driver: Driver,
        /// Submission entries a ring.
        ring_entries: u32,
    }
);

section!(
    /// The admin listener.
    Admin {
        /// Address and port.
        listen: SocketAddr,
        /// What whoever asks must know; empty = nothing.
        token: String,
    }
);

/// Where a user id comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentityMode {
    /// A signed bearer token.
    Jwt,
    /// A header that a trusted gateway sets.
    GatewayHeader,
}

/// The only algorithm a token may be signed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256 (RFC 7518 section 3.2).
    HS256,
    /// Ed25519 (RFC 8037).
    EdDSA,
}

section!(
    /// Who the caller is.
    Identity {
        /// Token or gateway header.
        mode: IdentityMode,
        /// The pinned algorithm.
        jwt_algorithm: JwtAlgorithm,
        /// Secret or public key.
        jwt_key: String,
        /// Required audience.
        jwt_audience: String,
        /// Clock difference allowed.
        jwt_leeway_s: u64,
        /// The gateway's header.
        gateway_header: String,
    }
);

/// What a send that did not succeed means for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnSendFailure {
    /// The reservation waits as MQ_PENDING and is sent again: 202.
    Recovery,
    /// The unit is released where the message was certainly not stored: 503.
    Strict,
}

section!(
    /// The submit path.
    Submit {
        /// Requests in hand per shard.
        admission_max: usize,
        /// The whole request.
        deadline_ms: u64,
        /// Part for validation.
        validate_ms: u64,
        /// Part for Redis.
        reserve_ms: u64,
        /// Part for RocketMQ.
        publish_ms: u64,
        /// Part for the answer.
        encode_ms: u64,
        /// Requests in one script call.
        reserve_batch_max: usize,
        /// Messages in one send.
        publish_batch_max: usize,
        /// Recovery or strict.
        on_send_failure: OnSendFailure,
    }
);

section!(
    /// How long a sale's keys live.
    Sale {
        /// Life of the keys after the end.
        key_ttl_s: u64,
        /// Retry and backlog of the topic.
        mq_window_s: u64,
        /// Recovery.
        recovery_window_s: u64,
        /// Reconciliation.
        reconciliation_window_s: u64,
    }
);

section!(
    /// Messages that were never confirmed.
    Recovery {
        /// Pause between two looks.
        scan_ms: u64,
        /// How old a reservation without a confirmed message must be.
        pending_age_ms: u64,
        /// How long one instance has a claimed reservation for itself.
        lease_ms: u64,
        /// Reservations of one SKU claimed at a time.
        batch_max: usize,
        /// Pause between two comparisons of the books.
        reconcile_ms: u64,
    }
);

section!(
    /// Breakers and retry budgets.
    Resilience {
        /// Faults in a row that open a breaker.
        breaker_failures: u32,
        /// First cool-down of an open breaker.
        breaker_open_ms: u64,
        /// Longest cool-down.
        breaker_open_max_ms: u64,
        /// Retries allowed, in percent of the first tries of a minute.
        retry_percent: u32,
        /// Retries a minute that are free while the dependency answers.
        retry_floor_per_min: u32,
    }
);

section!(
    /// The sale in one process, without services.
    Embedded {
        /// The data folder.
        data: std::path::PathBuf,
        /// Size of a journal file in MiB.
        segment_mib: u64,
    }
);

section!(
    /// Redis.
    Redis {
        /// `host:port`; empty = not configured.
        addr: String,
        /// ACL user; empty = default user.
        username: String,
        /// Password; empty = none.
        password: String,
        /// Database number.
        database: u32,
        /// Connections per shard.
        connections_max: usize,
        /// Longest wait for a connection.
        pool_wait_ms: u64,
        /// Longest dial.
        dial_timeout_ms: u64,
        /// Longest read or write.
        io_timeout_ms: u64,
        /// Idle connections are closed after this.
        idle_max_s: u64,
        /// Connections are replaced after this,
        lifetime_max_s: u64,
        /// give or take this.
        lifetime_jitter_s: u64,
    }
);

section!(
    /// RocketMQ.
    RocketMq {
        /// Name servers, `host:port`; empty = not configured.
        name_servers: Vec<String>,
        /// ACL access key; empty = no signature.
        access_key: String,
        /// ACL secret key.
        secret_key: String,
        /// The topic of order events.
        topic: String,
        /// The consumer group.
        group: String,
        /// Deliveries before the dead-letter topic.
        deliveries_max: u32,
        /// Invisible time of a popped message.
        invisible_ms: u64,
        /// Long poll.
        poll_ms: u64,
        /// Longest dial.
        connect_timeout_ms: u64,
    }
);

section!(
    /// PostgreSQL.
    Postgres {
        /// `postgres://user:password@host:port/database`; empty = not configured.
        url: String,
        /// Connections for order transactions, per shard.
        order_connections_max: usize,
        /// Connections for side writes, per shard.
        side_connections_max: usize,
        /// Longest wait for a connection.
        acquire_wait_ms: u64,
        /// Longest dial and log-in.
        connect_timeout_ms: u64,
        /// Longest order transaction.
        transaction_timeout_ms: u64,
        /// Idle connections are closed after this.
        idle_max_s: u64,
        /// Connections are replaced after this,
        lifetime_max_s: u64,
        /// give or take this.
        lifetime_jitter_s: u64,
    }
);

section!(
    /// The order worker.
    Worker {
        /// Messages worked on at a time, per shard.
        workers: usize,
        /// Messages waiting, per shard.
        queue_capacity: usize,
        /// Messages in one pop.
        receive_max: usize,
        /// Pops outstanding, per shard.
        pullers: usize,
        /// Transactions of one SKU in flight, per shard.
        sku_batches_max: usize,
        /// Tries of an ack.
        ack_tries_max: u32,
        /// Whether deliveries are logged in PostgreSQL.
        attempt_log: bool,
    }
);

section!(
    /// The query path.
    Query {
        /// Requests in hand per shard.
        admission_max: usize,
        /// Deadline without `?wait`.
        deadline_ms: u64,
        /// Cap of `?wait`.
        wait_max_ms: u64,
        /// Age below which a request without a result is PROCESSING.
        processing_window_ms: u64,
        /// Connections of the fallback, per shard.
        postgres_connections_max: usize,
        /// Fallback lookups a second, per shard.
        fallback_per_s: u32,
    }
);

section!(
    /// Start and stop.
    Lifecycle {
        /// Longest drain.
        drain_s: u64,
    }
);

section!(
    /// Logs.
    Log {
        /// The lowest level written.
        level: String,
        /// What tells this process from others of the service; host and process id if empty.
        instance: String,
    }
);

section!(
    /// Traces.
    Trace {
        /// The collector's address, OTLP over HTTP; empty = nothing is recorded.
        otlp: String,
        /// Which part of the traces that begin here is recorded, 0 to 1.
        sample: f64,
        /// Spans a second and shard at most.
        limit_per_s: u32,
    }
);

impl ShardSettings {
    /// How many shards there are on so many cores.
    pub fn on(&self, cores: usize) -> usize {
        if self.count == 0 { cores } else { self.count }
    }
}

impl Submit {
    /// The whole request's budget.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

impl Config {
    /// Whether Redis, RocketMQ and PostgreSQL are all named. `check` refuses a half.
    pub fn names_services(&self) -> bool {
        !self.redis.addr.is_empty() && !self.rocketmq.name_servers.is_empty() && !self.postgres.url.is_empty()
    }

    /// A copy without secrets, to print.
    pub fn redacted(&self) -> Self {
        let mut shown = self.clone();
        let hide = |secret: &mut String| {
            if !secret.is_empty() {
                *secret = "***".into();
            }
        };
        hide(&mut shown.identity.jwt_key);
        hide(&mut shown.admin.token);
        hide(&mut shown.redis.password);
        hide(&mut shown.rocketmq.secret_key);
        if let Some((scheme, rest)) = shown.postgres.url.split_once("://")
            && let Some((login, host)) = rest.rsplit_once('@')
        {
            let user = login.split(':').next().unwrap_or_default();
            shown.postgres.url = format!("{scheme}://{user}:***@{host}");
        }
        shown
    }
}

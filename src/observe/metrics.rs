//! The metrics of one shard: plain cells, no atomics, no locks (spec section 9, reference [12.2]).
//!
//! A scrape asks every shard for a copy ([`Metrics`] is `Clone + Send`) and adds the copies up, so the hot path pays
//! one unshared increment and nothing while nobody looks. Labels are closed sets: no id ever becomes one.

use std::time::Duration;

mod cells;
mod visit;

pub use cells::{Counter, Gauge, Histogram, HistogramOfSizes, LATENCY_BOUNDS, SIZE_BOUNDS};
pub use visit::Visitor;

use crate::domain::RejectReason;

/// Declares a closed label set: an enum whose variants are array indices, with the label value of each.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is its label value")]
        pub enum $name { $($variant,)* }

        impl $name {
            /// The label values, in the order of the variants.
            pub const TEXTS: &'static [&'static str] = &[$($text,)*];
        }
    };
}

labels!(
    /// `route` of HTTP metrics.
    Route { Submit => "submit", Query => "query", Admin => "admin", Unmatched => "unmatched", }
);
labels!(
    /// `reason` of refused admissions.
    Refusal { Submit => "submit", Query => "query", Connections => "connections", }
);
labels!(
    /// `route` of admission.
    Admitted { Submit => "submit", Query => "query", }
);
labels!(
    /// `phase` of HTTP timeouts, in the order of [`crate::http::Phase`].
    TimeoutPhase { Head => "head", Body => "body", Idle => "idle", Write => "write", }
);
labels!(
    /// `code` of reserve outcomes (spec section 2).
    LuaCode {
        Created => "0", SameRequest => "1", SameUser => "2", SoldOut => "3", Unavailable => "4",
        NotStarted => "5", Ended => "6", KeyReused => "7", Closed => "8",
    }
);
labels!(
    /// `operation` of Redis metrics.
    RedisOperation {
        Reserve => "reserve", MarkSent => "mark_sent", MarkPending => "mark_pending", Project => "project",
        Result => "result", Release => "release", OrderIds => "order_ids", Claim => "claim_pending",
    }
);
labels!(
    /// `result` of Redis metrics.
    CallResult { Ok => "ok", Refused => "refused", Timeout => "timeout", Unavailable => "unavailable", }
);
labels!(
    /// `outcome` of messages and transactions.
    Processed {
        Created => "created", Duplicate => "duplicate", Rejected => "rejected", Quarantined => "quarantined",
        DeadLettered => "dead_lettered", Failed => "failed", Panicked => "panicked",
    }
);
labels!(
    /// `bucket` of delivery attempts.
    Attempt { First => "1", Second => "2", Third => "3", UpToFive => "4-5", UpToEight => "6-8", More => "9+", }
);
labels!(
    /// `sqlstate` of retried transactions.
    TxRetry { Serialization => "40001", Deadlock => "40P01", Connection => "08xxx", Other => "other", }
);
labels!(
    /// `step` of a batch's order transaction.
    TxStep { Inbox => "inbox", Orders => "orders", Stock => "stock", Commit => "commit", }
);
labels!(
    /// `dependency` of breakers and retries.
    Dependency { Redis => "redis", RocketMq => "rocketmq", Postgres => "postgres", }
);
labels!(
    /// `state` of breakers.
    BreakerState { Closed => "closed", HalfOpen => "half_open", Open => "open", }
);
labels!(
    /// `operation` of unexpected affected-row counts.
    Anomaly { Inbox => "inbox", Stock => "stock", Order => "order", Outbox => "outbox", Batch => "batch", }
);

impl Attempt {
    /// The bucket of delivery attempt `attempt`, counted from 1.
    pub fn of(attempt: u32) -> Self {
        match attempt {
            0 | 1 => Self::First,
            2 => Self::Second,
            3 => Self::Third,
            4 | 5 => Self::UpToFive,
            6..=8 => Self::UpToEight,
            _ => Self::More,
        }
    }
}

/// HTTP status codes that this server answers with, so that the label set stays closed.
pub const STATUSES: [u16; 21] =
    [100, 200, 202, 400, 401, 404, 405, 408, 409, 413, 414, 415, 417, 422, 429, 431, 500, 501, 503, 504, 505];

/// `reason` of rejected orders, in the order of [`RejectReason`].
const REJECT_REASONS: [&str; RejectReason::ALL.len()] = {
    let mut codes = [""; RejectReason::ALL.len()];
    let mut index = 0;
    while index < codes.len() {
        codes[index] = RejectReason::ALL[index].code();
        index += 1;
    }
    codes
};

/// Everything one shard counts.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "each field carries the metric's name without the prefix; `visit` documents them")]
pub struct Metrics {
    /// Which shard these are of.
    pub shard: Gauge,
    pub shard_cpu_micros: Counter,
    pub shard_loop_lag: Histogram,
    pub shard_operations: Counter,
    pub shard_tasks: Gauge,
    pub shard_allocations: Counter,
    pub shard_allocated_bytes: Counter,
    pub admission_in_use: [Gauge; Admitted::TEXTS.len()],
    pub admission_limit: [Gauge; Admitted::TEXTS.len()],
    pub shard_loop_lag_max_us: Gauge,

    pub http_requests: [[Counter; STATUSES.len() + 1]; Route::TEXTS.len()],
    pub http_request_duration: [Histogram; Route::TEXTS.len()],
    pub admission_rejected: [Counter; Refusal::TEXTS.len()],
    pub http_inflight: Gauge,
    pub http_connections: Gauge,
    pub http_timeouts: [Counter; TimeoutPhase::TEXTS.len()],
    pub client_canceled: Counter,

    pub redis_operation: [[Histogram; CallResult::TEXTS.len()]; RedisOperation::TEXTS.len()],
    pub redis_lua_result: [Counter; LuaCode::TEXTS.len()],
    pub redis_pool_wait: Histogram,
    pub redis_pool_timeouts: Counter,
    pub redis_active_connections: Gauge,
    pub redis_reconnects: Counter,
    pub reserve_batch: HistogramOfSizes,
    pub reservation_pending: Counter,
    pub reservation_illegal_transition: Counter,
    pub recovery_resent: Counter,
    pub recovery_failed: Counter,
    pub release_applied: Counter,
    pub release_refused: Counter,

    pub breaker_state: [[Gauge; BreakerState::TEXTS.len()]; Dependency::TEXTS.len()],
    pub breaker_transitions: [[Counter; BreakerState::TEXTS.len()]; Dependency::TEXTS.len()],
    pub breaker_refused: [Counter; Dependency::TEXTS.len()],
    pub dependency_calls: [Counter; Dependency::TEXTS.len()],
    pub dependency_retries: [Counter; Dependency::TEXTS.len()],
    pub retries_refused: [Counter; Dependency::TEXTS.len()],

    pub mq_send_batch: HistogramOfSizes,
    pub mq_send_duration: Histogram,
    pub mq_sent: Counter,
    pub mq_send_failures: Counter,
    pub mq_receive_batch: HistogramOfSizes,
    pub mq_receive_failures: Counter,
    pub mq_receive_overrun: Counter,
    pub mq_inflight: Gauge,
    pub mq_inflight_peak: Gauge,
    pub mq_jobs_queue: Gauge,
    pub mq_jobs_capacity: Gauge,
    pub mq_process_duration: [Histogram; Processed::TEXTS.len()],
    pub mq_ack_failures: Counter,
    pub mq_acks: Counter,
    pub mq_delivery_attempt: [Counter; Attempt::TEXTS.len()],
    pub mq_dlq: Counter,
    pub mq_quarantined: Counter,
    pub mq_consumer_lag: Gauge,
    pub mq_extended: Counter,

    pub pg_tx_duration: [Histogram; Processed::TEXTS.len()],
    pub pg_tx_batch: HistogramOfSizes,
    pub pg_tx_step: [Histogram; TxStep::TEXTS.len()],
    pub pg_tx_fallback: Counter,
    pub pg_tx_retries: [Counter; TxRetry::TEXTS.len()],
    pub pg_acquired: Gauge,
    pub pg_idle: Gauge,
    pub pg_connections_max: Gauge,
    pub pg_empty_acquire: Counter,
    pub pg_acquire_wait: Histogram,
    pub pg_commit_unknown: Counter,
    pub pg_rows_anomaly: [Counter; Anomaly::TEXTS.len()],

    pub reservation_created: Counter,
    pub duplicate_request: Counter,
    pub duplicate_user: Counter,
    pub sold_out: Counter,
    pub order_created: Counter,
    pub order_rejected: [Counter; RejectReason::ALL.len()],
    pub order_creation_delay: Histogram,
    pub inventory_discrepancy: Gauge,
    pub inbox_stuck: Gauge,
    pub result_projected: Counter,
    pub result_reprojected: Counter,
    pub result_projection_failures: Counter,
    pub attempt_log_dropped: Counter,
    pub query_fallback: Counter,
    pub query_fallback_refused: Counter,
    pub task_panics: Counter,
    pub trace_spans: Counter,
    pub trace_spans_dropped: Counter,
}

impl Metrics {
    /// The metrics of shard `index`, nothing counted yet.
    pub fn of_shard(index: usize) -> Self {
        let metrics = Self::default();
        metrics.shard.set(i64::try_from(index).unwrap_or(i64::MAX));
        metrics
    }

    /// Counts one answered request.
    pub fn http(&self, route: Route, status: u16, duration: Duration) {
        let index = STATUSES.iter().position(|&known| known == status).unwrap_or(STATUSES.len());
        self.http_requests[route as usize][index].inc();
        self.http_request_duration[route as usize].observe_duration(duration);
    }

    /// Notes one Redis operation.
    pub fn redis(&self, operation: RedisOperation, result: CallResult, duration: Duration) {
        self.redis_operation[operation as usize][result as usize].observe_duration(duration);
    }

    /// Notes one finished message.
    pub fn processed(&self, outcome: Processed, duration: Duration) {
        self.mq_process_duration[outcome as usize].observe_duration(duration);
    }
}

/// One sample of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    /// Only rises.
    Counter(f64),
    /// Goes up and down.
    Gauge(f64),
    /// Sum, count, and (upper bound, count in this bucket alone); the last bound is infinite.
    Histogram {
        /// Sum of all values.
        sum: f64,
        /// Number of values.
        count: u64,
        /// Buckets, not cumulated.
        buckets: Vec<(f64, u64)>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let sizes = Histogram::sizes();
        for value in [0.0, 1.0, 33.0, 1e9] {
            sizes.observe(value);
        }
        let Sample::Histogram { sum, count, buckets } = visit::histogram(&sizes) else { panic!("not a histogram") };
        assert_eq!((sum, count), (1e9 + 34.0, 4));
        let filled: Vec<f64> = buckets.iter().filter(|(_, count)| *count > 0).map(|(bound, _)| *bound).collect();
        assert_eq!(filled, [0.0, 1.0, 48.0, f64::INFINITY]);
    }

    #[test]
    fn a_status_that_is_not_in_the_table_is_still_counted() {
        let metrics = Metrics::default();
        metrics.http(Route::Submit, 418, Duration::ZERO);
        assert_eq!(metrics.http_requests[Route::Submit as usize][STATUSES.len()].get(), 1);
    }

    #[test]
    fn a_copy_can_leave_the_shard() {
        fn sendable<T: Send + Clone>() {}
        sendable::<Metrics>();
    }
}

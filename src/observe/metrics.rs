//! The metrics of one shard: plain cells, no atomics, no locks (spec section 9, reference [12.2]).
//!
//! A scrape asks every shard for a copy ([`Metrics`] is `Clone + Send`) and adds the copies up, so the hot path pays
//! one unshared increment and nothing while nobody looks. Labels are closed sets: no id ever becomes one.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::Duration;

use crate::domain::RejectReason;

/// Shards that have a label of their own (`shards.count`).
const SHARDS_MAX: usize = 256;

/// A number that only rises.
#[derive(Debug, Clone, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A number that goes up and down.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Cell<i64>);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: i64) {
        self.0.set(value);
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        self.0.set(self.0.get() + n);
    }

    /// The value now.
    pub fn get(&self) -> i64 {
        self.0.get()
    }
}

/// Upper bounds of latency buckets, in seconds; one more bucket takes the rest.
pub const LATENCY_BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 30.0];
/// Upper bounds of batch-size buckets.
pub const SIZE_BOUNDS: [f64; 14] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0];

/// A histogram with fixed buckets.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: &'static [f64; 14],
    counts: [Cell<u64>; 15],
    sum: Cell<f64>,
}

impl Histogram {
    /// Buckets for durations, observed in seconds.
    pub fn latency() -> Self {
        Self { bounds: &LATENCY_BOUNDS, counts: Default::default(), sum: Cell::new(0.0) }
    }

    /// Buckets for sizes of batches.
    pub fn sizes() -> Self {
        Self { bounds: &SIZE_BOUNDS, counts: Default::default(), sum: Cell::new(0.0) }
    }

    /// Takes one value in.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|&bound| value <= bound).unwrap_or(self.bounds.len());
        self.counts[bucket].set(self.counts[bucket].get() + 1);
        self.sum.set(self.sum.get() + value);
    }

    /// Takes one duration in, as seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::latency()
    }
}

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
    pub redis_pool_waits: Counter,
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
    pub mq_send_failures: Counter,
    pub mq_receive_batch: HistogramOfSizes,
    pub mq_receive_failures: Counter,
    pub mq_receive_overrun: Counter,
    pub mq_inflight: Gauge,
    pub mq_inflight_peak: Gauge,
    pub mq_jobs_queue: Gauge,
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
    pub pg_tx_fallback: Counter,
    pub pg_tx_retries: [Counter; TxRetry::TEXTS.len()],
    pub pg_acquired: Gauge,
    pub pg_idle: Gauge,
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
    pub result_projected: Counter,
    pub result_reprojected: Counter,
    pub result_projection_failures: Counter,
    pub attempt_log_dropped: Counter,
    pub query_fallback: Counter,
    pub query_fallback_refused: Counter,
    pub task_panics: Counter,
}

/// A [`Histogram`] whose default has size buckets.
#[derive(Debug, Clone)]
pub struct HistogramOfSizes(Histogram);

impl Default for HistogramOfSizes {
    fn default() -> Self {
        Self(Histogram::sizes())
    }
}

impl std::ops::Deref for HistogramOfSizes {
    type Target = Histogram;

    fn deref(&self) -> &Histogram {
        &self.0
    }
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

/// A metric's name without the unit's `_total`, its help, its labels and its value.
pub type Visitor<'a> = dyn FnMut(&'static str, &'static str, &[(&'static str, &'static str)], Sample) + 'a;

fn histogram(histogram: &Histogram) -> Sample {
    let counts: Vec<u64> = histogram.counts.iter().map(Cell::get).collect();
    let bounds = histogram.bounds.iter().copied().chain([f64::INFINITY]);
    Sample::Histogram {
        sum: histogram.sum.get(),
        count: counts.iter().sum(),
        buckets: bounds.zip(counts.iter().copied()).collect(),
    }
}

fn count(counter: &Counter) -> Sample {
    Sample::Counter(counter.get() as f64)
}

fn level(gauge: &Gauge) -> Sample {
    Sample::Gauge(gauge.get() as f64)
}

impl Metrics {
    /// Hands every metric to `visit`, always in the same order.
    pub fn visit(&self, visit: &mut Visitor<'_>) {
        self.visit_http(visit);
        self.visit_redis(visit);
        self.visit_resilience(visit);
        self.visit_mq(visit);
        self.visit_pg(visit);
        self.visit_business(visit);
        self.visit_shard(visit);
    }

    /// What is asked shard by shard: one that is busier than the others does not show in a sum.
    fn visit_shard(&self, visit: &mut Visitor<'_>) {
        let help = "How much later than asked for a timer of the shard fired";
        visit("seckill_shard_loop_lag_seconds", help, &[], histogram(&self.shard_loop_lag));
        let labels = [("shard", shard_label(self.shard.get()))];
        let cpu = Sample::Counter(self.shard_cpu_micros.get() as f64 / 1e6);
        visit("seckill_shard_cpu_seconds", "CPU time of the shard's thread", &labels, cpu);
        visit("seckill_shard_http_connections", "Open client connections", &labels, level(&self.http_connections));
        visit("seckill_shard_http_inflight_requests", "Requests in hand", &labels, level(&self.http_inflight));
        visit("seckill_shard_mq_inflight_messages", "Messages in hand", &labels, level(&self.mq_inflight));
        visit("seckill_shard_jobs_queue_size", "Messages waiting for a worker", &labels, level(&self.mq_jobs_queue));
    }

    fn visit_http(&self, visit: &mut Visitor<'_>) {
        const STATUS_TEXTS: [&str; STATUSES.len() + 1] = [
            "100", "200", "202", "400", "401", "404", "405", "408", "409", "413", "414", "415", "417", "422", "429",
            "431", "500", "501", "503", "504", "505", "other",
        ];
        for (route, statuses) in Route::TEXTS.iter().zip(&self.http_requests) {
            for (status, counter) in STATUS_TEXTS.iter().zip(statuses) {
                if counter.get() > 0 {
                    let labels = [("route", *route), ("status", *status)];
                    visit("seckill_http_requests", "Answered HTTP requests", &labels, count(counter));
                }
            }
        }
        for (route, duration) in Route::TEXTS.iter().zip(&self.http_request_duration) {
            let help = "From the complete request to the written answer";
            visit("seckill_http_request_duration_seconds", help, &[("route", route)], histogram(duration));
        }
        labelled(
            visit,
            "seckill_admission_rejected",
            "Refused for want of a slot",
            "reason",
            Refusal::TEXTS,
            &self.admission_rejected,
        );
        visit("seckill_http_inflight_requests", "Requests in hand", &[], level(&self.http_inflight));
        visit("seckill_http_connections", "Open client connections", &[], level(&self.http_connections));
        let help = "Connections closed because the client was too slow";
        labelled(visit, "seckill_http_timeouts", help, "phase", TimeoutPhase::TEXTS, &self.http_timeouts);
        visit("seckill_client_canceled", "Clients that left before their answer", &[], count(&self.client_canceled));
    }

    fn visit_redis(&self, visit: &mut Visitor<'_>) {
        for (operation, results) in RedisOperation::TEXTS.iter().zip(&self.redis_operation) {
            for (result, duration) in CallResult::TEXTS.iter().zip(results) {
                let sample = histogram(duration);
                if matches!(sample, Sample::Histogram { count: 1.., .. }) {
                    let labels = [("operation", *operation), ("result", *result)];
                    visit("seckill_redis_operation_duration_seconds", "Redis calls", &labels, sample);
                }
            }
        }
        labelled(
            visit,
            "seckill_redis_lua_result",
            "Outcomes of the reserve script",
            "code",
            LuaCode::TEXTS,
            &self.redis_lua_result,
        );
        visit("seckill_redis_pool_waits", "Calls that waited for a connection", &[], count(&self.redis_pool_waits));
        visit(
            "seckill_redis_pool_timeouts",
            "Calls that got no connection in time",
            &[],
            count(&self.redis_pool_timeouts),
        );
        visit("seckill_redis_active_connections", "Open Redis connections", &[], level(&self.redis_active_connections));
        visit("seckill_redis_reconnects", "Redis connections made anew", &[], count(&self.redis_reconnects));
        visit("seckill_reserve_batch_size", "Requests in one reserve script call", &[], histogram(&self.reserve_batch));
        visit("seckill_reservation_pending", "Reservations left as MQ_PENDING", &[], count(&self.reservation_pending));
        let help = "Messages that recovery sent again";
        for (result, counter) in [("sent", &self.recovery_resent), ("failed", &self.recovery_failed)] {
            visit("seckill_recovery_resends", help, &[("result", result)], count(counter));
        }
        let help = "Units given back after their order was turned down";
        for (result, counter) in [("applied", &self.release_applied), ("refused", &self.release_refused)] {
            visit("seckill_releases", help, &[("result", result)], count(counter));
        }
        let help = "State changes that the reservation state machine refused";
        visit("seckill_reservation_illegal_transition", help, &[], count(&self.reservation_illegal_transition));
    }

    fn visit_resilience(&self, visit: &mut Visitor<'_>) {
        for (index, dependency) in Dependency::TEXTS.iter().enumerate() {
            for (state, gauge) in BreakerState::TEXTS.iter().zip(&self.breaker_state[index]) {
                let labels = [("dependency", *dependency), ("state", *state)];
                visit("seckill_breakers", "Breakers in this state, one a shard", &labels, level(gauge));
            }
        }
        for (index, dependency) in Dependency::TEXTS.iter().enumerate() {
            for (state, counter) in BreakerState::TEXTS.iter().zip(&self.breaker_transitions[index]) {
                let labels = [("dependency", *dependency), ("to", *state)];
                visit("seckill_breaker_transitions", "Changes of a breaker to this state", &labels, count(counter));
            }
        }
        for (name, help, counters) in [
            ("seckill_breaker_refused", "Calls that an open breaker refused", &self.breaker_refused),
            ("seckill_dependency_calls", "Calls made, retries included", &self.dependency_calls),
            ("seckill_dependency_retries", "Calls that repeat a failed one", &self.dependency_retries),
            ("seckill_dependency_retries_refused", "Retries that the budget refused", &self.retries_refused),
        ] {
            labelled(visit, name, help, "dependency", Dependency::TEXTS, counters);
        }
    }

    fn visit_mq(&self, visit: &mut Visitor<'_>) {
        visit("seckill_mq_send_batch_size", "Messages in one send", &[], histogram(&self.mq_send_batch));
        visit("seckill_mq_send_duration_seconds", "Sends", &[], histogram(&self.mq_send_duration));
        visit("seckill_mq_send_failures", "Messages whose send did not succeed", &[], count(&self.mq_send_failures));
        visit("seckill_mq_receive_batch_size", "Messages in one pop", &[], histogram(&self.mq_receive_batch));
        visit("seckill_mq_receive_failures", "Pops that failed", &[], count(&self.mq_receive_failures));
        visit("seckill_mq_receive_overrun", "Messages beyond what was asked for", &[], count(&self.mq_receive_overrun));
        visit("seckill_mq_inflight_messages", "Messages in hand", &[], level(&self.mq_inflight));
        visit("seckill_mq_inflight_messages_peak", "Most messages ever in hand", &[], level(&self.mq_inflight_peak));
        visit("seckill_mq_jobs_queue_size", "Messages waiting for a worker", &[], level(&self.mq_jobs_queue));
        for (outcome, duration) in Processed::TEXTS.iter().zip(&self.mq_process_duration) {
            let help = "From receipt to the end of processing";
            visit("seckill_mq_process_duration_seconds", help, &[("outcome", outcome)], histogram(duration));
        }
        visit("seckill_mq_ack_failures", "Acks given up", &[], count(&self.mq_ack_failures));
        visit("seckill_mq_acks", "Acked messages", &[], count(&self.mq_acks));
        for (bucket, counter) in Attempt::TEXTS.iter().zip(&self.mq_delivery_attempt) {
            let sample = Sample::Gauge(counter.get() as f64);
            visit("seckill_mq_delivery_attempt", "Deliveries by attempt", &[("bucket", bucket)], sample);
        }
        visit("seckill_mq_dlq_messages", "Messages moved to the dead-letter topic", &[], count(&self.mq_dlq));
        visit("seckill_mq_quarantined_messages", "Messages put into quarantine", &[], count(&self.mq_quarantined));
        visit("seckill_mq_consumer_lag", "Messages not yet popped", &[], level(&self.mq_consumer_lag));
        visit("seckill_mq_invisible_extended", "Invisible times extended", &[], count(&self.mq_extended));
    }

    fn visit_pg(&self, visit: &mut Visitor<'_>) {
        for (outcome, duration) in Processed::TEXTS.iter().zip(&self.pg_tx_duration) {
            visit("seckill_pg_tx_duration_seconds", "Order transactions", &[("outcome", outcome)], histogram(duration));
        }
        visit("seckill_pg_tx_batch_size", "Messages in one order transaction", &[], histogram(&self.pg_tx_batch));
        visit("seckill_pg_tx_fallback", "Batches redone message by message", &[], count(&self.pg_tx_fallback));
        labelled(
            visit,
            "seckill_pg_tx_retries",
            "Transactions run again",
            "sqlstate",
            TxRetry::TEXTS,
            &self.pg_tx_retries,
        );
        visit("seckill_pg_acquired_connections", "Connections in use", &[], level(&self.pg_acquired));
        visit("seckill_pg_idle_connections", "Idle connections", &[], level(&self.pg_idle));
        let empty = Sample::Gauge(self.pg_empty_acquire.get() as f64);
        visit("seckill_pg_empty_acquire_count", "Acquires that found no idle connection", &[], empty);
        visit("seckill_pg_acquire_wait_seconds", "Wait for a connection", &[], histogram(&self.pg_acquire_wait));
        visit("seckill_pg_commit_unknown", "Commits without an answer", &[], count(&self.pg_commit_unknown));
        labelled(
            visit,
            "seckill_pg_rows_affected_anomaly",
            "Unexpected affected-row counts",
            "operation",
            Anomaly::TEXTS,
            &self.pg_rows_anomaly,
        );
    }

    fn visit_business(&self, visit: &mut Visitor<'_>) {
        visit("seckill_reservation_created", "Units reserved", &[], count(&self.reservation_created));
        visit("seckill_duplicate_request", "Requests seen before", &[], count(&self.duplicate_request));
        visit("seckill_duplicate_user", "Users who hold a reservation already", &[], count(&self.duplicate_user));
        visit("seckill_sold_out", "Requests answered SOLD_OUT", &[], count(&self.sold_out));
        visit("seckill_order_created", "Orders made", &[], count(&self.order_created));
        labelled(
            visit,
            "seckill_order_rejected",
            "Orders turned down",
            "reason",
            &REJECT_REASONS,
            &self.order_rejected,
        );
        let help = "From the reservation to the committed order";
        visit("seckill_order_creation_delay_seconds", help, &[], histogram(&self.order_creation_delay));
        let help =
            "Units of live sales on which Redis and PostgreSQL do not agree; the same number in every worker process";
        visit("seckill_inventory_discrepancy", help, &[], level(&self.inventory_discrepancy));
        visit("seckill_result_projected", "Results written to Redis", &[], count(&self.result_projected));
        let help = "Results shown again by the projector that follows the inbox";
        visit("seckill_result_reprojected", help, &[], count(&self.result_reprojected));
        let help = "Results that could not be written to Redis";
        visit("seckill_result_projection_failures", help, &[], count(&self.result_projection_failures));
        visit("seckill_attempt_log_dropped", "Attempt rows given up", &[], count(&self.attempt_log_dropped));
        visit("seckill_query_fallback", "Results looked up in PostgreSQL", &[], count(&self.query_fallback));
        let help = "Lookups in PostgreSQL that the rate limit refused";
        visit("seckill_query_fallback_refused", help, &[], count(&self.query_fallback_refused));
        visit("seckill_task_panics", "Panics caught", &[], count(&self.task_panics));
    }
}

/// A shard's number as a label; `shards.count` bounds how many there are.
fn shard_label(shard: i64) -> &'static str {
    static LABELS: LazyLock<Vec<&'static str>> =
        LazyLock::new(|| (0..SHARDS_MAX).map(|shard| &*shard.to_string().leak()).collect());
    usize::try_from(shard).ok().and_then(|shard| LABELS.get(shard).copied()).unwrap_or("other")
}

fn labelled(
    visit: &mut Visitor<'_>,
    name: &'static str,
    help: &'static str,
    label: &'static str,
    texts: &'static [&'static str],
    counters: &[Counter],
) {
    for (text, counter) in texts.iter().zip(counters) {
        visit(name, help, &[(label, text)], count(counter));
    }
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
        let Sample::Histogram { sum, count, buckets } = histogram(&sizes) else { panic!("not a histogram") };
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

//! The metrics under their names: what a scrape reads.

use std::cell::Cell;
use std::sync::LazyLock;

use super::*;

/// Shards that have a label of their own (`shards.count`).
const SHARDS_MAX: usize = 256;

/// A metric's name without the unit's `_total`, its help, its labels and its value.
pub type Visitor<'a> = dyn FnMut(&'static str, &'static str, &[(&'static str, &'static str)], Sample) + 'a;

pub(super) fn histogram(histogram: &Histogram) -> Sample {
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
        let help = "Operations on sockets and files handed to the ring";
        visit("seckill_shard_ring_submissions", help, &labels, count(&self.shard_operations));
        visit("seckill_shard_tasks", "Tasks that have not ended", &labels, level(&self.shard_tasks));
        visit("seckill_shard_allocations", "Heap allocations made", &labels, count(&self.shard_allocations));
        let help = "Bytes asked of the allocator";
        visit("seckill_shard_allocated_bytes", help, &labels, count(&self.shard_allocated_bytes));
        for (route, (in_use, limit)) in
            Admitted::TEXTS.iter().zip(self.admission_in_use.iter().zip(&self.admission_limit))
        {
            let labels = [labels[0], ("route", *route)];
            visit("seckill_shard_admission_in_use", "Admitted requests in hand", &labels, level(in_use));
            visit("seckill_shard_admission_limit", "Most admitted requests at a time", &labels, level(limit));
        }
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
        let help = "How long calls waited for room on a connection, mostly not at all";
        visit("seckill_redis_pool_wait_seconds", help, &[], histogram(&self.redis_pool_wait));
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
        visit("seckill_mq_sent_messages", "Messages that the broker has stored", &[], count(&self.mq_sent));
        visit("seckill_mq_send_failures", "Messages whose send did not succeed", &[], count(&self.mq_send_failures));
        visit("seckill_mq_receive_batch_size", "Messages in one pop", &[], histogram(&self.mq_receive_batch));
        visit("seckill_mq_receive_failures", "Pops that failed", &[], count(&self.mq_receive_failures));
        visit("seckill_mq_receive_overrun", "Messages beyond what was asked for", &[], count(&self.mq_receive_overrun));
        visit("seckill_mq_inflight_messages", "Messages in hand", &[], level(&self.mq_inflight));
        visit("seckill_mq_inflight_messages_peak", "Most messages ever in hand", &[], level(&self.mq_inflight_peak));
        visit("seckill_mq_jobs_queue_size", "Messages waiting for a worker", &[], level(&self.mq_jobs_queue));
        visit("seckill_mq_jobs_queue_capacity", "Messages that may wait", &[], level(&self.mq_jobs_capacity));
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
        for (step, duration) in TxStep::TEXTS.iter().zip(&self.pg_tx_step) {
            let help = "Steps of a batch's order transaction, by the server's clock; commit is the rest, with the way there and back";
            visit("seckill_pg_tx_step_seconds", help, &[("step", step)], histogram(duration));
        }
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
        let help = "Most connections that the pool of order transactions may open";
        visit("seckill_pg_max_connections", help, &[], level(&self.pg_connections_max));
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
        let help = "Inbox rows without an outcome for a minute; the same number in every worker process";
        visit("seckill_inbox_stuck_rows", help, &[], level(&self.inbox_stuck));
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
        visit("seckill_trace_spans", "Spans recorded", &[], count(&self.trace_spans));
        let help = "Spans beyond trace.limit_per_s or beyond what may wait for the collector";
        visit("seckill_trace_spans_dropped", help, &[], count(&self.trace_spans_dropped));
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

//! A process in one JSON object: what the dashboard shows, from the same cells as the metrics.

use serde_json::{Value, json};

use super::metrics::{BreakerState, Counter, Dependency, Gauge, Histogram, Metrics, Refusal, Route, STATUSES};

/// Sums over shards, and each shard by itself.
pub fn summary(shards: &[Metrics]) -> Value {
    let sum = |of: fn(&Metrics) -> &Counter| -> u64 { shards.iter().map(|shard| of(shard).get()).sum() };
    let level = |of: fn(&Metrics) -> &Gauge| -> i64 { shards.iter().map(|shard| of(shard).get()).sum() };
    let one_of = |of: fn(&Metrics) -> &Gauge| -> i64 { shards.iter().map(|shard| of(shard).get()).max().unwrap_or(0) };
    let answers =
        |route: Route, wanted: fn(u16) -> bool| -> u64 { shards.iter().map(|s| answered(s, route, wanted)).sum() };
    let (refused, rejected) = (total(shards, |shard| &shard.admission_rejected), total(shards, |s| &s.order_rejected));
    json!({
        "counters": {
            "clicks": answers(Route::Submit, |_| true),
            "accepted": answers(Route::Submit, |status| status == 202),
            "failed": answers(Route::Submit, |status| status >= 500),
            "queries": answers(Route::Query, |_| true),
            "admission_rejected": refused,
            "connections_rejected": shards.iter().map(|s| s.admission_rejected[Refusal::Connections as usize].get()).sum::<u64>(),
            "canceled": sum(|shard| &shard.client_canceled),
            "reserved": sum(|shard| &shard.reservation_created),
            "duplicates": sum(|shard| &shard.duplicate_request) + sum(|shard| &shard.duplicate_user),
            "sold_out": sum(|shard| &shard.sold_out),
            "sent": sum(|shard| &shard.mq_sent),
            "left_pending": sum(|shard| &shard.reservation_pending),
            "created": sum(|shard| &shard.order_created),
            "rejected": rejected,
            "visible": sum(|shard| &shard.result_projected),
            "acked": sum(|shard| &shard.mq_acks),
            "ack_failures": sum(|shard| &shard.mq_ack_failures),
            "dead_letters": sum(|shard| &shard.mq_dlq),
            "quarantined": sum(|shard| &shard.mq_quarantined),
            "commit_unknown": sum(|shard| &shard.pg_commit_unknown),
            "panics": sum(|shard| &shard.task_panics),
        },
        "levels": {
            "lag": level(|shard| &shard.mq_consumer_lag),
            "discrepancy": one_of(|shard| &shard.inventory_discrepancy),
            "inbox_stuck": one_of(|shard| &shard.inbox_stuck),
            "connections": level(|shard| &shard.http_connections),
        },
        "latency": {
            "submit": histogram(shards, |shard| &shard.http_request_duration[Route::Submit as usize]),
            "query": histogram(shards, |shard| &shard.http_request_duration[Route::Query as usize]),
            "creation": histogram(shards, |shard| &shard.order_creation_delay),
        },
        "breakers": breakers(shards),
        "shards": shards.iter().map(shard).collect::<Vec<_>>(),
    })
}

fn answered(shard: &Metrics, route: Route, wanted: fn(u16) -> bool) -> u64 {
    // The last counter is of statuses that are not in the table; this server has none.
    STATUSES.iter().zip(&shard.http_requests[route as usize]).filter(|(s, _)| wanted(**s)).map(|(_, c)| c.get()).sum()
}

fn total<const N: usize>(shards: &[Metrics], of: fn(&Metrics) -> &[Counter; N]) -> u64 {
    shards.iter().flat_map(of).map(Counter::get).sum()
}

/// Upper bounds in seconds and, for each and for what is beyond the last, how many.
fn histogram(shards: &[Metrics], of: impl Fn(&Metrics) -> &Histogram) -> Value {
    let mut counts = vec![0; super::metrics::LATENCY_BOUNDS.len() + 1];
    for shard in shards {
        for (sum, count) in counts.iter_mut().zip(of(shard).counts()) {
            *sum += count;
        }
    }
    json!({ "bounds": super::metrics::LATENCY_BOUNDS, "counts": counts })
}

fn breakers(shards: &[Metrics]) -> Value {
    let states = |index: usize| {
        BreakerState::TEXTS.iter().enumerate().map(move |(state, name)| {
            let in_it: i64 = shards.iter().map(|shard| shard.breaker_state[index][state].get()).sum();
            ((*name).to_owned(), Value::from(in_it))
        })
    };
    let all = Dependency::TEXTS.iter().enumerate();
    Value::Object(all.map(|(index, name)| ((*name).to_owned(), Value::Object(states(index).collect()))).collect())
}

/// One shard at this moment.
pub fn shard(metrics: &Metrics) -> Value {
    let breaker = |dependency: Dependency| {
        let states = &metrics.breaker_state[dependency as usize];
        states.iter().position(|gauge| gauge.get() == 1).map(|at| BreakerState::TEXTS[at])
    };
    json!({
        "shard": metrics.shard.get(), "cpu_seconds": metrics.shard_cpu_micros.get() as f64 / 1e6,
        "loop_lag_max_us": metrics.shard_loop_lag_max_us.get(), "tasks": metrics.shard_tasks.get(),
        "ring_submissions": metrics.shard_operations.get(), "allocations": metrics.shard_allocations.get(),
        "connections": metrics.http_connections.get(), "requests_in_hand": metrics.http_inflight.get(),
        "submit_admitted": metrics.admission_in_use[0].get(), "submit_limit": metrics.admission_limit[0].get(),
        "query_admitted": metrics.admission_in_use[1].get(), "query_limit": metrics.admission_limit[1].get(),
        "messages_in_hand": metrics.mq_inflight.get(), "messages_waiting": metrics.mq_jobs_queue.get(),
        "messages_waiting_max": metrics.mq_jobs_capacity.get(),
        "redis_connections": metrics.redis_active_connections.get(),
        "postgres_in_use": metrics.pg_acquired.get(), "postgres_idle": metrics.pg_idle.get(),
        "postgres_max": metrics.pg_connections_max.get(),
        "breakers": {
            "redis": breaker(Dependency::Redis), "rocketmq": breaker(Dependency::RocketMq),
            "postgres": breaker(Dependency::Postgres),
        },
    })
}

/// What one shard has asked of the allocator since its start.
pub fn allocated(metrics: &Metrics) -> Value {
    json!({
        "shard": metrics.shard.get(), "allocations": metrics.shard_allocations.get(),
        "allocated_bytes": metrics.shard_allocated_bytes.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn shards_are_added_up_and_shown_one_by_one() {
        let (one, two) = (Metrics::of_shard(0), Metrics::of_shard(1));
        one.http(Route::Submit, 202, Duration::from_millis(2));
        two.http(Route::Submit, 503, Duration::from_millis(2));
        two.http(Route::Query, 200, Duration::from_millis(2));
        one.order_created.add(3);
        two.order_created.add(4);
        two.breaker_state[Dependency::Redis as usize][BreakerState::Open as usize].set(1);
        let all = summary(&[one, two]);
        let counters = &all["counters"];
        let seen = ["clicks", "accepted", "failed", "queries", "created"].map(|name| counters[name].as_u64().unwrap());
        assert_eq!(seen, [2, 1, 1, 1, 7]);
        assert_eq!(all["breakers"]["redis"]["open"], 1);
        assert_eq!(all["shards"][1]["breakers"]["redis"], "open");
        let counts = all["latency"]["submit"]["counts"].as_array().unwrap();
        assert_eq!(counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 2);
    }
}

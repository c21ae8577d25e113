//! Capacity: from what a sale asks for and what one unit of work costs to cores, shards, connections and stores. Arithmetic only.
//!
//! The costs are those of `benches/README.md`, measured on one machine; measure yours and give them.

/// What the sale asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Clicks a second at the peak.
    pub qps: f64,
    /// Units for sale, all SKUs together.
    pub stock: f64,
    /// SKUs on sale at the same time.
    pub skus: f64,
    /// Seconds in which the units are gone and every order is final.
    pub window_s: f64,
    /// Open client connections at the peak.
    pub connections: f64,
}

/// What one unit of work costs, CPU microseconds where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Costs {
    /// An api answer that sold nothing.
    pub api_sold_out_us: f64,
    /// An api answer that sold a unit.
    pub api_created_us: f64,
    /// Redis, for a click that sold nothing.
    pub redis_sold_out_us: f64,
    /// Redis, from the reservation to the shown result.
    pub redis_created_us: f64,
    /// The broker, for a message from send to ack.
    pub broker_us: f64,
    /// A worker shard, for an order.
    pub worker_us: f64,
    /// Orders a second of one hot SKU in PostgreSQL, at a commit that is durable.
    pub postgres_orders_per_s: f64,
    /// Share of a core that may be used at the peak.
    pub use_max: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            api_sold_out_us: 7.4,
            api_created_us: 30.0,
            redis_sold_out_us: 1.4,
            redis_created_us: 12.0,
            broker_us: 50.0,
            worker_us: 20.0,
            postgres_orders_per_s: 15_000.0,
            use_max: 0.6,
        }
    }
}

/// Bytes a reservation takes in Redis with its records, indexes and result.
const REDIS_BYTES: f64 = 1_400.0;
/// Bytes an order takes in PostgreSQL with inbox, attempt log and indexes.
const POSTGRES_BYTES: f64 = 900.0;
/// Bytes a message takes in the topic.
const TOPIC_BYTES: f64 = 900.0;
/// Bytes of a click and its answer on the wire.
const WIRE_BYTES: f64 = 700.0;
/// Bytes a connection takes in the api.
const CONNECTION_BYTES: f64 = 11.5 * 1024.0;

/// One line of the plan.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Line {
    /// What is sized.
    pub what: &'static str,
    /// How much of it.
    pub value: f64,
    /// In what.
    pub unit: &'static str,
    /// The arithmetic.
    pub because: String,
}

/// The plan, line by line.
pub fn plan(demand: &Demand, costs: &Costs) -> Vec<Line> {
    let Demand { qps, stock, skus, window_s, connections } = *demand;
    let created = stock / window_s;
    let refused = (qps - created).max(0.0);
    let mut lines = Vec::new();
    let mut line = |what, value: f64, unit, because: String| lines.push(Line { what, value, unit, because });
    let cores = |us_per_s: f64| (us_per_s / 1e6 / costs.use_max).ceil().max(1.0);

    let api = refused * costs.api_sold_out_us + created * costs.api_created_us;
    line(
        "api cores",
        cores(api),
        "cores, one shard each (shards.count)",
        format!(
            "({refused:.0}/s x {} us + {created:.0}/s x {} us) = {:.2} cores of work, used to {:.0} %",
            costs.api_sold_out_us,
            costs.api_created_us,
            api / 1e6,
            costs.use_max * 100.0
        ),
    );
    let per_shard = (connections / cores(api)).ceil();
    line(
        "connections a shard",
        per_shard,
        "server.connections_max, and LimitNOFILE for all of them",
        format!("{connections:.0} connections over {:.0} shards", cores(api)),
    );
    line(
        "api memory",
        (connections * CONNECTION_BYTES / 1e6).ceil() + 64.0 * cores(api),
        "MB",
        format!("{connections:.0} connections x 11.5 KiB, and 64 MB a shard for queues and buffers"),
    );
    line(
        "network",
        (qps * WIRE_BYTES * 8.0 / 1e6).ceil(),
        "Mbit/s",
        format!("{qps:.0}/s x {WIRE_BYTES:.0} bytes of click and answer"),
    );

    let redis = refused * costs.redis_sold_out_us + created * costs.redis_created_us;
    let hottest = redis / skus.max(1.0);
    line(
        "Redis primaries",
        (redis / 1e6 / costs.use_max).ceil().max(1.0).min(skus.max(1.0)),
        "single-threaded primaries, SKUs spread over them",
        format!(
            "({refused:.0}/s x {} us + {created:.0}/s x {} us) = {:.2} cores; one SKU lives on one primary: {:.2} of its core{}",
            costs.redis_sold_out_us,
            costs.redis_created_us,
            redis / 1e6,
            hottest / 1e6,
            if hottest / 1e6 > costs.use_max { ", TOO MUCH: shed load in front, or sell the SKU in parts" } else { "" }
        ),
    );
    line(
        "Redis memory",
        (stock * REDIS_BYTES / 1e6).ceil(),
        "MB beyond an empty one",
        format!("{stock:.0} reservations x {REDIS_BYTES:.0} bytes; clicks that win nothing leave nothing"),
    );
    line(
        "broker cores",
        cores(created * costs.broker_us),
        "cores",
        format!("{created:.0} messages/s x {} us from send to ack", costs.broker_us),
    );
    line(
        "topic",
        (stock * TOPIC_BYTES / 1e6).ceil(),
        "MB of commit log",
        format!("{stock:.0} messages x {TOPIC_BYTES:.0} bytes"),
    );
    line(
        "worker cores",
        cores(created * costs.worker_us),
        "cores, one shard each",
        format!("{created:.0} orders/s x {} us", costs.worker_us),
    );
    let hot = created / skus.max(1.0);
    line(
        "PostgreSQL orders",
        created.ceil(),
        "orders/s to commit",
        format!(
            "{stock:.0} units in {window_s} s; of one SKU {hot:.0}/s, where {:.0}/s were measured{}",
            costs.postgres_orders_per_s,
            if hot > costs.postgres_orders_per_s {
                format!(": final after {:.1} s, not {window_s}", stock / skus.max(1.0) / costs.postgres_orders_per_s)
            } else {
                String::new()
            }
        ),
    );
    let workers = cores(created * costs.worker_us);
    line(
        "PostgreSQL connections",
        workers * 5.0 + 2.0 + cores(api),
        "max_connections at least, and a few for people",
        format!("{workers:.0} worker shards x (4 for orders + 1 aside), 2 for recovery, 1 a query shard"),
    );
    line(
        "PostgreSQL disk",
        (stock * POSTGRES_BYTES / 1e6).ceil(),
        "MB",
        format!("{stock:.0} orders x {POSTGRES_BYTES:.0} bytes with inbox, log and indexes; WAL is about twice that"),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALE: Demand = Demand { qps: 300_000.0, stock: 10_000.0, skus: 1.0, window_s: 3.0, connections: 100_000.0 };

    fn value(lines: &[Line], what: &str) -> f64 {
        lines.iter().find(|line| line.what == what).unwrap().value
    }

    #[test]
    fn the_reference_sale_by_hand() {
        let lines = plan(&SALE, &Costs::default());
        // 296,667 x 7.4 + 3,333 x 30 = 2.295 s of CPU a second; at 60 % four cores.
        assert_eq!(value(&lines, "api cores"), 4.0);
        assert_eq!(value(&lines, "connections a shard"), 25_000.0);
        // 296,667 x 1.4 + 3,333 x 12 = 0.455 cores.
        assert_eq!(value(&lines, "Redis primaries"), 1.0);
        assert_eq!(value(&lines, "Redis memory"), 14.0);
        assert_eq!(value(&lines, "PostgreSQL orders"), 3_334.0);
        assert!(lines.iter().all(|line| line.value.is_finite() && line.value > 0.0 && !line.because.is_empty()));
    }

    #[test]
    fn one_sku_never_gets_a_second_primary_and_is_told_so() {
        let lines = plan(&Demand { qps: 3_000_000.0, ..SALE }, &Costs::default());
        assert_eq!(value(&lines, "Redis primaries"), 1.0);
        assert!(lines.iter().any(|line| line.because.contains("TOO MUCH")));
        let lines = plan(&Demand { qps: 3_000_000.0, skus: 100.0, ..SALE }, &Costs::default());
        assert_eq!(value(&lines, "Redis primaries"), 8.0);
        assert!(!lines.iter().any(|line| line.because.contains("TOO MUCH")));
    }

    #[test]
    fn what_postgresql_cannot_commit_in_time_is_said() {
        let lines = plan(&Demand { stock: 100_000.0, ..SALE }, &Costs::default());
        assert!(lines.iter().any(|line| line.because.contains("final after 6.7 s, not 3")));
    }
}

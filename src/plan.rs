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
    let created = demand.stock / demand.window_s;
    let load = Load { demand, costs, created, refused: (demand.qps - created).max(0.0) };
    [load.api(), load.redis(), load.broker(), load.orders()].concat()
}

fn line(what: &'static str, value: f64, unit: &'static str, because: String) -> Line {
    Line { what, value, unit, because }
}

/// The demand by second.
struct Load<'a> {
    demand: &'a Demand,
    costs: &'a Costs,
    /// Clicks a second that sell a unit.
    created: f64,
    /// Clicks a second that sell nothing.
    refused: f64,
}

impl Load<'_> {
    /// Cores for so many microseconds of work a second.
    fn cores(&self, us_per_s: f64) -> f64 {
        (us_per_s / 1e6 / self.costs.use_max).ceil().max(1.0)
    }

    /// CPU microseconds a second for every click, at the cost of one that sells nothing and one that sells a unit; and how that comes.
    fn clicks(&self, refused_us: f64, created_us: f64) -> (f64, String) {
        let Self { refused, created, .. } = *self;
        let work = refused * refused_us + created * created_us;
        (
            work,
            format!("({refused:.0}/s x {refused_us} us + {created:.0}/s x {created_us} us) = {:.2} cores", work / 1e6),
        )
    }

    fn api_cores(&self) -> f64 {
        self.cores(self.clicks(self.costs.api_sold_out_us, self.costs.api_created_us).0)
    }

    fn worker_cores(&self) -> f64 {
        self.cores(self.created * self.costs.worker_us)
    }

    fn api(&self) -> Vec<Line> {
        let Demand { qps, connections, .. } = *self.demand;
        let (_, because) = self.clicks(self.costs.api_sold_out_us, self.costs.api_created_us);
        let shards = self.api_cores();
        let use_max = self.costs.use_max * 100.0;
        vec![
            line(
                "api cores",
                shards,
                "cores, one shard each (shards.count)",
                format!("{because} of work, used to {use_max:.0} %"),
            ),
            line(
                "connections a shard",
                (connections / shards).ceil(),
                "server.connections_max, and LimitNOFILE for all of them",
                format!("{connections:.0} connections over {shards:.0} shards"),
            ),
            line(
                "api memory",
                (connections * CONNECTION_BYTES / 1e6).ceil() + 64.0 * shards,
                "MB",
                format!("{connections:.0} connections x 11.5 KiB, and 64 MB a shard for queues and buffers"),
            ),
            line(
                "network",
                (qps * WIRE_BYTES * 8.0 / 1e6).ceil(),
                "Mbit/s",
                format!("{qps:.0}/s x {WIRE_BYTES:.0} bytes of click and answer"),
            ),
        ]
    }

    fn redis(&self) -> Vec<Line> {
        let (stock, skus) = (self.demand.stock, self.demand.skus.max(1.0));
        let (work, because) = self.clicks(self.costs.redis_sold_out_us, self.costs.redis_created_us);
        let hottest = work / skus / 1e6;
        let alarm =
            if hottest > self.costs.use_max { ", TOO MUCH: shed load in front, or sell the SKU in parts" } else { "" };
        vec![
            line(
                "Redis primaries",
                self.cores(work).min(skus),
                "single-threaded primaries, SKUs spread over them",
                format!("{because}; one SKU lives on one primary: {hottest:.2} of its core{alarm}"),
            ),
            line(
                "Redis memory",
                (stock * REDIS_BYTES / 1e6).ceil(),
                "MB beyond an empty one",
                format!("{stock:.0} reservations x {REDIS_BYTES:.0} bytes; clicks that win nothing leave nothing"),
            ),
        ]
    }

    fn broker(&self) -> Vec<Line> {
        let (created, stock, us) = (self.created, self.demand.stock, self.costs.broker_us);
        vec![
            line(
                "broker cores",
                self.cores(created * us),
                "cores",
                format!("{created:.0} messages/s x {us} us from send to ack"),
            ),
            line(
                "topic",
                (stock * TOPIC_BYTES / 1e6).ceil(),
                "MB of commit log",
                format!("{stock:.0} messages x {TOPIC_BYTES:.0} bytes"),
            ),
        ]
    }

    fn orders(&self) -> Vec<Line> {
        let Demand { stock, window_s, .. } = *self.demand;
        let (created, skus, measured) = (self.created, self.demand.skus.max(1.0), self.costs.postgres_orders_per_s);
        let (hot, workers) = (created / skus, self.worker_cores());
        let late = match hot > measured {
            true => format!(": final after {:.1} s, not {window_s}", stock / skus / measured),
            false => String::new(),
        };
        vec![
            line(
                "worker cores",
                workers,
                "cores, one shard each",
                format!("{created:.0} orders/s x {} us", self.costs.worker_us),
            ),
            line(
                "PostgreSQL orders",
                created.ceil(),
                "orders/s to commit",
                format!(
                    "{stock:.0} units in {window_s} s; of one SKU {hot:.0}/s, where {measured:.0}/s were measured{late}"
                ),
            ),
            line(
                "PostgreSQL connections",
                workers * 5.0 + 2.0 + self.api_cores(),
                "max_connections at least, and a few for people",
                format!("{workers:.0} worker shards x (4 for orders + 1 aside), 2 for recovery, 1 a query shard"),
            ),
            line(
                "PostgreSQL disk",
                (stock * POSTGRES_BYTES / 1e6).ceil(),
                "MB",
                format!(
                    "{stock:.0} orders x {POSTGRES_BYTES:.0} bytes with inbox, log and indexes; WAL is about twice that"
                ),
            ),
        ]
    }
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

//! What a measurement says.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A new histogram of microseconds, up to ten minutes, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).unwrap_or_else(|_| unreachable!("the bounds are sound"))
}

/// Notes a duration; what is longer than the histogram counts as its longest.
pub(super) fn note(histogram: &mut Histogram<u64>, duration: Duration) {
    histogram.saturating_record(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1));
}

/// A distribution of durations, in milliseconds.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "each field is the quantile of that name")]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Quantiles {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            count: histogram.len(),
            mean: histogram.mean() / 1000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1000.0,
        }
    }
}

impl std::fmt::Display for Quantiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, mean, p50, p90, p99, p999, max } = self;
        write!(
            f,
            "{count} in ms: mean {mean:.2}, p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, p99.9 {p999:.2}, max {max:.2}"
        )
    }
}

/// Result of `bench submit`.
#[derive(Debug, Clone, Serialize)]
pub struct SubmitReport {
    /// Requests answered.
    pub answered: u64,
    /// Requests without an answer: connections that failed or broke.
    pub broken: u64,
    /// Clicks repeated with the same key because an answer asked for it.
    pub repeated: u64,
    /// Answers by status and code, the last one of each click.
    pub answers: BTreeMap<String, u64>,
    /// From first request due to last answer, in seconds.
    pub elapsed_s: f64,
    /// Answers a second.
    pub rate: f64,
    /// From due to answered.
    pub latency_ms: Quantiles,
    /// CPU time of the watched processes per answer, in microseconds.
    pub cpu_us_per_answer: Option<f64>,
}

fn table(answers: &BTreeMap<String, u64>) -> String {
    let rows: Vec<String> = answers.iter().map(|(answer, count)| format!("  {answer:34} {count}")).collect();
    rows.join("\n")
}

impl std::fmt::Display for SubmitReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} answers in {:.2} s, {:.0}/s, {} broken",
            self.answered, self.elapsed_s, self.rate, self.broken
        )?;
        writeln!(f, "{}", table(&self.answers))?;
        write!(f, "latency {}", self.latency_ms)?;
        if let Some(cpu) = self.cpu_us_per_answer {
            write!(f, "\ncpu {cpu:.2} us an answer")?;
        }
        Ok(())
    }
}

/// Result of `bench e2e`.
#[derive(Debug, Clone, Serialize)]
pub struct E2eReport {
    /// The clicks.
    pub submit: SubmitReport,
    /// Final states of the accepted ones.
    pub finals: BTreeMap<String, u64>,
    /// Accepted, but without a final state in time.
    pub unfinished: u64,
    /// From the click being due to its final state being seen through the query API.
    pub visible_ms: Quantiles,
    /// Share of the accepted that was visible within a second.
    pub within_1s: f64,
    /// Share of the accepted that was visible within three seconds.
    pub within_3s: f64,
}

impl std::fmt::Display for E2eReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.submit)?;
        writeln!(f, "final states\n{}", table(&self.finals))?;
        writeln!(f, "visible {}", self.visible_ms)?;
        write!(
            f,
            "{:.3} % within 1 s, {:.3} % within 3 s, {} unfinished",
            self.within_1s * 100.0,
            self.within_3s * 100.0,
            self.unfinished
        )
    }
}

/// Result of `bench drain`.
#[derive(Debug, Clone, Serialize)]
pub struct DrainReport {
    /// Messages put into the topic.
    pub messages: u64,
    /// Time to put them there, in seconds.
    pub fill_s: f64,
    /// Orders they became.
    pub orders: u64,
    /// From the first order to the last, by PostgreSQL's clock, in seconds.
    pub drain_s: f64,
    /// Orders a second.
    pub orders_per_s: f64,
    /// CPU time of the workers per order, in microseconds.
    pub worker_cpu_us_per_order: f64,
}

impl std::fmt::Display for DrainReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} messages filled in {:.2} s; {} orders in {:.2} s: {:.0} orders/s, worker cpu {:.1} us an order",
            self.messages, self.fill_s, self.orders, self.drain_s, self.orders_per_s, self.worker_cpu_us_per_order
        )
    }
}

//! Adds the shards' metrics up and writes them in the OpenMetrics text format.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::metrics::{Metrics, Sample};
use super::{allocator, log, trace};

type Labels = Vec<(&'static str, &'static str)>;

/// The sum of all shards, by metric and labels.
#[derive(Debug, Default)]
struct Sum(BTreeMap<&'static str, (&'static str, BTreeMap<Labels, Sample>)>);

impl Sum {
    fn add(&mut self, name: &'static str, help: &'static str, labels: &[(&'static str, &'static str)], sample: Sample) {
        let (_, family) = self.0.entry(name).or_insert_with(|| (help, BTreeMap::new()));
        match family.get_mut(labels) {
            Some(sum) => merge(sum, sample),
            None => {
                family.insert(labels.to_vec(), sample);
            }
        }
    }
}

fn merge(sum: &mut Sample, sample: Sample) {
    match (sum, sample) {
        (Sample::Counter(sum), Sample::Counter(value)) | (Sample::Gauge(sum), Sample::Gauge(value)) => *sum += value,
        (
            Sample::Histogram { sum, count, buckets },
            Sample::Histogram { sum: more, count: more_count, buckets: more_buckets },
        ) => {
            *sum += more;
            *count += more_count;
            for (bucket, (_, more)) in buckets.iter_mut().zip(more_buckets) {
                bucket.1 += more;
            }
        }
        // One name has one type: `Metrics::visit` is the only source.
        _ => debug_assert!(false, "a metric changed its type between shards"),
    }
}

impl Collector for Sum {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, (help, family)) in &self.0 {
            let kind = match family.values().next() {
                Some(Sample::Counter(_)) => MetricType::Counter,
                Some(Sample::Gauge(_)) => MetricType::Gauge,
                Some(Sample::Histogram { .. }) => MetricType::Histogram,
                None => continue,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sample) in family {
                sample.encode(metric.encode_family(&labels.as_slice())?)?;
            }
        }
        Ok(())
    }
}

impl EncodeMetric for Sample {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            // Counts are whole numbers and read better without a fraction; CPU seconds are not.
            Self::Counter(value) if value.fract() == 0.0 => {
                encoder.encode_counter::<NoLabelSet, _, u64>(&(*value as u64), None)
            }
            Self::Counter(value) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram { sum, count, buckets } => {
                encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
        }
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }
}

/// The metrics of all shards and of the process as OpenMetrics text, for `GET /metrics`.
pub fn openmetrics(shards: &[Metrics], process: &[Row]) -> String {
    let mut sum = Sum::default();
    for metrics in shards {
        metrics.visit(&mut |name, help, labels, sample| sum.add(name, help, labels, sample));
    }
    for (name, help, sample) in process {
        sum.add(name, help, &[], sample.clone());
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(sum));
    let mut text = String::new();
    // Writing to a String cannot fail; an encoder error would leave a text without its `# EOF`, which scrapers refuse.
    let _ = encode(&mut text, &registry);
    text
}

/// A row without labels: name, help, value.
pub type Row = (&'static str, &'static str, Sample);

/// Process rows: CPU time, memory, threads, file descriptors and start, from the kernel, and what the allocator has.
pub fn process_rows() -> Vec<Row> {
    let mut rows = kernel_rows();
    let heap = allocator::heap();
    let bytes = |value: usize| Sample::Gauge(value as f64);
    rows.push((
        "seckill_allocator_committed_bytes",
        "Memory that the allocator has in use",
        bytes(heap.committed_bytes),
    ));
    let counter = |value: u64| Sample::Counter(value as f64);
    let help = "Log lines that were not written because too many waited";
    rows.push(("seckill_log_lines_dropped", help, counter(log::dropped_lines())));
    rows.push(("seckill_trace_spans_lost", "Spans that no collector took", counter(trace::export::lost())));
    rows.push(("seckill_allocator_committed_peak_bytes", "The most it ever had", bytes(heap.committed_peak_bytes)));
    rows
}

/// Ticks of the clock that /proc counts in, a second: the same on every Linux that user space sees.
const TICKS: f64 = 100.0;

fn kernel_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    // Fields by proc(5), counted from the one after the name: 11 and 12 are user and system time in ticks, 17 the threads, 19 the
    // start in ticks after the boot, 21 the resident pages.
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat")
        && let Some((_, fields)) = stat.rsplit_once(')')
    {
        let fields: Vec<f64> = fields.split_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        if let Some(&[user, system, .., threads, _, start, _, resident]) = fields.get(11..22) {
            let page = rustix::param::page_size() as f64;
            rows.push(("process_cpu_seconds", "CPU time used", Sample::Counter((user + system) / TICKS)));
            rows.push(("process_resident_memory_bytes", "Resident memory", Sample::Gauge(resident * page)));
            rows.push(("process_threads", "Threads", Sample::Gauge(threads)));
            if let Some(boot) = boot_time() {
                let help = "When the process began, Unix seconds";
                rows.push(("process_start_time_seconds", help, Sample::Gauge(boot + start / TICKS)));
            }
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One of them is that of the reading itself.
        let open = open.count().saturating_sub(1);
        rows.push(("process_open_fds", "Open file descriptors", Sample::Gauge(open as f64)));
    }
    rows
}

/// Unix seconds of the boot.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{LuaCode, Route};
    use super::*;
    use std::time::Duration;

    #[test]
    fn shards_are_added_up() {
        let (one, two) = (Metrics::default(), Metrics::default());
        one.sold_out.add(3);
        two.sold_out.add(4);
        two.redis_lua_result[LuaCode::SoldOut as usize].add(4);
        one.http(Route::Submit, 409, Duration::from_millis(2));
        two.http(Route::Submit, 409, Duration::from_millis(40));
        let text = openmetrics(&[one, two], &process_rows());
        for line in [
            "seckill_sold_out_total 7",
            "seckill_redis_lua_result_total{code=\"3\"} 4",
            "seckill_http_requests_total{route=\"submit\",status=\"409\"} 2",
            "seckill_http_request_duration_seconds_count{route=\"submit\"} 2",
            "seckill_http_request_duration_seconds_bucket{le=\"0.0025\",route=\"submit\"} 1",
            "seckill_http_request_duration_seconds_bucket{le=\"+Inf\",route=\"submit\"} 2",
            "# TYPE process_resident_memory_bytes gauge",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in:\n{text}");
        }
    }
}

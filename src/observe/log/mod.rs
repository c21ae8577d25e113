//! JSON logs on standard error: one line an event, written by a thread of their own so that a slow reader never holds
//! up a shard. When that thread's bounded buffer is full, lines are dropped rather than waited for, and counted.
//!
//! Every line has `timestamp`, `level`, `service`, `instance`, `message` and `target`; ids have the names of the reference [12.1]
//! (`request_id`, `reservation_id`, `message_id`, `order_id`, `trace_id`, ..). Bodies, tokens and passwords are in none.

mod anomalies;
mod line;

use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

pub use anomalies::{Anomaly, recent};
use line::JsonLine;

/// Lines that may wait to be written.
const LINES_MAX: usize = 16_384;

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Starts logging at `level` (error | warn | info | debug | trace). Keep the guard: dropping it writes out what waits. `instance`
/// tells this process from others of the service.
///
/// A second call in one process changes nothing, so tests may all call it.
pub fn start(level: &str, instance: &str) -> WorkerGuard {
    let (writer, guard): (NonBlocking, WorkerGuard) =
        NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true).finish(std::io::stderr());
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    let dropped = writer.error_counter();
    let lines = tracing_subscriber::fmt::layer()
        .event_format(JsonLine::new("seckill", instance))
        .with_writer(writer)
        .with_filter(level);
    let subscriber = tracing_subscriber::registry().with(lines).with(anomalies::Watch.with_filter(LevelFilter::WARN));
    // Err means that a subscriber is set already, which is what a second call wants.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = DROPPED.set(dropped);
    }
    guard
}

/// Lines that were not written because too many waited.
pub fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |counter| counter.dropped_lines() as u64)
}

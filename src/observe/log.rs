//! JSON logs on standard error: one line an event, written by a thread of their own so that a slow reader never holds
//! up a shard. When that thread's bounded buffer is full, lines are dropped rather than waited for.

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;

/// Lines that may wait to be written.
const LINES_MAX: usize = 16_384;

/// Starts logging at `level` (error | warn | info | debug | trace). Keep the guard: dropping it writes out what waits.
///
/// A second call in one process changes nothing, so tests may all call it.
pub fn start(level: &str) -> WorkerGuard {
    let (writer, guard): (NonBlocking, WorkerGuard) =
        NonBlockingBuilder::default().buffered_lines_limit(LINES_MAX).lossy(true).finish(std::io::stderr());
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(level)
        .with_writer(writer)
        .finish();
    // Err means that a subscriber is set already, which is what a second call wants.
    let _ = tracing::subscriber::set_global_default(subscriber);
    guard
}

//! `seckill` whose order worker panics now and then: before every third order transaction and after every fourth, a dozen times in all.
//!
//! Built with the feature `faults`, which the shipped binary does not have (tests/it_9_faults.py).

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A message that meets more than eight of them would be a dead letter, which is another test.
const PANICS_MAX: u32 = 12;

fn panic_now_and_then(point: &'static str) {
    static BEFORE: AtomicU32 = AtomicU32::new(0);
    static AFTER: AtomicU32 = AtomicU32::new(0);
    static PANICS: AtomicU32 = AtomicU32::new(0);
    let (calls, every) = match point {
        "order transaction" => (&BEFORE, 3),
        "order transaction done" => (&AFTER, 4),
        _ => return,
    };
    if calls.fetch_add(1, Relaxed) % every == 1 && PANICS.fetch_add(1, Relaxed) < PANICS_MAX {
        panic!("injected at {point:?}");
    }
}

fn main() -> ExitCode {
    shards::faults::at_points(panic_now_and_then);
    seckill::cli::main()
}

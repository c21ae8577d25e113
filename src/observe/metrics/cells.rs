//! What a metric is made of: plain cells of one shard.

use std::cell::Cell;
use std::time::Duration;

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

    /// Takes over a count that is kept elsewhere; never falls.
    pub fn raise_to(&self, total: u64) {
        self.0.set(self.0.get().max(total));
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
    pub(super) bounds: &'static [f64; 14],
    pub(super) counts: [Cell<u64>; 15],
    pub(super) sum: Cell<f64>,
}

impl Histogram {
    /// How many fell into each bucket, the one beyond the last bound included.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(Cell::get)
    }

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

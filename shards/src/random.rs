//! Pseudo-random numbers, one stream a shard. Good for jitter and ids; not for secrets.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The next number of this shard's stream (SplitMix64, period 2^64). Seeded from the operating system unless
/// [`crate::ShardConfig::seed`] fixed it.
pub fn random_u64() -> u64 {
    STATE.with(|cell| {
        let state = cell.get().unwrap_or_else(os_seed).wrapping_add(GOLDEN_GAMMA);
        cell.set(Some(state));
        mix(state)
    })
}

/// Starts this thread's stream for one shard: the same seed and index always give the same numbers.
pub(crate) fn seed(seed: Option<u64>, shard_index: usize) {
    let start = match seed {
        Some(seed) => mix(seed ^ mix(shard_index as u64)),
        None => os_seed(),
    };
    STATE.with(|cell| cell.set(Some(start)));
}

/// Odd, and close to 2^64 divided by the golden ratio: the SplitMix64 increment (Steele, Lea and Flood, 2014).
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn os_seed() -> u64 {
    // Without an entropy source (a sandbox that refuses getrandom) the clock still separates processes.
    getrandom::u64().unwrap_or_else(|_| mix(crate::time::unix_micros()))
}

//! Which core a shard runs on.

/// How shards are bound to cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pinning {
    /// Shard `i` to the `i`-th core this process may use; unpinned when there are fewer cores than shards.
    #[default]
    Cores,
    /// Leave it to the scheduler.
    None,
}

/// The core for each of `count` shards, all `None` when they are not to be pinned.
pub(crate) fn plan(pinning: Pinning, count: usize) -> Vec<Option<core_affinity::CoreId>> {
    if pinning == Pinning::Cores
        && let Some(cores) = core_affinity::get_core_ids()
        && cores.len() >= count
    {
        return cores.into_iter().take(count).map(Some).collect();
    }
    vec![None; count]
}

//! CPU time of other processes, from the kernel.

use std::time::Duration;

/// Ticks a second of `/proc/*/stat` (USER_HZ is 100 on every Linux).
const TICKS: u64 = 100;

/// User and system time that a process has used, its ended threads included; `None` when there is no such process.
pub(super) fn used(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so count from behind it: fields 14 and 15 of the line are 12 and 13 from there.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// The same for several processes together.
pub(super) fn used_by_all(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| used(*pid)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_this_process_rises_and_a_missing_one_has_none() {
        let pid = std::process::id();
        let before = used(pid).unwrap();
        let mut work = 1u64;
        while used(pid).unwrap() == before {
            work = std::hint::black_box(work.wrapping_mul(31));
        }
        assert_eq!(used(u32::MAX), None);
    }
}

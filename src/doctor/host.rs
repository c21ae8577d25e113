//! The host, as the kernel's files tell it.

use std::path::{Path, PathBuf};

use super::{Check, Grade};
use crate::config::Config;

/// A host below a root: `/`, or a folder of a test.
pub struct Host {
    root: PathBuf,
    cores: usize,
    files_max: Option<u64>,
}

impl Host {
    /// This one.
    pub fn here() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            root: PathBuf::from("/"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            // No limit at all is as good as a large one.
            files_max: Some(limit.current.unwrap_or(u64::MAX)),
        }
    }

    /// One whose files lie below `root`.
    pub fn below(root: &Path, cores: usize, files_max: Option<u64>) -> Self {
        Self { root: root.to_owned(), cores, files_max }
    }

    /// Shards that a process would run here.
    pub fn shards(&self, config: &Config) -> usize {
        config.shards.on(self.cores)
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.split_whitespace().next()?.parse().ok()
    }

    /// Everything that is looked at, in the order in which it is worth reading.
    pub fn checks(&self, config: &Config) -> Vec<Check> {
        let shards = self.shards(config);
        let mut checks = vec![
            self.ring(),
            self.kernel(),
            self.files(config, shards),
            self.cores_for(config, shards),
            self.quota(shards),
        ];
        for sysctl in SYSCTLS {
            checks.push(self.sysctl(sysctl));
        }
        checks.extend([self.governor(), self.clock(), self.huge_pages(), self.irq_balance(), self.perf()]);
        checks.extend(self.queues(shards));
        checks
    }

    fn ring(&self) -> Check {
        let what = "io_uring (kernel.io_uring_disabled)";
        match self.number("proc/sys/kernel/io_uring_disabled") {
            Some(0) => Check::good(what, "allowed"),
            Some(level) => Check::off(
                if level == 1 { Grade::Advice } else { Grade::Wrong },
                what,
                if level == 1 { "only for a group" } else { "forbidden" },
                "without it the shards run on epoll: about a fifth more CPU a request",
                "sysctl -w kernel.io_uring_disabled=0   # and in /etc/sysctl.d",
            ),
            // The switch came with Linux 6.6; before it there was none to forbid it.
            None => Check::good(what, "no switch in this kernel"),
        }
    }

    fn kernel(&self) -> Check {
        let Some(release) = self.read("proc/sys/kernel/osrelease") else {
            return Check::unknown("kernel", "proc/sys/kernel/osrelease cannot be read");
        };
        let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        match (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) {
            version if version >= (6, 1) => Check::good("kernel", release),
            _ => Check::off(
                Grade::Advice,
                "kernel",
                release,
                "ring flags single_issuer and defer_taskrun need Linux 6.1; without them a request costs half as much again",
                "install a kernel of 6.1 or later",
            ),
        }
    }

    fn files(&self, config: &Config, shards: usize) -> Check {
        let what = "open files (RLIMIT_NOFILE)";
        let wanted = (config.server.connections_max * shards + 1_024) as u64;
        match self.files_max {
            Some(limit) if limit >= wanted => Check::good(what, limit.to_string()),
            Some(limit) => Check::off(
                Grade::Wrong,
                what,
                limit.to_string(),
                format!(
                    "server.connections_max = {} on {shards} shards needs {wanted}; beyond the limit clients are refused",
                    config.server.connections_max
                ),
                format!("LimitNOFILE={wanted} in the systemd unit, or ulimit -n {wanted}"),
            ),
            None => Check::unknown(what, "the limit cannot be read"),
        }
    }

    fn cores_for(&self, config: &Config, shards: usize) -> Check {
        let what = "shards and cores";
        let found = format!("{shards} shards, {} cores", self.cores);
        if shards <= self.cores {
            return Check::good(what, found);
        }
        Check::off(
            Grade::Advice,
            what,
            found,
            "shards that share a core wait for each other",
            format!("set shards.count to {} or less (now {})", self.cores, config.shards.count),
        )
    }

    fn quota(&self, shards: usize) -> Check {
        let what = "CPU quota (cgroup cpu.max)";
        let Some(text) = self.read("sys/fs/cgroup/cpu.max") else { return Check::good(what, "none") };
        let mut parts = text.split_whitespace();
        let (quota, period) =
            (parts.next().unwrap_or("max"), parts.next().and_then(|period| period.parse::<f64>().ok()));
        match (quota.parse::<f64>(), period) {
            (Ok(quota), Some(period)) if quota / period < shards as f64 => Check::off(
                Grade::Wrong,
                what,
                format!("{:.1} CPUs", quota / period),
                "a shard that has used up its share is stopped for up to 100 ms: longer than a request may take",
                format!("give the container {shards} CPUs, or set shards.count to what it has"),
            ),
            (Ok(quota), Some(period)) => Check::good(what, format!("{:.1} CPUs", quota / period)),
            _ => Check::good(what, "none"),
        }
    }

    fn sysctl(&self, sysctl: &Sysctl) -> Check {
        let Some(found) = self.number(&format!("proc/sys/{}", sysctl.name.replace('.', "/"))) else {
            return Check::unknown(sysctl.name, "not in this kernel, or not to be read here");
        };
        if (sysctl.good)(found) {
            return Check::good(sysctl.name, found.to_string());
        }
        let fix =
            format!("sysctl -w {}={}   # and in /etc/sysctl.d, see tuning/99-seckill.conf", sysctl.name, sysctl.set);
        Check::off(sysctl.grade, sysctl.name, found.to_string(), sysctl.why, fix)
    }

    fn governor(&self) -> Check {
        let what = "CPU frequency governor";
        match self.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").as_deref() {
            None => Check::good(what, "none: the host or hypervisor decides"),
            Some("performance") => Check::good(what, "performance"),
            Some(other) => Check::off(
                Grade::Advice,
                what,
                other,
                "the first clicks of a sale meet slow cores, and the clock rises only after they have waited",
                "cpupower frequency-set -g performance",
            ),
        }
    }

    fn clock(&self) -> Check {
        let what = "clock source";
        match self.read("sys/devices/system/clocksource/clocksource0/current_clocksource").as_deref() {
            None => Check::unknown(what, "cannot be read here"),
            Some(fast @ ("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page")) => {
                Check::good(what, fast)
            }
            Some(slow) => Check::off(
                Grade::Advice,
                what,
                slow,
                "reading the time is a system call then, several times a request",
                "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
        }
    }

    fn huge_pages(&self) -> Check {
        let what = "transparent huge pages";
        match self.read("sys/kernel/mm/transparent_hugepage/enabled") {
            None => Check::unknown(what, "cannot be read here"),
            Some(text) if text.contains("[always]") => Check::off(
                Grade::Advice,
                what,
                "always",
                "on the Redis host a fork for AOF or RDB then copies 2 MiB for every page written: latency spikes in the sale",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            Some(text) => Check::good(what, text),
        }
    }

    fn irq_balance(&self) -> Check {
        let what = "irqbalance";
        let running = std::fs::read_dir(self.root.join("proc")).ok().into_iter().flatten().flatten().any(|entry| {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            name.trim() == "irqbalance"
        });
        if !running {
            return Check::good(what, "not running");
        }
        Check::off(
            Grade::Advice,
            what,
            "running",
            "it moves network interrupts onto the cores of pinned shards while they work",
            "systemctl disable --now irqbalance, then give the card's queues to cores of their own (tuning/README.md)",
        )
    }

    fn perf(&self) -> Check {
        let what = "kernel.perf_event_paranoid";
        match self.read("proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse::<i64>().ok()) {
            None => Check::unknown(what, "no perf events here"),
            Some(level) if level <= 1 => Check::good(what, level.to_string()),
            Some(level) => Check::off(
                Grade::Advice,
                what,
                level.to_string(),
                "perf and flame graphs (tuning/profile.md) need 1 or less, or root",
                "sysctl -w kernel.perf_event_paranoid=1",
            ),
        }
    }

    fn queues(&self, shards: usize) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut cards: Vec<_> = std::fs::read_dir(self.root.join("sys/class/net"))
            .ok()
            .into_iter()
            .flatten()
            .flatten()
            // Only what has a device behind it is a card.
            .filter(|card| card.path().join("device").exists())
            .collect();
        cards.sort_by_key(std::fs::DirEntry::file_name);
        for card in cards {
            let queues = std::fs::read_dir(card.path().join("queues")).ok().into_iter().flatten().flatten();
            let count = queues.filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-")).count();
            let name = card.file_name().to_string_lossy().into_owned();
            let what = format!("receive queues of {name}");
            if count >= shards.min(8) {
                checks.push(Check::good(what, count.to_string()));
            } else {
                checks.push(Check::off(
                    Grade::Advice,
                    what,
                    count.to_string(),
                    format!("{shards} shards get their packets from {count} cores"),
                    format!("ethtool -L {name} combined {}", shards.min(64)),
                ));
            }
        }
        checks
    }
}

/// A kernel setting with one number.
struct Sysctl {
    name: &'static str,
    good: fn(u64) -> bool,
    set: u64,
    grade: Grade,
    why: &'static str,
}

static SYSCTLS: &[Sysctl] = &[
    Sysctl {
        name: "net.core.somaxconn",
        good: |found| found >= 16_384,
        set: 65_535,
        grade: Grade::Wrong,
        why: "the buyers of a sale connect within a second; what does not fit into the accept queue is dropped and tried again after 1 s",
    },
    Sysctl {
        name: "net.ipv4.tcp_max_syn_backlog",
        good: |found| found >= 16_384,
        set: 65_535,
        grade: Grade::Advice,
        why: "half-open connections beyond it are dropped in the rush",
    },
    Sysctl {
        name: "net.core.netdev_max_backlog",
        good: |found| found >= 10_000,
        set: 65_535,
        grade: Grade::Advice,
        why: "packets that a core has not taken yet are dropped beyond it",
    },
    Sysctl {
        name: "net.ipv4.tcp_tw_reuse",
        good: |found| found >= 1,
        set: 1,
        grade: Grade::Advice,
        why: "a load generator or gateway runs out of ports without it",
    },
    Sysctl {
        name: "vm.overcommit_memory",
        good: |found| found == 1,
        set: 1,
        grade: Grade::Advice,
        why: "on the Redis host a background save fails without it when memory is half full",
    },
    Sysctl {
        name: "vm.swappiness",
        good: |found| found <= 10,
        set: 1,
        grade: Grade::Advice,
        why: "a page that was swapped out costs milliseconds in the middle of a request",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    /// A host in a folder.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("seckill-doctor-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn of<'a>(checks: &'a [Check], what: &str) -> &'a Check {
        checks.iter().find(|check| check.what.contains(what)).unwrap_or_else(|| panic!("{what} was not looked at"))
    }

    #[test]
    fn a_tuned_host_is_good() {
        let folder = Folder::new(
            "good",
            &[
                ("proc/sys/kernel/io_uring_disabled", "0\n"),
                ("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
                ("proc/sys/net/core/somaxconn", "65535\n"),
                ("proc/sys/net/ipv4/tcp_max_syn_backlog", "65535\n"),
                ("proc/sys/net/core/netdev_max_backlog", "65535\n"),
                ("proc/sys/net/ipv4/tcp_tw_reuse", "1\n"),
                ("proc/sys/vm/overcommit_memory", "1\n"),
                ("proc/sys/vm/swappiness", "1\n"),
                ("proc/sys/kernel/perf_event_paranoid", "-1\n"),
                ("sys/fs/cgroup/cpu.max", "400000 100000\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ],
        );
        let config = load(&Sources::default()).unwrap();
        for check in Host::below(&folder.0, 4, Some(u64::MAX)).checks(&config) {
            assert_eq!(check.grade, Grade::Good, "{check:?}");
        }
    }

    #[test]
    fn every_deviation_says_why_and_what_to_do() {
        let folder = Folder::new(
            "bad",
            &[
                ("proc/sys/kernel/io_uring_disabled", "2\n"),
                ("proc/sys/kernel/osrelease", "5.10.0\n"),
                ("proc/sys/net/core/somaxconn", "128\n"),
                ("proc/sys/vm/swappiness", "60\n"),
                ("proc/sys/kernel/perf_event_paranoid", "3\n"),
                ("proc/77/comm", "irqbalance\n"),
                ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
                ("sys/class/net/eth0/device/vendor", "x"),
                ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
                ("sys/class/net/lo/queues/rx-0/rps_cpus", "0"),
            ],
        );
        let overrides = vec!["shards.count=8".to_owned()];
        let config = load(&Sources { overrides, ..Sources::default() }).unwrap();
        let checks = Host::below(&folder.0, 4, Some(1_024)).checks(&config);
        for (what, grade) in [
            ("io_uring", Grade::Wrong),
            ("kernel", Grade::Wrong),
            ("open files", Grade::Wrong),
            ("CPU quota", Grade::Wrong),
            ("somaxconn", Grade::Wrong),
            ("shards and cores", Grade::Advice),
            ("swappiness", Grade::Advice),
            ("governor", Grade::Advice),
            ("clock source", Grade::Advice),
            ("huge pages", Grade::Advice),
            ("irqbalance", Grade::Advice),
            ("perf_event", Grade::Advice),
            ("receive queues of eth0", Grade::Advice),
            ("netdev_max_backlog", Grade::Unknown),
        ] {
            let check = of(&checks, what);
            assert_eq!(check.grade, grade, "{check:?}");
            assert!(!check.why.is_empty() && (grade == Grade::Unknown || !check.fix.is_empty()), "{check:?}");
        }
        assert!(!checks.iter().any(|check| check.what.contains("of lo")), "lo is no card");
    }

    #[test]
    fn this_host_can_be_read() {
        let config = load(&Sources::default()).unwrap();
        assert!(Host::here().checks(&config).len() >= 15);
    }
}

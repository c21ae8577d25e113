//! Starting shards, one on this thread or one a core.

use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::backend::{self, Executor};
use crate::bell::{self, Bell};
use crate::pinning::{self, Pinning};
use crate::random;
use crate::shard::{Entered, ShardState};
use crate::task::{Guarded, Panicked};

/// Which kernel interface to drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// io_uring where the kernel allows it, epoll otherwise.
    #[default]
    Auto,
    /// io_uring or fail.
    Uring,
    /// epoll.
    Epoll,
}

/// Which kernel interface is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// epoll.
    Epoll,
}

/// What a shard runs on, and why.
#[derive(Debug, Clone)]
pub struct DriverReport {
    /// The interface chosen.
    pub kind: DriverKind,
    /// How the ring is set up; `None` without a ring.
    pub flags: Option<RingFlags>,
    /// Which it is and why, in a few words for a person.
    pub reason: String,
}

/// How shards are started.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// How many shards (threads); at least one.
    pub count: usize,
    /// Which core each runs on.
    pub pin: Pinning,
    /// Which kernel interface.
    pub driver: DriverChoice,
    /// Submission entries a ring (a power of two, at least 256).
    pub ring_entries: u32,
    /// The most a ring is asked for; older kernels get less.
    pub ring_flags: RingFlags,
    /// Fixes [`crate::random_u64`]; from the operating system when `None`.
    pub seed: Option<u64>,
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self {
            count: 1,
            pin: Pinning::default(),
            driver: DriverChoice::Auto,
            ring_entries: 1024,
            ring_flags: RingFlags::default(),
            seed: None,
        }
    }
}

/// What a shard is told about itself.
#[derive(Debug, Clone)]
pub struct ShardContext {
    /// This shard, counted from zero.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// What it runs on.
    pub driver: DriverReport,
}

/// How a ring is set up: what the kernel may leave out because of how a shard uses it. In order of what it saves;
/// each contains the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RingFlags {
    /// None: any thread may submit, completions interrupt the shard.
    Plain,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19): completions wait for the shard's next system call.
    CoopTaskrun,
    /// And `IORING_SETUP_SINGLE_ISSUER` (Linux 6.0): only the shard's thread submits.
    SingleIssuer,
    /// And `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1): completions are worked on only when the shard asks for them.
    #[default]
    DeferTaskrun,
}

impl RingFlags {
    /// Most first: the order in which they are tried.
    const TRIED: [Self; 4] = [Self::DeferTaskrun, Self::SingleIssuer, Self::CoopTaskrun, Self::Plain];

    fn builder(self) -> io_uring::Builder {
        let mut builder = io_uring::IoUring::builder();
        if self >= Self::CoopTaskrun {
            builder.setup_coop_taskrun();
        }
        if self >= Self::SingleIssuer {
            builder.setup_single_issuer();
        }
        if self >= Self::DeferTaskrun {
            builder.setup_defer_taskrun();
        }
        builder
    }

    /// The flags as one would write them for a person.
    pub fn names(self) -> &'static str {
        match self {
            Self::Plain => "no flags",
            Self::CoopTaskrun => "coop_taskrun",
            Self::SingleIssuer => "coop_taskrun, single_issuer",
            Self::DeferTaskrun => "coop_taskrun, single_issuer, defer_taskrun",
        }
    }
}

/// A ring with as many of the flags up to `most` as the kernel knows. It answers an unknown flag with `EINVAL`; any
/// other refusal holds for every set of flags and is final.
fn uring(entries: u32, most: RingFlags) -> io::Result<(Executor, RingFlags)> {
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for flags in RingFlags::TRIED.into_iter().filter(|flags| *flags <= most) {
        match Executor::uring(&flags.builder(), entries) {
            Ok(executor) => return Ok((executor, flags)),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => refused = e,
            Err(e) => return Err(e),
        }
    }
    Err(refused)
}

fn build(config: &ShardConfig) -> io::Result<(Executor, DriverReport)> {
    let uring = || {
        let (executor, flags) = uring(config.ring_entries, config.ring_flags)?;
        let missing = if flags == config.ring_flags { "" } else { "; the kernel knows no more of the flags" };
        let reason = format!("io_uring with {}{missing}", flags.names());
        Ok((executor, DriverReport { kind: DriverKind::Uring, flags: Some(flags), reason }))
    };
    let epoll = |reason| Ok((Executor::epoll()?, DriverReport { kind: DriverKind::Epoll, flags: None, reason }));
    match config.driver {
        DriverChoice::Uring => uring(),
        DriverChoice::Epoll => epoll("epoll, as asked for".to_owned()),
        DriverChoice::Auto => uring().or_else(|e: io::Error| epoll(format!("epoll, because io_uring is refused: {e}"))),
    }
}

/// Runs `future` and the tasks it starts as one shard on this thread. When it completes, the remaining tasks are
/// dropped.
///
/// # Panics
/// When `future` panics, when no driver can be built, and inside another shard.
pub fn run<F: Future>(future: F) -> F::Output {
    match run_with(&ShardConfig::default(), future) {
        Ok(output) => output,
        Err(e) => panic!("cannot start a shard: {e}"),
    }
}

/// [`run`] with a configuration, of which `count` and `pin` are ignored.
pub fn run_with<F: Future>(config: &ShardConfig, future: F) -> io::Result<F::Output> {
    random::seed(config.seed, 0);
    let line = Line::new()?;
    let (executor, _) = build(config)?;
    match drive(executor, line, future) {
        Ok(output) => Ok(output),
        Err(panicked) => resume_unwind(Box::new(panicked.message().to_owned())),
    }
}

fn drive<F: Future>(mut executor: Executor, line: Line, future: F) -> Result<F::Output, Panicked> {
    let state = Rc::new(ShardState::new(line.bell));
    let _entered = Entered::new(Rc::clone(&state));
    executor.block_on(async {
        let mut ring = backend::RingTurn::new().map_err(|e| Panicked::no_line(&e))?;
        let usher_state = Rc::clone(&state);
        let usher = backend::spawn(async move { usher_state.tasks.usher(&mut ring).await });
        let answer = backend::spawn(bell::answer(line.far_end, Rc::clone(&state)));
        let output = Guarded::new(future, Rc::clone(&state)).await;
        state.tasks.stop().await;
        state.bell.ring();
        usher.await;
        answer.await;
        output
    })
}

/// A shard's bell, before the shard listens to it.
struct Line {
    bell: Arc<Bell>,
    far_end: std::os::unix::net::UnixStream,
}

impl Line {
    fn new() -> io::Result<Self> {
        let (bell, far_end) = Bell::new()?;
        Ok(Self { bell, far_end })
    }
}

/// Running shards.
#[derive(Debug)]
pub struct Shards<T = ()> {
    threads: Vec<thread::JoinHandle<Result<T, Panicked>>>,
    reports: Vec<DriverReport>,
}

impl<T: Send + 'static> Shards<T> {
    /// Starts `config.count` shards; each runs `main` to its end. Returns once all have their driver.
    ///
    /// # Errors
    /// When a thread or a driver cannot be made; then no shard runs `main`.
    pub fn start<F, Fut>(config: ShardConfig, main: F) -> io::Result<Self>
    where
        F: Fn(ShardContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = T>,
    {
        let count = config.count.max(1);
        let cores = pinning::plan(config.pin, count);
        let main = Arc::new(main);
        let (report_tx, report_rx) = mpsc::channel();
        let mut threads = Vec::with_capacity(count);
        let mut gos = Vec::with_capacity(count);
        for (index, core) in cores.into_iter().enumerate() {
            let (go_tx, go_rx) = mpsc::channel::<()>();
            let (main, config, report_tx) = (Arc::clone(&main), config.clone(), report_tx.clone());
            let body = move || {
                let core = core.filter(|core| core_affinity::set_for_current(*core)).map(|core| core.id);
                random::seed(config.seed, index);
                let built = Line::new().and_then(|line| Ok((line, build(&config)?)));
                let (line, executor, driver) = match built {
                    Ok((line, (executor, driver))) => {
                        let _ = report_tx.send(Ok((index, driver.clone())));
                        (line, executor, driver)
                    }
                    Err(e) => {
                        let _ = report_tx.send(Err(e));
                        return Err(Panicked::never_started());
                    }
                };
                if go_rx.recv().is_err() {
                    return Err(Panicked::never_started());
                }
                let context = ShardContext { index, count, core, driver };
                drive(executor, line, async move { main(context).await })
            };
            threads.push(thread::Builder::new().name(format!("shard-{index}")).spawn(body)?);
            gos.push(go_tx);
        }
        drop(report_tx);
        let mut reports: Vec<Option<DriverReport>> = vec![None; count];
        for _ in 0..count {
            let (index, report) = report_rx.recv().map_err(io::Error::other)??;
            reports[index] = Some(report);
        }
        for go in gos {
            let _ = go.send(());
        }
        Ok(Self { threads, reports: reports.into_iter().flatten().collect() })
    }

    /// What each shard runs on.
    pub fn reports(&self) -> &[DriverReport] {
        &self.reports
    }

    /// Waits for every shard; results in shard order.
    pub fn join(self) -> Vec<Result<T, Panicked>> {
        let joined = self.threads.into_iter().map(thread::JoinHandle::join);
        joined.map(|result| result.unwrap_or_else(|payload| Err(Panicked::from_payload(&*payload)))).collect()
    }
}

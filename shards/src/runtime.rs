//! Starting shards, one on this thread or one a core.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::backend::{self, Executor};
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
    /// Why, in a few words for a person.
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
    /// Fixes [`crate::random_u64`]; from the operating system when `None`.
    pub seed: Option<u64>,
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self { count: 1, pin: Pinning::default(), driver: DriverChoice::Auto, ring_entries: 1024, seed: None }
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

fn build(config: &ShardConfig) -> io::Result<(Executor, DriverReport)> {
    let ring = io_uring::IoUring::builder();
    let uring = |reason: &str| {
        let executor = Executor::uring(&ring, config.ring_entries)?;
        Ok((executor, DriverReport { kind: DriverKind::Uring, reason: reason.to_owned() }))
    };
    let epoll = |reason: String| Ok((Executor::epoll()?, DriverReport { kind: DriverKind::Epoll, reason }));
    match config.driver {
        DriverChoice::Uring => uring("asked for"),
        DriverChoice::Epoll => epoll("asked for".to_owned()),
        DriverChoice::Auto => uring("the kernel allows it").or_else(|e: io::Error| epoll(format!("io_uring: {e}"))),
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
    let (executor, _) = build(config)?;
    match drive(executor, future) {
        Ok(output) => Ok(output),
        Err(panicked) => resume_unwind(Box::new(panicked.message().to_owned())),
    }
}

fn drive<F: Future>(mut executor: Executor, future: F) -> Result<F::Output, Panicked> {
    let state = Rc::new(ShardState::default());
    let _entered = Entered::new(Rc::clone(&state));
    executor.block_on(async {
        let usher_state = Rc::clone(&state);
        let usher = backend::spawn(poll_fn(move |cx| usher_state.tasks.poll_usher(cx)));
        let output = Guarded::new(future, Rc::clone(&state)).await;
        state.tasks.stop().await;
        usher.await;
        output
    })
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
                let built = build(&config);
                let (executor, driver) = match built {
                    Ok((executor, driver)) => {
                        let _ = report_tx.send(Ok((index, driver.clone())));
                        (executor, driver)
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
                drive(executor, async move { main(context).await })
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

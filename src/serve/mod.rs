//! A running process: shards, admin listener, signals, and the order in which all of it ends (spec section 8).
//!
//! ```text
//! main thread    admin shard: /healthz /readyz /metrics, signals, the stop
//! shard 0..n     listener, submit, query, worker: one set each, nothing shared
//! ```
//!
//! The only ways between them are the bounded mailboxes of [`control`].

mod admin;
mod control;
mod embedded;
pub(crate) mod pools;
mod readiness;
mod shard;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shards::signal::Signals;
use shards::sync::Gate;
use shards::{DriverChoice, Pinning, ShardConfig, Shards, mailbox};

use crate::config::{Config, Driver};
use crate::embedded::data::{self, DataError};
use crate::embedded::lane::Message;
use crate::embedded::store::StoreThread;
use crate::identity::Identity;
use crate::observe::trace::export;
use crate::race::{First, race};
use control::{Control, Notice, Overview};
use shard::ShardEnd;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Everything.
    All,
    /// Submit only.
    Api,
    /// Order worker only; no public listener.
    Worker,
    /// Query only.
    Query,
}

impl Role {
    /// Whether it submits.
    pub const fn submits(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    /// Whether it answers queries.
    pub const fn queries(self) -> bool {
        matches!(self, Self::All | Self::Query)
    }

    /// Whether it works on messages.
    pub const fn works(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }

    /// Its name on the command line and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
            Self::Query => "query",
        }
    }
}

/// Why a process cannot run, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings do not suffice to serve.
    #[error("{0}")]
    Settings(String),
    /// A listener, thread or ring could not be made.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The data folder cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A shard ended without being asked to.
    #[error("shard {index} ended by itself: {reason}")]
    ShardEnded {
        /// Which.
        index: usize,
        /// Why.
        reason: String,
    },
    /// Messages or requests were let go at the end of the drain time.
    #[error("stopped with {0} messages unfinished; the broker delivers them again")]
    Unfinished(usize),
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |source| ServeError::Io { what, source }
}

/// Serves until a signal, then stops in order.
///
/// # Errors
/// [`ServeError`] when it cannot start, when a shard dies, and when the drain time was too short.
pub fn serve(config: Config, role: Role) -> Result<(), ServeError> {
    if !config.names_services() && role != Role::All {
        return Err(ServeError::Settings(format!(
            "--role {} needs services, and none are named: set redis.addr, rocketmq.name_servers and postgres.url in the \
             file given with --config (or SECKILL_REDIS, SECKILL_NAMESRV and SECKILL_PG_URL), or serve with --role all, \
             which then runs embedded in {}",
            role.name(),
            config.embedded.data.display()
        )));
    }
    if role != Role::Worker {
        Identity::new(&config.identity).map_err(|error| ServeError::Settings(error.to_string()))?;
    }
    let instance = instance(&config);
    let _log = crate::observe::log::start(&config.log.level, &instance);
    let signals = Signals::install().map_err(failed("cannot take signals"))?;
    let admin = ShardConfig { count: 1, pin: Pinning::None, driver: driver(&config), ..ShardConfig::default() };
    shards::run_with(&admin, run(config, role, instance, signals)).map_err(failed("cannot start the admin shard"))?
}

/// What tells this process from others: the setting, or host and process id.
fn instance(config: &Config) -> String {
    if !config.log.instance.is_empty() {
        return config.log.instance.clone();
    }
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
}

fn driver(config: &Config) -> DriverChoice {
    match config.shards.driver {
        Driver::Auto => DriverChoice::Auto,
        Driver::Uring => DriverChoice::Uring,
        Driver::Epoll => DriverChoice::Epoll,
    }
}

async fn run(config: Config, role: Role, instance: String, mut signals: Signals) -> Result<(), ServeError> {
    let count = config.shards.on(std::thread::available_parallelism().map_or(1, usize::from));
    let config = Arc::new(config);
    let admin_listener = shards::net::TcpListener::bind(config.admin.listen, &shards::net::ListenOptions::default())
        .map_err(failed(format!("cannot listen on admin.listen = {}", config.admin.listen)))?;
    let admin_addr = admin_listener.local_addr().map_err(failed("admin.listen"))?;
    let public = match role {
        Role::Worker => None,
        _ => Some(
            shards::net::reserve_port(config.server.listen)
                .map_err(failed(format!("cannot listen on server.listen = {}", config.server.listen)))?,
        ),
    };
    let public_addr: Option<SocketAddr> = public.as_ref().map(|reserved| reserved.addr());

    let (notice_tx, mut notices) = mailbox::bounded::<Notice>(4 * count.max(4));
    let (controls, receivers): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mailbox::bounded::<Control>(control::WAITING_MAX)).unzip();
    let receivers = Mutex::new(receivers.into_iter().map(Some).collect::<Vec<_>>());
    let shard_config = ShardConfig {
        count,
        pin: if config.shards.pin { Pinning::Cores } else { Pinning::None },
        driver: driver(&config),
        ring_entries: config.shards.ring_entries,
        ..ShardConfig::default()
    };
    let (mode, base) = match config.names_services() {
        true => (None, None),
        false => {
            let (embedded, base) = Base::open(&config, count)?;
            (Some(embedded), Some(base))
        }
    };
    let (spans, export) = export::start(&config.trace, role.name(), &instance).map_err(ServeError::Settings)?;
    let shards = {
        let config = config.clone();
        let notice_tx = notice_tx.clone();
        Shards::start(shard_config, move |context| {
            let control = receivers.lock().ok().and_then(|mut all| all[context.index].take());
            let (config, notices, mode) = (config.clone(), notice_tx.clone(), mode.clone());
            let spans = spans.clone();
            async move {
                match (mode, public_addr) {
                    (Some(mode), Some(public)) => {
                        embedded::run(config, context, public, control, notices, mode, spans).await
                    }
                    _ => shard::run(config, role, context, public_addr, control, notices, spans).await,
                }
            }
        })
        .map_err(failed("cannot start the shards"))?
    };
    for (index, report) in shards.reports().iter().enumerate() {
        tracing::info!(shard = index, driver = report.reason, "shard driver");
    }
    let joined = join_elsewhere(shards, notice_tx);

    let overview = Overview::new(controls, role, config.names_services(), instance);
    let admin_stop = Gate::new();
    let desk = admin::Desk::new(base.as_ref().map(|base| base.desk.clone()));
    let admin = shards::spawn(admin::serve(
        admin_listener,
        overview.clone(),
        desk.clone(),
        admin::sales(&config).map_err(ServeError::Settings)?,
        config.admin.token.clone(),
        admin_stop.clone(),
    ));
    if let Some(base) = &base {
        base.note(public_addr, admin_addr)?;
    }
    let outcome = supervise(&overview, &mut notices, &mut signals, role, public_addr, admin_addr, count).await;
    drop(public);
    // The owner of the book waits until nobody has a way to it any more.
    desk.close();
    let thread = base.map(Base::let_go);
    let ended = match outcome {
        Supervised::Stop => stop(&overview, &mut notices, &mut signals, &config).await,
        Supervised::Died(error) => {
            overview.broadcast_stop();
            Err(error)
        }
    };
    admin_stop.close();
    // The admin listener goes last, so that the stop itself can be watched.
    let _ = shards::timeout(Duration::from_secs(1), admin).await;
    drop(joined);
    if ended.is_ok() {
        // No tracer is left; what was recorded last is still on its way.
        export.finish();
    }
    if let (Some((_held, thread)), true) = (thread, ended.is_ok()) {
        thread.join();
    }
    tracing::info!(role = role.name(), "stopped");
    ended
}

/// What the main thread keeps of an embedded process.
struct Base {
    held: data::Held,
    folder: std::path::PathBuf,
    thread: StoreThread,
    desk: mailbox::Sender<Message>,
}

impl Base {
    /// Opens the data folder and makes the shards' parts of what is in it.
    fn open(config: &Config, count: usize) -> Result<(Arc<embedded::Embedded>, Self), ServeError> {
        let started = shards::now();
        let folder = config.embedded.data.clone();
        let (held, book, end, store) = data::open(&folder, &config.rocketmq.group)?.hold();
        tracing::info!(
            folder = %folder.display(), reservations = book.len(), frames = end.last, torn_bytes = end.torn,
            elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX), "data folder opened"
        );
        let (store, thread) = store.start().map_err(DataError::from)?;
        let (embedded, desk) = embedded::Embedded::new(config, count, book, end, store);
        Ok((Arc::new(embedded), Self { held, folder, thread, desk }))
    }

    /// Leaves word for `seckill activity` where this process answers.
    fn note(&self, public: Option<SocketAddr>, admin: SocketAddr) -> Result<(), ServeError> {
        let note = serde_json::json!({ "pid": std::process::id(), "public": public, "admin": admin });
        let path = self.folder.join(data::SERVER_NOTE);
        std::fs::write(&path, format!("{note}\n")).map_err(failed(format!("cannot write {}", path.display())))
    }

    fn let_go(self) -> (data::Held, StoreThread) {
        (self.held, self.thread)
    }
}

enum Supervised {
    Stop,
    Died(ServeError),
}

/// Waits for all shards to be up, then for a signal.
async fn supervise(
    overview: &Overview,
    notices: &mut mailbox::Receiver<Notice>,
    signals: &mut Signals,
    role: Role,
    public: Option<SocketAddr>,
    admin: SocketAddr,
    count: usize,
) -> Supervised {
    let mut started = 0;
    loop {
        match race(notices.recv(), signals.next()).await {
            First::Right(signal) => {
                tracing::info!(?signal, "stopping");
                return Supervised::Stop;
            }
            First::Left(Some(Notice::Started)) => {
                started += 1;
                if started == count {
                    overview.set_ready(true);
                    let public = public.map(|addr| addr.to_string());
                    tracing::info!(role = role.name(), shards = count, public, admin = %admin, "serving");
                    announce(role, public.as_deref(), admin);
                }
            }
            First::Left(Some(Notice::Ended { index, end })) => {
                return Supervised::Died(ServeError::ShardEnded { index, reason: end.reason() });
            }
            First::Left(None) => {
                let reason = "its mailbox closed".to_owned();
                return Supervised::Died(ServeError::ShardEnded { index: 0, reason });
            }
        }
    }
}

/// One line on standard output for whoever started us: the addresses, which may have been chosen by the kernel.
fn announce(role: Role, public: Option<&str>, admin: SocketAddr) {
    use std::io::Write as _;
    let line = serde_json::json!({ "serving": role.name(), "public": public, "admin": admin.to_string() });
    let mut out = io::stdout().lock();
    // Nobody may be reading; that is no reason to stop.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The orderly stop: each shard drains by itself; a second signal ends the process at once.
async fn stop(
    overview: &Overview,
    notices: &mut mailbox::Receiver<Notice>,
    signals: &mut Signals,
    config: &Config,
) -> Result<(), ServeError> {
    overview.set_ready(false);
    overview.broadcast_stop();
    // The shards bound their own drain; this only ends a process whose shard hangs.
    let deadline = shards::now() + Duration::from_secs(config.lifecycle.drain_s) + control::DRAIN_GRACE;
    let (mut running, mut unfinished, mut died) = (overview.shards(), 0, None);
    while running > 0 {
        let next = shards::timeout_at(deadline, race(notices.recv(), signals.next())).await;
        match next {
            Ok(First::Left(Some(Notice::Ended { index, end }))) => {
                running -= 1;
                match end {
                    ShardEnd::Stopped { unfinished: left } => unfinished += left,
                    failed => died = Some(ServeError::ShardEnded { index, reason: failed.reason() }),
                }
            }
            Ok(First::Left(Some(Notice::Started))) => {}
            Ok(First::Left(None)) => break,
            Ok(First::Right(signal)) => {
                tracing::warn!(?signal, "second signal: ending at once, messages in hand come again");
                return Err(ServeError::Unfinished(unfinished));
            }
            Err(_) => return Err(ServeError::Unfinished(unfinished)),
        }
    }
    match died {
        Some(error) => Err(error),
        None if unfinished > 0 => Err(ServeError::Unfinished(unfinished)),
        None => Ok(()),
    }
}

/// Waits for the shard threads on a thread of its own, as joining blocks, and reports each end.
fn join_elsewhere(shards: Shards<ShardEnd>, notices: mailbox::Sender<Notice>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for (index, end) in shards.join().into_iter().enumerate() {
            let end = end.unwrap_or_else(|panicked| ShardEnd::Panicked(panicked.message().to_owned()));
            // The mailbox holds a notice of every shard; it is only full when the other end is gone.
            let _ = notices.try_send(Notice::Ended { index, end });
        }
    })
}

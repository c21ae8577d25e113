//! The connections of one shard to one database.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::Notify;

use crate::dial::spread;

use super::client::Client;
use super::connection::Connection;
use super::{CallError, NotSent, Unknown};

/// Pause after a dial that failed: doubled with each failure in a row, and spread by half.
const DIAL_PAUSE: Duration = Duration::from_millis(50);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How a pool is set up.
#[derive(Clone)]
pub struct PoolConfig {
    /// `host:port`.
    pub endpoint: String,
    /// Role.
    pub user: String,
    /// Password, where the server wants one.
    pub password: Option<String>,
    /// Database.
    pub database: String,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
    /// Most connections.
    pub connections_max: usize,
    /// Longest wait for a free connection.
    pub wait_max: Duration,
    /// Longest dial and log-in.
    pub dial_timeout: Duration,
    /// A connection without work is closed after this.
    pub idle_max: Duration,
    /// A connection is replaced after this, give or take a tenth.
    pub lifetime_max: Duration,
    /// The server's own limit on a statement.
    pub statement_timeout: Option<Duration>,
    /// Longest message taken, and most bytes of rows in one round trip.
    pub message_bytes_max: usize,
    /// More run-time settings of the session.
    pub options: Vec<(String, String)>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            endpoint: "127.0.0.1:5432".to_owned(),
            user: "postgres".to_owned(),
            password: None,
            database: "postgres".to_owned(),
            application_name: "seckill".to_owned(),
            connections_max: 4,
            wait_max: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(3),
            idle_max: Duration::from_secs(300),
            lifetime_max: Duration::from_secs(1800),
            statement_timeout: None,
            message_bytes_max: 64 << 20,
            options: Vec::new(),
        }
    }
}

impl std::fmt::Debug for PoolConfig {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolConfig")
            .field("endpoint", &self.endpoint)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}

impl PoolConfig {
    /// Run-time settings for the log-in.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let mut settings = vec![
            ("client_encoding".to_owned(), "UTF8".to_owned()),
            ("application_name".to_owned(), self.application_name.clone()),
        ];
        if let Some(timeout) = self.statement_timeout {
            settings.push(("statement_timeout".to_owned(), format!("{}ms", timeout.as_millis())));
        }
        settings.extend(self.options.iter().cloned());
        settings
    }
}

/// What a pool is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections taken out.
    pub in_use: usize,
    /// Connections waiting for work.
    pub idle: usize,
    /// Callers that wait for a connection.
    pub waiting: usize,
    /// Connections ever opened.
    pub opened_total: u64,
    /// Acquires that found no idle connection.
    pub empty_total: u64,
}

/// Connections to one database, shared by the callers of one shard. Cloning shares the pool.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

struct Inner {
    config: PoolConfig,
    idle: RefCell<Vec<Rc<Connection>>>,
    in_use: Cell<usize>,
    dialling: Cell<usize>,
    dial_failure: RefCell<Option<NotSent>>,
    dial_after: Cell<Instant>,
    dial_pause: Cell<Duration>,
    sweeping: Cell<bool>,
    changed: Rc<Notify>,
    closed: Cell<bool>,
    waiting: Cell<usize>,
    opened: Cell<u64>,
    empty: Cell<u64>,
}

impl Drop for Inner {
    /// A pool that is let go without [`Pool::close`] leaves no connection behind.
    fn drop(&mut self) {
        for connection in self.idle.take() {
            connection.end(Unknown::ConnectionLost);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("config", &self.0.config).field("stats", &self.stats()).finish()
    }
}

impl Pool {
    /// A pool; it connects when the first caller comes.
    pub fn new(config: PoolConfig) -> Self {
        Self(Rc::new(Inner {
            config,
            idle: RefCell::default(),
            in_use: Cell::new(0),
            dialling: Cell::new(0),
            dial_failure: RefCell::default(),
            dial_after: Cell::new(shards::now()),
            dial_pause: Cell::new(DIAL_PAUSE),
            sweeping: Cell::new(false),
            changed: Rc::new(Notify::new()),
            closed: Cell::new(false),
            waiting: Cell::new(0),
            opened: Cell::new(0),
            empty: Cell::new(0),
        }))
    }

    pub(super) fn result_bytes_max(&self) -> usize {
        self.0.config.message_bytes_max
    }

    /// A connection of the caller's own, before `deadline` and within the pool's wait.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub async fn acquire(&self, deadline: Instant) -> Result<Client, CallError> {
        let inner = &self.0;
        let waits_until = shards::now() + inner.config.wait_max;
        let mut first_look = true;
        loop {
            if inner.closed.get() {
                return Err(NotSent::Closed.into());
            }
            if let Some(connection) = self.take_idle() {
                inner.in_use.set(inner.in_use.get() + 1);
                return Ok(Client::new(connection, self.clone()));
            }
            if std::mem::take(&mut first_look) {
                inner.empty.set(inner.empty.get() + 1);
            }
            if shards::now() >= deadline {
                return Err(NotSent::Deadline.into());
            }
            if shards::now() >= waits_until {
                return Err(NotSent::PoolWait.into());
            }
            self.dial_one_more();
            if inner.dialling.get() == 0 && inner.in_use.get() == 0 {
                // Nothing is under way that could give a connection: the last dial failed a moment ago.
                let failure = inner.dial_failure.borrow().clone();
                return Err(failure.unwrap_or(NotSent::PoolWait).into());
            }
            inner.waiting.set(inner.waiting.get() + 1);
            // A deadline that strikes here is seen at the top of the loop.
            let _ = shards::timeout_at(deadline.min(waits_until), inner.changed.notified()).await;
            inner.waiting.set(inner.waiting.get() - 1);
        }
    }

    fn take_idle(&self) -> Option<Rc<Connection>> {
        let now = shards::now();
        loop {
            // The one used last: the others may then grow old and be closed.
            let connection = self.0.idle.borrow_mut().pop()?;
            if connection.has_ended() {
                continue;
            }
            if connection.retire_at <= now || connection.idle_since.get() + self.0.config.idle_max <= now {
                connection.terminate();
                continue;
            }
            return Some(connection);
        }
    }

    fn dial_one_more(&self) {
        let inner = &self.0;
        let open = inner.in_use.get() + inner.idle.borrow().len() + inner.dialling.get();
        // No more dials than callers wait for: a server that is down is not stormed.
        let wanted = inner.waiting.get() + 1;
        if open >= inner.config.connections_max
            || inner.dialling.get() >= wanted
            || shards::now() < inner.dial_after.get()
        {
            return;
        }
        inner.dialling.set(inner.dialling.get() + 1);
        let pool = self.clone();
        shards::spawn(async move { pool.dial().await });
    }

    async fn dial(&self) {
        let inner = &self.0;
        let now = shards::now();
        let changed = inner.changed.clone();
        let retire_at = now + spread(inner.config.lifetime_max, 10);
        let on_end = Box::new(move || changed.notify_all());
        let opened = Connection::open(&inner.config, retire_at, now + inner.config.dial_timeout, on_end).await;
        inner.dialling.set(inner.dialling.get() - 1);
        match opened {
            Ok(connection) => {
                inner.dial_pause.set(DIAL_PAUSE);
                inner.opened.set(inner.opened.get() + 1);
                self.keep(connection);
                self.sweep();
            }
            Err(error) => {
                inner.dial_after.set(shards::now() + spread(inner.dial_pause.get(), 2));
                inner.dial_pause.set((inner.dial_pause.get() * 2).min(DIAL_PAUSE_MAX));
                *inner.dial_failure.borrow_mut() = Some(error);
                inner.changed.notify_all();
            }
        }
    }

    fn keep(&self, connection: Rc<Connection>) {
        if self.0.closed.get() {
            connection.terminate();
        } else {
            connection.idle_since.set(shards::now());
            self.0.idle.borrow_mut().push(connection);
        }
        self.0.changed.notify_one();
    }

    pub(super) fn give_back(&self, connection: Rc<Connection>) {
        self.0.in_use.set(self.0.in_use.get() - 1);
        if connection.has_ended() {
            self.0.changed.notify_one();
        } else {
            self.keep(connection);
        }
    }

    /// Closes connections that nobody uses, for as long as there are any.
    fn sweep(&self) {
        if self.0.sweeping.replace(true) {
            return;
        }
        let (pool, every) = (Rc::downgrade(&self.0), self.0.config.idle_max / 2);
        shards::spawn(async move {
            loop {
                shards::sleep(every).await;
                let Some(inner) = pool.upgrade() else { return };
                let oldest = shards::now().checked_sub(inner.config.idle_max);
                let mut idle = inner.idle.borrow_mut();
                idle.retain(|connection| {
                    let old = oldest.is_some_and(|oldest| connection.idle_since.get() <= oldest);
                    if old {
                        connection.terminate();
                    }
                    !old && !connection.has_ended()
                });
                if idle.is_empty() && inner.in_use.get() == 0 {
                    inner.sweeping.set(false);
                    return;
                }
            }
        });
    }

    /// Gives out no more connections and closes the idle ones; those in use close when they come back.
    pub async fn close(&self) {
        self.0.closed.set(true);
        let idle = self.0.idle.take();
        for connection in &idle {
            connection.terminate();
        }
        self.0.changed.notify_all();
        let deadline = shards::now() + Duration::from_millis(500);
        while idle.iter().any(|connection| !connection.has_ended()) && shards::now() < deadline {
            // A deadline that strikes here is seen by the loop's condition.
            let _ = shards::timeout_at(deadline, self.0.changed.notified()).await;
        }
    }

    /// What it is doing.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            in_use: self.0.in_use.get(),
            idle: self.0.idle.borrow().len(),
            waiting: self.0.waiting.get(),
            opened_total: self.0.opened.get(),
            empty_total: self.0.empty.get(),
        }
    }
}

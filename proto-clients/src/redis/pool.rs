//! The connections of one shard to one server.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use shards::sync::Notify;

use crate::dial::spread;

use super::handshake;
use super::link::{Fate, Link, LinkEvents, Times};
use super::{CallError, Command, ErrorKind, NotSent, Reply, Script, Unknown};

/// Other nodes that MOVED may send us to.
const NODES_MAX: usize = 64;
/// Pause after a dial that failed: doubled with each failure in a row, and spread by half.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How a pool is set up.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// `host:port`.
    pub endpoint: String,
    /// ACL user; `default` when there is only a password.
    pub username: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Logical database.
    pub database: u32,
    /// Most connections.
    pub connections_max: usize,
    /// Most commands without a reply on one connection.
    pub pipeline_max: usize,
    /// Longest wait for room on a connection.
    pub wait_max: Duration,
    /// Longest dial and log-in.
    pub dial_timeout: Duration,
    /// A connection whose reply is this much later than the caller's deadline is given up.
    pub io_timeout: Duration,
    /// A connection without work is closed after this.
    pub idle_max: Duration,
    /// A connection is replaced after this, give or take a tenth.
    pub lifetime_max: Duration,
    /// Longest reply, in bytes.
    pub reply_bytes_max: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            endpoint: "127.0.0.1:6379".to_owned(),
            username: None,
            password: None,
            database: 0,
            connections_max: 2,
            pipeline_max: 1024,
            wait_max: Duration::from_millis(30),
            dial_timeout: Duration::from_millis(500),
            io_timeout: Duration::from_millis(60),
            idle_max: Duration::from_secs(300),
            lifetime_max: Duration::from_secs(1800),
            reply_bytes_max: 16 << 20,
        }
    }
}

/// What a pool is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Open connections.
    pub connections: usize,
    /// Commands without a reply.
    pub in_flight: usize,
    /// Callers that wait for room.
    pub waiting: usize,
    /// Connections ever opened.
    pub opened_total: u64,
    /// Waits for room that took too long.
    pub wait_timeouts_total: u64,
    /// Calls that had to wait for room.
    pub waits_total: u64,
}

/// Connections to one server, shared by the callers of one shard. Cloning shares the pool.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

type PushHandler = Rc<dyn Fn(&[Reply])>;
type WaitObserver = Rc<dyn Fn(Duration)>;

struct Inner {
    config: PoolConfig,
    links: RefCell<Vec<Rc<Link>>>,
    dialling: Cell<usize>,
    dial_failure: RefCell<Option<NotSent>>,
    dial_after: Cell<Instant>,
    dial_pause: Cell<Duration>,
    changed: Notify,
    closed: Cell<bool>,
    push_handler: RefCell<Option<PushHandler>>,
    wait_observer: RefCell<Option<WaitObserver>>,
    nodes: RefCell<HashMap<String, Pool>>,
    waiting: Cell<usize>,
    opened: Cell<u64>,
    waits: Cell<u64>,
    wait_timeouts: Cell<u64>,
}

impl Drop for Inner {
    /// A pool that is let go without [`Pool::close`] leaves no connection behind.
    fn drop(&mut self) {
        for link in self.links.take() {
            link.end(Unknown::ConnectionLost);
        }
    }
}

struct Events(Weak<Inner>);

impl LinkEvents for Events {
    fn changed(&self) {
        if let Some(pool) = self.0.upgrade() {
            pool.links.borrow_mut().retain(|link| !link.has_ended());
            pool.changed.notify_all();
        }
    }

    fn pushed(&self, push: Vec<Reply>) {
        let handler = self.0.upgrade().and_then(|pool| pool.push_handler.borrow().clone());
        if let Some(handler) = handler {
            handler(&push);
        }
    }
}

impl Pool {
    /// A pool; it connects when the first call comes.
    pub fn new(config: PoolConfig) -> Self {
        Self(Rc::new(Inner {
            config,
            links: RefCell::default(),
            dialling: Cell::new(0),
            dial_failure: RefCell::default(),
            dial_after: Cell::new(shards::now()),
            dial_pause: Cell::new(DIAL_PAUSE),
            changed: Notify::new(),
            closed: Cell::new(false),
            push_handler: RefCell::default(),
            wait_observer: RefCell::default(),
            nodes: RefCell::default(),
            waiting: Cell::new(0),
            opened: Cell::new(0),
            waits: Cell::new(0),
            wait_timeouts: Cell::new(0),
        }))
    }

    /// Hands out-of-band messages (RESP3 push) to `handler`. It must not block; it may call the pool from a new task.
    pub fn set_push_handler(&self, handler: impl Fn(&[Reply]) + 'static) {
        *self.0.push_handler.borrow_mut() = Some(Rc::new(handler));
    }

    /// Tells `observer` how long each call waited for room on a full connection: zero for most, and the whole wait of a call
    /// that was turned away.
    pub fn set_wait_observer(&self, observer: impl Fn(Duration) + 'static) {
        *self.0.wait_observer.borrow_mut() = Some(Rc::new(observer));
    }

    fn waited(&self, full_since: Option<Instant>) {
        if let Some(observer) = &*self.0.wait_observer.borrow() {
            observer(full_since.map_or(Duration::ZERO, |since| shards::now() - since));
        }
    }

    /// Sends a command and waits for its reply. MOVED is followed once.
    ///
    /// # Errors
    /// [`CallError`]; an error reply is [`CallError::Server`].
    pub async fn call(&self, command: Command, deadline: Instant) -> Result<Reply, CallError> {
        let bytes = command.finish().ok_or(NotSent::Incomplete)?;
        self.call_bytes(bytes, deadline).await
    }

    /// Loads scripts and opens a connection, so that the first call need not.
    ///
    /// # Errors
    /// As [`call`](Self::call); calls try again by themselves.
    pub async fn warm_up(&self, scripts: &[&Script], deadline: Instant) -> Result<(), CallError> {
        for script in scripts {
            self.call(script.load(), deadline).await?;
        }
        Ok(())
    }

    /// Calls a script by its digest; loads it first where the server does not know it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn eval(&self, script: &Script, command: Command, deadline: Instant) -> Result<Reply, CallError> {
        let bytes = command.finish().ok_or(NotSent::Incomplete)?;
        match self.call_bytes(bytes.clone(), deadline).await {
            Err(CallError::Server(error)) if error.kind == ErrorKind::NoScript => {
                self.call(script.load(), deadline).await?;
                self.call_bytes(bytes, deadline).await
            }
            result => result,
        }
    }

    async fn call_bytes(&self, bytes: Bytes, deadline: Instant) -> Result<Reply, CallError> {
        match self.call_here(bytes.clone(), deadline).await {
            Err(CallError::Server(error)) => match &error.kind {
                ErrorKind::Moved { addr, .. } => match self.node(addr) {
                    Some(node) => {
                        // Boxed because a node is a pool like this one.
                        let there: Pin<Box<dyn Future<Output = _>>> = Box::pin(node.call_here(bytes, deadline));
                        there.await
                    }
                    None => Err(error.into()),
                },
                _ => Err(error.into()),
            },
            result => result,
        }
    }

    fn node(&self, addr: &str) -> Option<Pool> {
        let mut nodes = self.0.nodes.borrow_mut();
        if !nodes.contains_key(addr) {
            if nodes.len() >= NODES_MAX || self.0.closed.get() {
                return None;
            }
            let config = PoolConfig { endpoint: addr.to_owned(), ..self.0.config.clone() };
            nodes.insert(addr.to_owned(), Pool::new(config));
        }
        nodes.get(addr).cloned()
    }

    async fn call_here(&self, bytes: Bytes, deadline: Instant) -> Result<Reply, CallError> {
        loop {
            let link = self.link(deadline).await?;
            let (mut fate, sent) = link.submit(bytes.clone(), deadline);
            match shards::timeout_at(deadline, &mut fate).await {
                Ok(Ok(Fate::Replied(Reply::Error(error)))) => return Err(error.into()),
                Ok(Ok(Fate::Replied(reply))) => return Ok(reply),
                Ok(Ok(Fate::Lost(why))) => return Err(why.into()),
                Ok(Ok(Fate::Unsent)) => {}
                Ok(Err(_)) => return Err(Unknown::ConnectionLost.into()),
                Err(_) if sent.get() => return Err(Unknown::Deadline.into()),
                Err(_) => return Err(NotSent::Deadline.into()),
            }
        }
    }

    /// A connection with room.
    async fn link(&self, deadline: Instant) -> Result<Rc<Link>, NotSent> {
        let inner = &self.0;
        let give_up = deadline.min(shards::now() + inner.config.wait_max.max(inner.config.dial_timeout));
        let mut full_since: Option<Instant> = None;
        loop {
            if inner.closed.get() {
                return Err(NotSent::Closed);
            }
            if shards::now() >= deadline {
                return Err(NotSent::Deadline);
            }
            let least = self.least_loaded();
            let wants_more = least.as_ref().is_none_or(|link| link.load() > 0);
            if wants_more {
                self.dial_one_more();
            }
            if let Some(link) = least {
                if link.load() < inner.config.pipeline_max {
                    self.waited(full_since);
                    return Ok(link);
                }
                let since = *full_since.get_or_insert_with(|| {
                    inner.waits.set(inner.waits.get() + 1);
                    shards::now()
                });
                if shards::now() >= since + inner.config.wait_max {
                    inner.wait_timeouts.set(inner.wait_timeouts.get() + 1);
                    self.waited(full_since);
                    return Err(NotSent::PoolWait);
                }
            } else if inner.dialling.get() == 0 {
                let failure = inner.dial_failure.borrow().clone();
                return Err(failure.unwrap_or(NotSent::PoolWait));
            }
            let until = full_since.map_or(give_up, |since| give_up.min(since + inner.config.wait_max));
            inner.waiting.set(inner.waiting.get() + 1);
            let woken = shards::timeout_at(until, inner.changed.notified()).await;
            inner.waiting.set(inner.waiting.get() - 1);
            if woken.is_err() && full_since.is_none() && shards::now() >= give_up {
                return Err(if give_up == deadline { NotSent::Deadline } else { NotSent::PoolWait });
            }
        }
    }

    fn least_loaded(&self) -> Option<Rc<Link>> {
        let links = self.0.links.borrow().clone();
        links.into_iter().filter(|link| link.takes_commands()).min_by_key(|link| link.load())
    }

    /// Starts a dial unless there are enough connections, or the last dial failed a moment ago.
    fn dial_one_more(&self) {
        let inner = &self.0;
        let open = inner.links.borrow().iter().filter(|link| link.takes_commands()).count();
        if open + inner.dialling.get() >= inner.config.connections_max || shards::now() < inner.dial_after.get() {
            return;
        }
        // One at a time: a server that is down is asked once, not once a caller.
        if inner.dialling.get() > 0 {
            return;
        }
        inner.dialling.set(1);
        let pool = self.clone();
        shards::spawn(async move { pool.dial().await });
    }

    async fn dial(&self) {
        let inner = &self.0;
        let deadline = shards::now() + inner.config.dial_timeout;
        let ready = handshake::connect(&inner.config, &inner.config.endpoint, deadline).await;
        inner.dialling.set(0);
        match ready {
            Ok(ready) => {
                inner.dial_pause.set(DIAL_PAUSE);
                inner.opened.set(inner.opened.get() + 1);
                let times = Times {
                    io_timeout: inner.config.io_timeout,
                    idle_max: inner.config.idle_max,
                    retire_at: shards::now() + spread(inner.config.lifetime_max, 10),
                };
                let link = Link::start(ready, times, Rc::new(Events(Rc::downgrade(inner))));
                if inner.closed.get() {
                    link.retire();
                } else {
                    inner.links.borrow_mut().push(link);
                }
            }
            Err(error) => {
                inner.dial_after.set(shards::now() + spread(inner.dial_pause.get(), 2));
                inner.dial_pause.set((inner.dial_pause.get() * 2).min(DIAL_PAUSE_MAX));
                *inner.dial_failure.borrow_mut() = Some(error);
            }
        }
        inner.changed.notify_all();
    }

    /// Takes no more calls, waits for the replies that are due, closes the connections.
    pub async fn close(&self) {
        self.0.closed.set(true);
        let nodes: Vec<Pool> = self.0.nodes.borrow().values().cloned().collect();
        for node in nodes {
            let closing: Pin<Box<dyn Future<Output = ()>>> = Box::pin(node.close());
            closing.await;
        }
        let links = self.0.links.borrow().clone();
        links.iter().for_each(|link| link.retire());
        let deadline = shards::now() + self.0.config.io_timeout;
        while links.iter().any(|link| !link.has_ended()) {
            if shards::timeout_at(deadline, self.0.changed.notified()).await.is_err() {
                break;
            }
        }
        links.iter().for_each(|link| link.end(Unknown::ConnectionLost));
        self.0.changed.notify_all();
    }

    /// What it is doing.
    pub fn stats(&self) -> PoolStats {
        let links = self.0.links.borrow();
        PoolStats {
            connections: links.len(),
            in_flight: links.iter().map(|link| link.load()).sum(),
            waiting: self.0.waiting.get(),
            opened_total: self.0.opened.get(),
            wait_timeouts_total: self.0.wait_timeouts.get(),
            waits_total: self.0.waits.get(),
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("endpoint", &self.0.config.endpoint).field("stats", &self.stats()).finish()
    }
}

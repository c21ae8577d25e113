//! Accepting connections on one shard, up to a stop.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use shards::BufferPool;
use shards::net::{TcpListener, TcpStream};
use shards::sync::{Gate, Notify};

use super::config::HttpConfig;
use super::connection;
use super::date::DateCache;
use super::gone::ClientGone;
use super::parser::Limits;
use super::request::Request;
use super::response::{Answered, Responder};
use super::sweep::Sweep;
use super::wire::Phase;
use crate::race::{First, race};

/// Longest time between two looks at the deadlines and the date.
const TICK_MAX: Duration = Duration::from_millis(100);
const TICK_MIN: Duration = Duration::from_millis(5);
/// Rest after a failed accept, which mostly means that descriptors ran out.
const ACCEPT_REST: Duration = Duration::from_millis(20);
/// Connections accepted before other tasks get a turn.
const ACCEPTS_IN_A_ROW: usize = 64;
/// Connections that are being told about the cap at one time; those beyond are closed without a word.
const TURNED_AWAY_MAX: usize = 256;

/// Answers requests.
pub trait Handler {
    /// Answers one request through `responder`. A panic is answered 500 and ends the connection, nothing else.
    fn handle(
        &self,
        request: &Request<'_>,
        client: &ClientGone,
        responder: Responder<'_>,
    ) -> impl Future<Output = Answered>;
}

/// Is told what happens, for metrics. All calls come from the server's shard.
pub trait Observer {
    /// A handler has answered; `route` as it said (or [`super::ROUTE_NONE`]), `elapsed` since the request's last bytes
    /// were read.
    fn answered(&self, route: usize, status: u16, elapsed: Duration);
    /// A request was refused before any handler saw it.
    fn refused(&self, status: u16, elapsed: Duration);
    /// A client was too slow.
    fn timed_out(&self, phase: Phase);
    /// A handler has panicked; [`Observer::answered`] with 500 follows.
    fn handler_panicked(&self);
    /// A connection was accepted and is served.
    fn connection_opened(&self);
    /// A served connection has ended.
    fn connection_closed(&self);
    /// A connection over the cap was closed.
    fn turned_away(&self);
    /// Accepting has failed; it is tried again after a rest.
    fn accept_failed(&self, error: &io::Error);
}

/// What the connections of a shard share.
pub(super) struct Shared<H, O> {
    pub(super) handler: Rc<H>,
    pub(super) observer: Rc<O>,
    pub(super) config: HttpConfig,
    pub(super) limits: Rc<Limits>,
    pub(super) pool: BufferPool,
    pub(super) sweep: Rc<Sweep>,
    pub(super) date: DateCache,
    pub(super) stopping: Cell<bool>,
    /// Connections served, and connections being turned away.
    served: Cell<usize>,
    refused: Cell<usize>,
    ended: Notify,
}

/// Serves connections from `listener` until `stop` is closed: then it accepts no more, lets the requests in progress
/// finish with `Connection: close`, closes idle connections, and returns when the last connection has ended.
///
/// Bounded by `config`; how long a handler takes is the handler's business.
pub async fn serve<H: Handler + 'static, O: Observer + 'static>(
    listener: TcpListener,
    handler: Rc<H>,
    observer: Rc<O>,
    config: HttpConfig,
    stop: Gate,
) {
    let times = config.timeouts;
    let shortest = times.head.min(times.body).min(times.idle).min(times.write);
    let shared = Rc::new(Shared {
        handler,
        observer,
        limits: Rc::new(config.limits()),
        pool: BufferPool::new(config.buffer_size(), config.buffers_kept),
        sweep: Rc::new(Sweep::new((shortest / 8).clamp(TICK_MIN, TICK_MAX), shards::now())),
        config,
        date: DateCache::default(),
        stopping: Cell::new(false),
        served: Cell::new(0),
        refused: Cell::new(0),
        ended: Notify::new(),
    });
    shared.date.refresh(shards::unix_micros() / 1_000_000);
    let over = Gate::new();
    let clock = shards::spawn(keep_time(Rc::clone(&shared), over.clone()));
    accept(&listener, &shared, &stop).await;
    drop(listener);
    shared.stopping.set(true);
    shared.sweep.wake_all();
    while shared.served.get() + shared.refused.get() > 0 {
        shared.ended.notified().await;
    }
    over.close();
    if let Err(panicked) = clock.await {
        tracing::error!(message = panicked.message(), "the HTTP server's clock task failed");
    }
}

async fn keep_time<H, O>(shared: Rc<Shared<H, O>>, over: Gate) {
    while race(over.closed(), shards::sleep(shared.sweep.tick_length())).await == First::Right(()) {
        shared.date.refresh(shards::unix_micros() / 1_000_000);
        shared.sweep.advance(shards::now());
    }
}

async fn accept<H: Handler + 'static, O: Observer + 'static>(
    listener: &TcpListener,
    shared: &Rc<Shared<H, O>>,
    stop: &Gate,
) {
    let mut in_a_row = 0;
    loop {
        match race(stop.closed(), listener.accept()).await {
            First::Left(()) => return,
            First::Right(Ok((stream, _))) => admit(stream, shared),
            First::Right(Err(error)) => {
                shared.observer.accept_failed(&error);
                if race(stop.closed(), shards::sleep(ACCEPT_REST)).await == First::Left(()) {
                    return;
                }
            }
        }
        in_a_row = (in_a_row + 1) % ACCEPTS_IN_A_ROW;
        if in_a_row == 0 {
            shards::yield_now().await;
        }
    }
}

fn admit<H: Handler + 'static, O: Observer + 'static>(stream: TcpStream, shared: &Rc<Shared<H, O>>) {
    let welcome = shared.served.get() < shared.config.connections_max;
    if welcome {
        shared.observer.connection_opened();
    } else {
        shared.observer.turned_away();
        if shared.refused.get() >= TURNED_AWAY_MAX {
            return;
        }
    }
    let presence = Presence::new(Rc::clone(shared), welcome);
    // The task is counted, ends by its deadlines, and is waited for by `serve`.
    shards::spawn(async move {
        connection::run(stream, Rc::clone(&presence.shared), welcome).await;
        drop(presence);
    });
}

/// Counts a connection as long as it lasts, however its task ends.
struct Presence<H, O: Observer> {
    shared: Rc<Shared<H, O>>,
    welcome: bool,
}

impl<H, O: Observer> Presence<H, O> {
    fn new(shared: Rc<Shared<H, O>>, welcome: bool) -> Self {
        let presence = Self { shared, welcome };
        let count = presence.count();
        count.set(count.get() + 1);
        presence
    }

    fn count(&self) -> &Cell<usize> {
        if self.welcome { &self.shared.served } else { &self.shared.refused }
    }
}

impl<H, O: Observer> Drop for Presence<H, O> {
    fn drop(&mut self) {
        let count = self.count();
        count.set(count.get() - 1);
        if self.welcome {
            self.shared.observer.connection_closed();
        }
        if self.shared.stopping.get() {
            self.shared.ended.notify_one();
        }
    }
}

//! One shard's life: build, serve, drain.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use shards::mailbox::{Receiver, Sender};
use shards::net::{ListenOptions, TcpListener};
use shards::sync::{Gate, Queue};
use shards::{JoinHandle, ShardContext};

use super::Role;
use super::control::{Control, Notice};
use super::pools::{postgres_pool, redis_pool, rocketmq_client};
use crate::api::Api;
use crate::config::{Config, IdentityMode};
use crate::fulfil::{Fulfil, FulfilLimits};
use crate::http::{HttpConfig, Observer, Phase, Timeouts};
use crate::identity::Identity;
use crate::observe::allocator;
use crate::observe::metrics::{Metrics, Refusal, Route};
use crate::observe::trace::{Tracer, TracerSeed};
use crate::ports::{EventBus, MessageSource, Reservations, ResultLookup};
use crate::query::QueryService;
use crate::recovery::{BookWatch, PendingScanner, Projector, ReleaseTask};
use crate::sale::Sales;
use crate::services::{
    InboxOutcomes, PostgresOrders, RedisBoard, RedisPending, RedisReservations, Releases, ReserveLimits, Results,
    RocketMqBus, RocketMqSource, Scripts, Shared,
};
use crate::submit::{Orphan, SubmitService};

/// Unsent messages in hand, per shard; the pending index keeps the rest.
pub(super) const ORPHANS_MAX: usize = 4_096;
/// Longest wait for the services at the start.
const WARM_UP: Duration = Duration::from_secs(3);
/// How often a shard looks how late it is.
const LOOP_LOOK: Duration = Duration::from_millis(100);
/// PostgreSQL connections of compensation and projection, and again of reconciliation, one process.
const RECOVERY_CONNECTIONS: usize = 1;
/// The projector stays this much longer behind than an order transaction may take.
const PROJECTION_MARGIN: Duration = Duration::from_secs(2);
/// How often the lag of the topic is asked for.
const LAG_EVERY: Duration = Duration::from_secs(5);

/// How a shard ended.
pub(super) enum ShardEnd {
    /// As asked.
    Stopped {
        /// Messages let go unfinished.
        unfinished: usize,
    },
    /// It could not be built.
    Failed(String),
    /// A bug.
    Panicked(String),
}

impl ShardEnd {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Stopped { .. } => "stopped".to_owned(),
            Self::Failed(reason) => reason.clone(),
            Self::Panicked(message) => format!("panic: {message}"),
        }
    }
}

type Submit = SubmitService<RedisReservations, RocketMqBus<RedisReservations>>;
type Worker = Fulfil<RocketMqSource, PostgresOrders, RedisBoard>;

/// What a shard consists of, in the order in which it is taken down.
struct Parts {
    http: Option<JoinHandle<()>>,
    accepting: Gate,
    worker: Option<WorkerParts>,
    submit: Option<SubmitParts>,
    looking: Option<(Rc<Results>, JoinHandle<()>)>,
    scanning: Option<JoinHandle<()>>,
    /// Tasks that nothing else waits for, with their names; they end by `stopping`.
    background: Vec<(&'static str, JoinHandle<()>)>,
    stopping: Gate,
    redis: Vec<proto_clients::redis::Pool>,
    postgres: Vec<proto_clients::postgres::Pool>,
    /// The one of order transactions.
    orders: Option<proto_clients::postgres::Pool>,
    rocketmq: Vec<proto_clients::rocketmq::Client>,
}

struct WorkerParts {
    worker: Rc<Worker>,
    working: JoinHandle<usize>,
    board: RedisBoard,
    projecting: JoinHandle<()>,
}

struct SubmitParts {
    orphans: Rc<Queue<Orphan>>,
    orphan_task: JoinHandle<()>,
    bus: Rc<RocketMqBus<RedisReservations>>,
    bus_task: JoinHandle<()>,
    book: Rc<RedisReservations>,
    book_task: JoinHandle<()>,
}

/// Runs one shard to its end.
pub(super) async fn run(
    config: Arc<Config>,
    role: Role,
    context: ShardContext,
    public: Option<SocketAddr>,
    control: Option<Receiver<Control>>,
    notices: Sender<Notice>,
    spans: TracerSeed,
) -> ShardEnd {
    let Some(control) = control else { return ShardEnd::Failed("no mailbox".to_owned()) };
    let metrics = Rc::new(Metrics::of_shard(context.index));
    let tracer = spans.tracer(&metrics);
    drop(spans);
    let parts = match build(&config, role, &context, public, &metrics, &tracer) {
        Ok(parts) => parts,
        Err(reason) => return ShardEnd::Failed(reason),
    };
    for pool in &parts.redis {
        let metrics = metrics.clone();
        pool.set_wait_observer(move |wait| metrics.redis_pool_wait.observe_duration(wait));
    }
    parts.warm_up(&config).await;
    live(parts, &config, &metrics, control, &notices).await
}

/// What a shard runs on, whichever side it is.
pub(super) trait Running {
    /// Copies what its parts count into the metrics.
    fn publish_levels(&self, metrics: &Metrics);

    /// The orderly stop; how many messages were let go unfinished.
    async fn take_down(self, config: &Config, metrics: &Metrics) -> usize;
}

/// From the first request to the last: says that the shard is up, answers scrapes, stops in order when told to.
pub(super) async fn live(
    running: impl Running,
    config: &Config,
    metrics: &Rc<Metrics>,
    mut control: Receiver<Control>,
    notices: &Sender<Notice>,
) -> ShardEnd {
    // Dropped with the shard: it waits for nothing but time.
    drop(shards::spawn(watch_loop(metrics.clone())));
    // The mailbox has room for a notice of every shard.
    let _ = notices.try_send(Notice::Started);
    until_stopped(&mut control, metrics, || running.publish_levels(metrics)).await;
    let snapshots = still_answering(control, metrics);
    let unfinished = running.take_down(config, metrics).await;
    drop(snapshots);
    ShardEnd::Stopped { unfinished }
}

/// How late timers fire, all along: a shard that does too much at a time is late for everything.
async fn watch_loop(metrics: Rc<Metrics>) {
    loop {
        let due = shards::now() + LOOP_LOOK;
        shards::sleep_until(due).await;
        let lag = shards::now().saturating_duration_since(due);
        metrics.shard_loop_lag.observe_duration(lag);
        let micros = i64::try_from(lag.as_micros()).unwrap_or(i64::MAX);
        metrics.shard_loop_lag_max_us.set(metrics.shard_loop_lag_max_us.get().max(micros));
    }
}

/// Answers scrapes until the stop. A main thread that is gone is one.
async fn until_stopped(control: &mut Receiver<Control>, metrics: &Metrics, levels: impl Fn()) {
    while let Some(Control::Snapshot(reply)) = control.recv().await {
        levels();
        publish_thread(metrics);
        // The scrape may have given up; the next one asks again.
        let _ = reply.try_send(metrics.clone());
    }
}

/// Copies what this thread has used into the metrics.
fn publish_thread(metrics: &Metrics) {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let micros = u64::try_from(cpu.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(cpu.tv_nsec).unwrap_or(0) / 1_000;
    metrics.shard_cpu_micros.raise_to(micros);
    metrics.shard_operations.raise_to(shards::stats::operations());
    metrics.shard_tasks.set(i64::try_from(shards::stats::tasks()).unwrap_or(i64::MAX));
    let allocated = allocator::of_this_thread();
    metrics.shard_allocations.raise_to(allocated.count);
    metrics.shard_allocated_bytes.raise_to(allocated.bytes);
}

/// Answers scrapes while the shard is taken down, so that the stop can be watched.
fn still_answering(mut control: Receiver<Control>, metrics: &Rc<Metrics>) -> JoinHandle<()> {
    let metrics = metrics.clone();
    shards::spawn(async move {
        while let Some(message) = control.recv().await {
            if let Control::Snapshot(reply) = message {
                let _ = reply.try_send((*metrics).clone());
            }
        }
    })
}

fn build(
    config: &Config,
    role: Role,
    context: &ShardContext,
    public: Option<SocketAddr>,
    metrics: &Rc<Metrics>,
    tracer: &Tracer,
) -> Result<Parts, String> {
    let shared = Shared::new(&config.resilience, metrics);
    let mut parts = Parts {
        http: None,
        accepting: Gate::new(),
        worker: None,
        submit: None,
        looking: None,
        scanning: None,
        background: Vec::new(),
        stopping: Gate::new(),
        redis: Vec::new(),
        postgres: Vec::new(),
        orders: None,
        rocketmq: Vec::new(),
    };
    let name = |part: &str| format!("{part}@{}#{}", std::process::id(), context.index);
    let submit = role.submits().then(|| parts.submit(config, name("submit"), &shared, tracer));
    // One scanner a process is enough; many processes share the work.
    if role.submits() && context.index == 0 {
        parts.scanner(config, &shared)?;
    }
    let query = match role.queries() {
        true => Some(parts.query(config, &shared)?),
        false => None,
    };
    if role.works() {
        parts.worker(config, name("worker"), context, &shared, tracer)?;
    }
    if let Some(addr) = public {
        let accepting = parts.accepting.clone();
        parts.http = Some(serve_http(config, addr, submit, query, metrics, tracer, accepting)?);
    }
    Ok(parts)
}

/// Serves the API on this shard's listener.
pub(super) fn serve_http<R, B, L>(
    config: &Config,
    addr: SocketAddr,
    submit: Option<Rc<SubmitService<R, B>>>,
    query: Option<Rc<QueryService<L>>>,
    metrics: &Rc<Metrics>,
    tracer: &Tracer,
    accepting: Gate,
) -> Result<JoinHandle<()>, String>
where
    R: Reservations + 'static,
    B: EventBus + 'static,
    L: ResultLookup + 'static,
{
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let listener = TcpListener::bind(addr, &options).map_err(|error| format!("cannot listen on {addr}: {error}"))?;
    let identity = Identity::new(&config.identity).map_err(|error| error.to_string())?;
    let api = Api::new(config, identity, submit, query, metrics.clone()).traced(tracer.clone());
    let observer = Rc::new(HttpMetrics(metrics.clone()));
    Ok(shards::spawn(crate::http::serve(listener, Rc::new(api), observer, http_config(config), accepting)))
}

fn http_config(config: &Config) -> HttpConfig {
    let server = &config.server;
    let user_field = match config.identity.mode {
        IdentityMode::GatewayHeader => Some(config.identity.gateway_header.to_ascii_lowercase()),
        IdentityMode::Jwt => None,
    };
    HttpConfig {
        connections_max: server.connections_max,
        user_field,
        timeouts: Timeouts {
            head: Duration::from_millis(server.head_timeout_ms),
            body: Duration::from_millis(server.body_timeout_ms),
            idle: Duration::from_millis(server.idle_timeout_ms),
            write: Duration::from_millis(server.write_timeout_ms),
        },
        ..HttpConfig::default()
    }
}

impl Parts {
    /// Connects before the first request does: its 90 ms are too short for dials and look-ups. What cannot be reached is
    /// said once; the process serves all the same, and refuses what needs it.
    async fn warm_up(&self, config: &Config) {
        let deadline = shards::now() + WARM_UP;
        let scripts = Scripts::new();
        for pool in &self.redis {
            if let Err(error) = pool.warm_up(&scripts.of_a_sale(), deadline).await {
                tracing::warn!(%error, "Redis is not reachable yet");
            }
        }
        for client in &self.rocketmq {
            if let Err(error) = client.warm_up(&config.rocketmq.topic, deadline).await {
                tracing::warn!(%error, "RocketMQ is not reachable yet");
            }
        }
        for pool in &self.postgres {
            if let Err(error) = pool.acquire(deadline).await {
                tracing::warn!(%error, "PostgreSQL is not reachable yet");
            }
        }
        if let Some(submit) = &self.submit
            && let Err(error) = submit.book.next_order_id(deadline).await
        {
            tracing::warn!(%error, "no order ids yet");
        }
    }

    fn background(&mut self, what: &'static str, task: impl Future<Output = ()> + 'static) {
        self.background.push((what, shards::spawn(task)));
    }

    fn submit(&mut self, config: &Config, name: String, shared: &Shared, tracer: &Tracer) -> Rc<Submit> {
        let metrics = &shared.metrics;
        let redis = redis_pool(config);
        self.redis.push(redis.clone());
        let client = rocketmq_client(config, name);
        self.rocketmq.push(client.clone());
        let orphans = Rc::new(Queue::new(ORPHANS_MAX));
        let limits = ReserveLimits {
            waiting_max: config.submit.admission_max,
            batch_max: config.submit.reserve_batch_max,
            second_try: Duration::from_millis(config.redis.io_timeout_ms),
        };
        let book = RedisReservations::new(redis, shared, limits, orphans.clone());
        let bus = RocketMqBus::new(
            client,
            config.rocketmq.topic.clone(),
            config.submit.admission_max + ORPHANS_MAX,
            config.submit.publish_batch_max,
            book.clone(),
            shared,
        );
        let service =
            SubmitService::new(book.clone(), bus.clone(), config.submit.clone(), metrics.clone(), orphans.clone());
        let service = Rc::new(service.traced(tracer.clone()));
        self.submit = Some(SubmitParts {
            orphans,
            orphan_task: shards::spawn(service.clone().run_orphans()),
            bus_task: shards::spawn(bus.clone().run()),
            bus,
            book_task: shards::spawn(book.clone().run()),
            book,
        });
        service
    }

    /// The pending scanner, on the book and the bus of this shard's submit path.
    fn scanner(&mut self, config: &Config, shared: &Shared) -> Result<(), String> {
        let Some(submit) = &self.submit else { return Ok(()) };
        let redis = redis_pool(config);
        let postgres = postgres_pool(config, 1).map_err(|error| error.to_string())?;
        let index = RedisPending::new(redis.clone(), postgres.clone(), shared);
        let (book, bus) = (submit.book.clone(), submit.bus.clone());
        let scanner = PendingScanner::new(index, book, bus, config.recovery.clone(), shared.metrics.clone());
        self.scanning = Some(shards::spawn(scanner.run(self.stopping.clone())));
        self.redis.push(redis);
        self.postgres.push(postgres);
        Ok(())
    }

    fn query(&mut self, config: &Config, shared: &Shared) -> Result<Rc<QueryService<Results>>, String> {
        let redis = redis_pool(config);
        self.redis.push(redis.clone());
        let postgres =
            postgres_pool(config, config.query.postgres_connections_max).map_err(|error| error.to_string())?;
        self.postgres.push(postgres.clone());
        let waiting_max = config.query.admission_max;
        let results = Results::new(redis, postgres, shared, waiting_max);
        self.looking = Some((results.clone(), shards::spawn(results.clone().run())));
        Ok(Rc::new(QueryService::new(results, config.query.clone(), shared.metrics.clone())))
    }

    fn worker(
        &mut self,
        config: &Config,
        name: String,
        context: &ShardContext,
        shared: &Shared,
        tracer: &Tracer,
    ) -> Result<(), String> {
        let metrics = &shared.metrics;
        let redis = redis_pool(config);
        self.redis.push(redis.clone());
        let client = rocketmq_client(config, name.clone());
        self.rocketmq.push(client.clone());
        let pool = |size| postgres_pool(config, size).map_err(|error| error.to_string());
        let orders = pool(config.postgres.order_connections_max)?;
        let side = pool(config.postgres.side_connections_max)?;
        self.postgres.extend([orders.clone(), side.clone()]);
        self.orders = Some(orders.clone());
        let level = |most: usize| i64::try_from(most).unwrap_or(i64::MAX);
        metrics.pg_connections_max.set(level(config.postgres.order_connections_max));
        metrics.mq_jobs_capacity.set(level(config.worker.queue_capacity));
        let mq = &config.rocketmq;
        let (invisible, poll) = (Duration::from_millis(mq.invisible_ms), Duration::from_millis(mq.poll_ms));
        let guard = shared.guards.rocketmq.clone();
        let source =
            || RocketMqSource::new(client.clone(), mq.topic.clone(), &mq.group, invisible, poll, guard.clone());
        let (topic, group) = (mq.topic.clone(), mq.group.clone());
        let store = PostgresOrders::new(orders, side, topic, group, name, shared);
        let board = RedisBoard::new(redis, shared);
        let limits = FulfilLimits {
            invisible,
            transaction: Duration::from_millis(config.postgres.transaction_timeout_ms),
            deliveries_max: mq.deliveries_max,
            drain: Duration::from_secs(config.lifecycle.drain_s),
        };
        let (settings, tracer) = (config.worker.clone(), tracer.clone());
        let worker = Fulfil::new(source(), store, board.clone(), settings, limits, metrics.clone(), tracer);
        let working = shards::spawn(worker.clone().run());
        let projecting = shards::spawn(board.clone().run());
        self.worker = Some(WorkerParts { worker, working, board, projecting });
        if context.index == 0 {
            let pause = Duration::from_millis(config.recovery.scan_ms);
            // Compensation has connections of its own: side writes of orders do not wait for it, nor it for them.
            let (postgres, board_redis) = (pool(RECOVERY_CONNECTIONS)?, redis_pool(config));
            self.postgres.push(postgres.clone());
            self.redis.push(board_redis.clone());
            // Reconciliation too: it reads much, and nobody waits for it.
            let (books, books_redis) = (pool(RECOVERY_CONNECTIONS)?, redis_pool(config));
            self.postgres.push(books.clone());
            self.redis.push(books_redis.clone());
            let sales = Sales::new(books, books_redis);
            let every = Duration::from_millis(config.recovery.reconcile_ms);
            let watch = BookWatch::new(sales, every, metrics.clone());
            self.background("book watch", watch.run(self.stopping.clone()));
            let outbox = Releases::new(board_redis.clone(), postgres.clone(), shared);
            let task = ReleaseTask::new(outbox, pause, metrics.clone());
            self.background("units on their way back", task.run(self.stopping.clone()));
            let lag = limits.transaction + PROJECTION_MARGIN;
            let outcomes = InboxOutcomes::new(board_redis, postgres, mq.group.clone(), lag, shared);
            let projector = Projector::new(outcomes, pause, metrics.clone());
            self.background("results shown again", projector.run(self.stopping.clone()));
        }
        // The shards' gauges are added up, so only one of them may know the lag of the whole topic.
        if context.index == 0 {
            self.background("lag watch", watch_lag(source(), metrics.clone(), self.stopping.clone()));
        }
        Ok(())
    }
}

impl Running for Parts {
    /// Copies what pools count into the metrics.
    fn publish_levels(&self, metrics: &Metrics) {
        let stats = self.redis.iter().map(proto_clients::redis::Pool::stats);
        let (mut open, mut opened, mut turned_away) = (0, 0, 0);
        for stats in stats {
            open += stats.connections as i64;
            opened += stats.opened_total;
            turned_away += stats.wait_timeouts_total;
        }
        metrics.redis_active_connections.set(open);
        metrics.redis_reconnects.raise_to(opened);
        metrics.redis_pool_timeouts.raise_to(turned_away);
        // A worker's order transactions are what must not wait; a process that makes none shows the pools it has.
        let pools = self.orders.as_ref().map_or(&*self.postgres, std::slice::from_ref);
        let (mut in_use, mut idle, mut empty) = (0, 0, 0);
        for stats in pools.iter().map(proto_clients::postgres::Pool::stats) {
            in_use += stats.in_use as i64;
            idle += stats.idle as i64;
            empty += stats.empty_total;
        }
        metrics.pg_acquired.set(in_use);
        metrics.pg_idle.set(idle);
        metrics.pg_empty_acquire.raise_to(empty);
    }

    /// Spec section 8: stop accepting, stop pulling, drain, close RocketMQ, close the pools.
    async fn take_down(self, config: &Config, metrics: &Metrics) -> usize {
        let drain = Duration::from_secs(config.lifecycle.drain_s);
        let deadline = shards::now() + drain;
        self.stopping.close();
        self.accepting.close();
        if let Some(parts) = &self.worker {
            parts.worker.stop();
        }
        if let Some(http) = self.http
            && shards::timeout_at(deadline, http).await.is_err()
        {
            tracing::warn!("requests in hand were cut off at the end of the drain time");
        }
        let mut unfinished = 0;
        if let Some(WorkerParts { working, board, projecting, .. }) = self.worker {
            match working.await {
                Ok(left) => unfinished = left,
                Err(_) => metrics.task_panics.inc(),
            }
            board.close();
            finish("result projection", projecting, deadline).await;
        }
        if let Some(scanning) = self.scanning {
            // Before the sends and marks that it feeds.
            finish("pending scanner", scanning, deadline).await;
        }
        if let Some(submit) = self.submit {
            // Each hop feeds the next one: unsent messages, then their sends, then their marks.
            submit.book.close_reserving();
            submit.orphans.close();
            finish("unsent messages", submit.orphan_task, deadline).await;
            submit.bus.close();
            finish("sends", submit.bus_task, deadline).await;
            submit.book.close();
            finish("reservation marks", submit.book_task, deadline).await;
        }
        if let Some((results, looking)) = self.looking {
            results.close();
            finish("looks at results", looking, deadline).await;
        }
        for (what, task) in self.background {
            finish(what, task, deadline).await;
        }
        for client in &self.rocketmq {
            client.close().await;
        }
        for pool in &self.redis {
            pool.close().await;
        }
        for pool in &self.postgres {
            pool.close().await;
        }
        unfinished
    }
}

/// Waits for a task that has been told to end, within the drain time and a little more.
pub(super) async fn finish(what: &str, task: JoinHandle<()>, deadline: std::time::Instant) {
    let deadline = deadline.max(shards::now() + Duration::from_secs(1));
    match shards::timeout_at(deadline, task).await {
        Ok(Ok(())) => {}
        Ok(Err(panicked)) => tracing::error!(what, message = panicked.message(), "a task panicked"),
        Err(_) => tracing::warn!(what, "not finished within the drain time"),
    }
}

async fn watch_lag(source: RocketMqSource, metrics: Rc<Metrics>, stopping: Gate) {
    while !stopping.is_closed() {
        match source.lag(shards::now() + Duration::from_secs(2)).await {
            Ok(lag) => metrics.mq_consumer_lag.set(i64::try_from(lag).unwrap_or(i64::MAX)),
            Err(error) => tracing::warn!(%error, "the lag of the topic is not known"),
        }
        crate::race::race(shards::sleep(LAG_EVERY), stopping.closed()).await;
    }
}

/// HTTP events as metrics.
struct HttpMetrics(Rc<Metrics>);

impl Observer for HttpMetrics {
    fn answered(&self, route: usize, status: u16, elapsed: Duration) {
        let route = [Route::Submit, Route::Query, Route::Admin].into_iter().find(|known| *known as usize == route);
        self.0.http(route.unwrap_or(Route::Unmatched), status, elapsed);
    }

    fn refused(&self, status: u16, elapsed: Duration) {
        self.0.http(Route::Unmatched, status, elapsed);
    }

    fn timed_out(&self, phase: Phase) {
        self.0.http_timeouts[phase as usize].inc();
    }

    fn handler_panicked(&self) {
        self.0.task_panics.inc();
        tracing::error!("a request handler panicked");
    }

    fn connection_opened(&self) {
        self.0.http_connections.add(1);
    }

    fn connection_closed(&self) {
        self.0.http_connections.add(-1);
    }

    fn turned_away(&self) {
        self.0.admission_rejected[Refusal::Connections as usize].inc();
    }

    fn accept_failed(&self, error: &std::io::Error) {
        tracing::warn!(%error, "accept failed");
    }
}

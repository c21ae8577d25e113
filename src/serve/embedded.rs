//! A shard in embedded mode: the same capabilities, on the book, the journal and the order store.
//!
//! Shard 0 owns the book and makes the orders; the others submit and query through its mailbox.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shards::mailbox::{self, Receiver, Sender};
use shards::sync::{Gate, Queue};
use shards::{JoinHandle, ShardContext};

use super::control::{Control, Notice};
use super::shard::{ORPHANS_MAX, Running, ShardEnd, finish, live, serve_http};
use crate::config::{Config, Submit, Worker};
use crate::embedded::book::Book;
use crate::embedded::data;
use crate::embedded::journal::{End, Journal};
use crate::embedded::lane::{Lane, Message};
use crate::embedded::ports::{
    BookBoard, BookLookup, BookSource, Desk, EmbeddedReservations, JournalBus, OrderIdBlocks, StoredOrders,
};
use crate::embedded::store::Store;
use crate::fulfil::{Fulfil, FulfilLimits};
use crate::observe::metrics::Metrics;
use crate::observe::trace::{Tracer, TracerSeed};
use crate::query::QueryService;
use crate::submit::SubmitService;

/// Messages that may wait for the owner of the book: looks one by one, reservations in batches.
const MESSAGES_MAX: usize = 8_192;
/// Orders in one transaction of the store. Handing them over costs nothing here and a commit costs a sync, so batches are
/// as large as what waits.
const ORDERS_MAX: usize = 512;

/// What the shards of an embedded process share, until each has taken its part.
pub(super) struct Embedded {
    owner: Mutex<Option<Owner>>,
    desks: Mutex<Vec<Sender<Message>>>,
    stores: Mutex<Vec<Store>>,
    blocks: OrderIdBlocks,
    segment_bytes: u64,
}

/// What shard 0 takes.
struct Owner {
    book: Book,
    end: End,
    journal: std::path::PathBuf,
    messages: Receiver<Message>,
}

impl Embedded {
    /// Parts for `count` shards on what was read from the data folder, and the main thread's own way to the owner.
    pub(super) fn new(config: &Config, count: usize, book: Book, end: End, store: Store) -> (Self, Sender<Message>) {
        let (sender, messages) = mailbox::bounded(MESSAGES_MAX);
        let blocks = OrderIdBlocks::after(book.order_id_max(), shards::unix_micros() / 1_000);
        let journal = data::journal_folder(&config.embedded.data);
        let embedded = Self {
            owner: Mutex::new(Some(Owner { book, end, journal, messages })),
            desks: Mutex::new(vec![sender.clone(); count.saturating_sub(1)]),
            stores: Mutex::new(vec![store; count]),
            blocks,
            segment_bytes: config.embedded.segment_mib << 20,
        };
        (embedded, sender)
    }
}

fn take<T>(parts: &Mutex<Vec<T>>) -> Option<T> {
    parts.lock().ok()?.pop()
}

struct Parts {
    http: Option<JoinHandle<()>>,
    accepting: Gate,
    book: Rc<EmbeddedReservations>,
    reserving: JoinHandle<()>,
    orphans: Rc<Queue<crate::submit::Orphan>>,
    orphan_task: JoinHandle<()>,
    owner: Option<OwnerParts>,
}

struct OwnerParts {
    lane: Rc<Lane>,
    committing: JoinHandle<()>,
    serving: JoinHandle<()>,
    worker: Rc<Fulfil<BookSource, StoredOrders, BookBoard>>,
    working: JoinHandle<usize>,
}

/// Runs one shard to its end.
pub(super) async fn run(
    config: Arc<Config>,
    context: ShardContext,
    public: SocketAddr,
    control: Option<Receiver<Control>>,
    notices: Sender<Notice>,
    embedded: Arc<Embedded>,
    spans: TracerSeed,
) -> ShardEnd {
    let Some(control) = control else { return ShardEnd::Failed("no mailbox".to_owned()) };
    let metrics = Rc::new(Metrics::of_shard(context.index));
    let tracer = spans.tracer(&metrics);
    drop(spans);
    let parts = match build(&config, &context, public, &metrics, &embedded, &tracer).await {
        Ok(parts) => parts,
        Err(reason) => return ShardEnd::Failed(reason),
    };
    drop(embedded);
    live(parts, &config, &metrics, control, &notices).await
}

async fn build(
    config: &Config,
    context: &ShardContext,
    public: SocketAddr,
    metrics: &Rc<Metrics>,
    embedded: &Embedded,
    tracer: &Tracer,
) -> Result<Parts, String> {
    let store = take(&embedded.stores).ok_or("no way to the order store")?;
    let owner = match context.index {
        0 => Some(own(config, embedded, store.clone(), metrics).await?),
        _ => None,
    };
    let desk = match &owner {
        Some(owner) => Desk::Here(owner.lane.clone()),
        None => Desk::There(take(&embedded.desks).ok_or("no way to the book")?),
    };
    let settings = submit_settings(&config.submit);
    let orphans = Rc::new(Queue::new(ORPHANS_MAX));
    let (admitted, blocks) = (settings.admission_max, embedded.blocks.clone());
    let book = EmbeddedReservations::new(desk.clone(), admitted, blocks, metrics.clone());
    let submit =
        Rc::new(SubmitService::new(book.clone(), Rc::new(JournalBus), settings, metrics.clone(), orphans.clone()));
    let lookup = Rc::new(BookLookup { desk, store });
    let query = Rc::new(QueryService::new(lookup, config.query.clone(), metrics.clone()));
    let accepting = Gate::new();
    let orphan_task = shards::spawn(submit.clone().run_orphans());
    let http = serve_http(config, public, Some(submit), Some(query), metrics, tracer, accepting.clone())?;
    Ok(Parts {
        http: Some(http),
        accepting,
        reserving: shards::spawn(book.clone().run()),
        book,
        orphans,
        orphan_task,
        owner,
    })
}

/// A commit takes the place of Redis and of the send, so it may take the time of both.
fn submit_settings(submit: &Submit) -> Submit {
    let reserve_ms = submit.deadline_ms.saturating_sub(submit.validate_ms + submit.encode_ms);
    Submit { reserve_ms, ..submit.clone() }
}

async fn own(config: &Config, embedded: &Embedded, store: Store, metrics: &Rc<Metrics>) -> Result<OwnerParts, String> {
    let owner = embedded.owner.lock().ok().and_then(|mut owner| owner.take()).ok_or("the book is taken")?;
    let journal = Journal::take_up(&owner.journal, owner.end, embedded.segment_bytes)
        .await
        .map_err(|error| format!("cannot write the journal in {}: {error}", owner.journal.display()))?;
    let lane = Lane::new(owner.book, journal, embedded.segment_bytes, store.clone(), metrics.clone());
    let source = BookSource::new(
        lane.clone(),
        Duration::from_millis(config.rocketmq.invisible_ms),
        Duration::from_millis(config.rocketmq.poll_ms),
    );
    let limits = FulfilLimits {
        invisible: Duration::from_millis(config.rocketmq.invisible_ms),
        transaction: Duration::from_millis(config.postgres.transaction_timeout_ms),
        // A promise in the journal is kept however often it takes: there is no dead-letter topic to give it up to.
        deliveries_max: u32::MAX,
        drain: Duration::from_secs(config.lifecycle.drain_s),
    };
    let settings = Worker {
        workers: ORDERS_MAX,
        queue_capacity: ORDERS_MAX,
        receive_max: ORDERS_MAX,
        pullers: 1,
        sku_batches_max: 1,
        ..config.worker.clone()
    };
    let board = BookBoard(lane.clone());
    // The journal's records carry no trace: a request's spans end with its answer.
    let (store, metrics) = (StoredOrders(store), metrics.clone());
    let worker = Fulfil::new(source, store, board, settings, limits, metrics, Tracer::off());
    Ok(OwnerParts {
        committing: shards::spawn(lane.clone().run()),
        serving: shards::spawn(lane.clone().serve(owner.messages)),
        working: shards::spawn(worker.clone().run()),
        worker,
        lane,
    })
}

impl Running for Parts {
    fn publish_levels(&self, metrics: &Metrics) {
        if let Some(owner) = &self.owner {
            metrics.mq_consumer_lag.set(i64::try_from(owner.lane.waiting()).unwrap_or(i64::MAX));
        }
    }

    /// Stop accepting, drain requests, then (on shard 0) the other shards' wishes, the orders and the journal.
    async fn take_down(self, config: &Config, metrics: &Metrics) -> usize {
        let deadline = shards::now() + Duration::from_secs(config.lifecycle.drain_s);
        self.accepting.close();
        if let Some(http) = self.http
            && shards::timeout_at(deadline, http).await.is_err()
        {
            tracing::warn!("requests in hand were cut off at the end of the drain time");
        }
        self.book.close();
        finish("reservations", self.reserving, deadline).await;
        self.orphans.close();
        finish("unsent messages", self.orphan_task, deadline).await;
        let Some(owner) = self.owner else { return 0 };
        // Ends when every other shard, and the main thread, has let go of its way here.
        finish("other shards", owner.serving, deadline).await;
        owner.worker.stop();
        let unfinished = match owner.working.await {
            Ok(left) => left,
            Err(_) => {
                metrics.task_panics.inc();
                0
            }
        };
        owner.lane.close();
        finish("the journal", owner.committing, deadline).await;
        unfinished
    }
}

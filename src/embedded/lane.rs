//! The owner of the book: one shard, which decides alone, in order, and makes durable before it answers.
//!
//! Whatever waits while a commit is on its way to the disk is decided together and committed together. Nothing is entered
//! into the book before it is durable, and nothing is answered before it is entered: not the winners, and not those whose
//! answer rests on a winner of the same commit.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::mailbox;
use shards::sync::{Notify, Queue, oneshot};

use super::book::{Book, Sale};
use super::journal::{CommitError, Journal, compact};
use super::record::{Entry, Opening};
use super::store::Store;
use super::tell;
use crate::domain::{ReservationState, ReserveOutcome, Sku, UserId, Uuid};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::Metrics;
use crate::ports::{PortError, ReserveRequest, ResultRow, Standing};

/// Batches in one commit. With [`BATCH_MAX`] they stay far below the longest frame.
const COMMIT: Limits = Limits { batch_max: 32, in_flight_max: 1 };
/// Requests of one shard in one batch.
pub const BATCH_MAX: usize = 1_024;
/// Batches and changes that may wait for the next commit.
const WAITING_MAX: usize = 1_024;
/// A snapshot is due when the sealed segments hold this many times what the last snapshot did, and at least
/// [`SEALED_MIN`] segments.
const SNAPSHOT_GROWTH: u64 = 2;
const SEALED_MIN: u64 = 4;

/// The answers to a batch of requests.
pub type Answers = Vec<Result<ReserveOutcome, PortError>>;

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The sale is there on other terms.
    #[error("the sale is there on other terms: {0:?}")]
    Different(Opening),
    /// There is no such sale.
    #[error("there is no sale {0}; make it with `seckill activity create`")]
    Unknown(Sku),
    /// It could not be made durable.
    #[error("{0}")]
    Port(#[from] PortError),
}

/// What an operator is told of a sale.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the sale")]
pub struct SaleView {
    pub activity_id: i64,
    pub sku_id: i64,
    pub start_ms: u64,
    pub end_ms: u64,
    pub expire_at_ms: u64,
    pub total: i64,
    pub stock: i64,
    pub buyers: usize,
    pub closed: bool,
}

impl SaleView {
    fn of(sale: &Sale) -> Self {
        let Opening { sku, start_ms, end_ms, expire_at_ms, total } = sale.opening;
        Self {
            activity_id: sku.activity.get(),
            sku_id: sku.sku.get(),
            start_ms,
            end_ms,
            expire_at_ms,
            total,
            stock: sale.stock,
            buyers: sale.buyers(),
            closed: sale.closed,
        }
    }
}

/// What another shard, or the main thread, asks of the owner.
pub enum Message {
    /// Decide these.
    Reserve(Vec<ReserveRequest>, mailbox::Sender<Answers>),
    /// What may this user know of this request?
    Look {
        /// Which sale.
        sku: Sku,
        /// Which request.
        request_id: Uuid,
        /// Who asks.
        user_id: UserId,
        /// Where the answer goes.
        reply: mailbox::Sender<Standing>,
    },
    /// Open a sale. `true`: it is new.
    Open(Opening, mailbox::Sender<Result<bool, ChangeError>>),
    /// Close a sale. `true`: it was open.
    Close(Sku, mailbox::Sender<Result<bool, ChangeError>>),
    /// Describe a sale.
    View(Sku, mailbox::Sender<Option<SaleView>>),
    /// Describe at most so many sales, those that end soonest first, without those that are over.
    Views(usize, mailbox::Sender<Vec<SaleView>>),
}

/// Asks the owner of the book from another thread.
///
/// # Errors
/// [`PortError::Overloaded`]: its mailbox is full, nothing was done. [`PortError::Internal`]: it gave no answer.
pub async fn ask<T: Send>(
    owner: &mailbox::Sender<Message>,
    message: impl FnOnce(mailbox::Sender<T>) -> Message,
) -> Result<T, PortError> {
    let (reply, mut answer) = mailbox::bounded(1);
    owner.try_send(message(reply)).map_err(|_| PortError::Overloaded)?;
    answer.recv().await.ok_or(PortError::Internal)
}

enum Job {
    Reserve(Vec<ReserveRequest>, oneshot::Sender<Answers>),
    Change(Entry, oneshot::Sender<Result<bool, ChangeError>>),
}

/// A reservation that is out for its order.
struct Out {
    until: Instant,
    attempt: u32,
}

/// The owner's state.
pub struct Lane {
    book: RefCell<Book>,
    journal: RefCell<Option<Journal>>,
    jobs: Rc<Queue<Job>>,
    store: Store,
    metrics: Rc<Metrics>,
    /// Reservations without an order, by number, each with the deliveries it has had.
    ready: RefCell<VecDeque<(u32, u32)>>,
    out: RefCell<HashMap<u32, Out>>,
    arrived: Notify,
    /// A snapshot that is being made; its size when it is done.
    snapshot: RefCell<Option<mailbox::Receiver<Option<u64>>>>,
    snapshot_bytes: Cell<u64>,
    segment_bytes: u64,
}

impl Lane {
    /// The owner of what was read at the start. Reservations that have no order yet are delivered again.
    pub fn new(book: Book, journal: Journal, segment_bytes: u64, store: Store, metrics: Rc<Metrics>) -> Rc<Self> {
        let open = (0..book.len()).filter_map(|number| {
            let open = book.reservation(number)?.state == ReservationState::MqSent;
            open.then(|| Some((u32::try_from(number).ok()?, 0)))?
        });
        let ready = RefCell::new(open.collect());
        Rc::new(Self {
            book: RefCell::new(book),
            journal: RefCell::new(Some(journal)),
            jobs: Rc::new(Queue::new(WAITING_MAX)),
            store,
            metrics,
            ready,
            out: RefCell::default(),
            arrived: Notify::new(),
            snapshot: RefCell::default(),
            snapshot_bytes: Cell::new(0),
            segment_bytes,
        })
    }

    /// Commits what comes until [`close`](Self::close). Units whose order was turned down before a crash go back first.
    pub async fn run(self: Rc<Self>) {
        self.release_rejected();
        let (lane, counter) = (self.clone(), self.metrics.clone());
        let commit = move |jobs| {
            let lane = lane.clone();
            async move { lane.commit(jobs).await }
        };
        group_commit::run(self.jobs.clone(), COMMIT, commit, move || counter.task_panics.inc()).await;
    }

    /// Takes nothing more; what waits is committed.
    pub fn close(&self) {
        self.jobs.close();
    }

    /// Serves other shards until every one of them is gone.
    pub async fn serve(self: Rc<Self>, mut messages: mailbox::Receiver<Message>) {
        while let Some(message) = messages.recv().await {
            let lane = self.clone();
            match message {
                Message::Look { sku, request_id, user_id, reply } => {
                    tell(&reply, self.standing(sku, &request_id, user_id));
                }
                Message::View(sku, reply) => tell(&reply, self.view(sku)),
                Message::Views(most, reply) => tell(&reply, self.views(most)),
                Message::Reserve(requests, reply) => {
                    shards::spawn(async move { tell(&reply, lane.reserve(requests).await) });
                }
                Message::Open(opening, reply) => {
                    shards::spawn(async move { tell(&reply, lane.open(opening).await) });
                }
                Message::Close(sku, reply) => {
                    shards::spawn(async move { tell(&reply, lane.close_sale(sku).await) });
                }
            }
        }
    }

    /// Decides requests; what is created is durable when this returns.
    pub async fn reserve(&self, requests: Vec<ReserveRequest>) -> Answers {
        let count = requests.len();
        let (answer, answered) = oneshot::channel();
        if self.jobs.try_push(Job::Reserve(requests, answer)).is_err() {
            return vec![Err(PortError::Overloaded); count];
        }
        // Dropped without an answer: a panic in the commit. It may have been made durable.
        answered.await.unwrap_or_else(|_| vec![Err(PortError::Internal); count])
    }

    async fn change(&self, entry: Entry) -> Result<bool, ChangeError> {
        let (answer, answered) = oneshot::channel();
        self.jobs.try_push(Job::Change(entry, answer)).map_err(|_| PortError::Overloaded)?;
        answered.await.map_err(|_| PortError::Internal)?
    }

    /// Opens a sale, in the journal and in the order store. The same terms again change nothing.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn open(&self, opening: Opening) -> Result<bool, ChangeError> {
        let new = self.change(Entry::Opened(opening)).await?;
        self.store.sale(opening, false).await?;
        Ok(new)
    }

    /// Closes a sale for good.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn close_sale(&self, sku: Sku) -> Result<bool, ChangeError> {
        let new = self.change(Entry::Closed(sku)).await?;
        let opening = self.book.borrow().sale(sku).map(|sale| sale.opening);
        if let Some(opening) = opening {
            self.store.sale(opening, true).await?;
        }
        Ok(new)
    }

    /// What an operator is told of a sale.
    pub fn view(&self, sku: Sku) -> Option<SaleView> {
        self.book.borrow().sale(sku).map(SaleView::of)
    }

    fn views(&self, most: usize) -> Vec<SaleView> {
        let now_ms = shards::unix_micros() / 1_000;
        let book = self.book.borrow();
        let mut views: Vec<_> = book.sales().map(SaleView::of).filter(|view| view.expire_at_ms > now_ms).collect();
        views.sort_by_key(|view| (view.end_ms, view.activity_id, view.sku_id));
        views.truncate(most);
        views
    }

    /// What a user may know of a request.
    pub fn standing(&self, sku: Sku, request_id: &Uuid, user_id: UserId) -> Standing {
        self.book.borrow().standing(sku, request_id, user_id)
    }

    async fn commit(&self, jobs: Vec<Job>) {
        let Some(mut journal) = self.journal.take() else {
            tracing::error!("an earlier commit panicked and took the journal with it; restart the process");
            return;
        };
        let mut batches = Vec::with_capacity(jobs.len());
        for job in jobs {
            match job {
                Job::Reserve(requests, answer) => batches.push((requests, answer)),
                Job::Change(entry, answer) => {
                    let changed = self.commit_change(&mut journal, entry).await;
                    // Whoever asked may be gone; the change stands.
                    let _ = answer.send(changed);
                }
            }
        }
        self.commit_batches(&mut journal, batches).await;
        self.maybe_compact(&mut journal);
        *self.journal.borrow_mut() = Some(journal);
    }

    async fn commit_change(&self, journal: &mut Journal, entry: Entry) -> Result<bool, ChangeError> {
        let new = match &entry {
            Entry::Opened(opening) => match self.book.borrow().sale(opening.sku) {
                None => true,
                Some(sale) if sale.opening == *opening => false,
                Some(sale) => return Err(ChangeError::Different(sale.opening)),
            },
            Entry::Closed(sku) => match self.book.borrow().sale(*sku) {
                None => return Err(ChangeError::Unknown(*sku)),
                Some(sale) => !sale.closed,
            },
            Entry::Released { request_id } => {
                let book = self.book.borrow();
                let made = book.number_of(request_id).and_then(|number| book.reservation(number));
                made.is_some_and(|made| made.state != ReservationState::Released)
            }
            Entry::Reserved(_) => false,
        };
        if !new {
            return Ok(false);
        }
        let mut payload = Vec::new();
        entry.encode(&mut payload);
        journal.commit(&payload).await.map_err(|error| port_error(&error))?;
        self.enter(&entry)?;
        Ok(true)
    }

    async fn commit_batches(
        &self,
        journal: &mut Journal,
        batches: Vec<(Vec<ReserveRequest>, oneshot::Sender<Answers>)>,
    ) {
        let requests: Vec<ReserveRequest> = batches.iter().flat_map(|(requests, _)| requests.iter().copied()).collect();
        if requests.is_empty() {
            return;
        }
        self.metrics.reserve_batch.observe(requests.len() as f64);
        let outcomes = self.book.borrow().decide(&requests, shards::unix_micros() / 1_000);
        let created = requests.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == ReserveOutcome::Created);
        let entries: Vec<Entry> = created.map(|(request, _)| Entry::Reserved(*request)).collect();
        let failure = self.commit_entries(journal, &entries).await.err();
        let mut answers = outcomes.into_iter().map(|outcome| failure.map_or(Ok(outcome), Err));
        for (requests, answer) in batches {
            // A shard that does not wait any more has given up on its callers already.
            let _ = answer.send(answers.by_ref().take(requests.len()).collect());
        }
    }

    async fn commit_entries(&self, journal: &mut Journal, entries: &[Entry]) -> Result<(), PortError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut payload = Vec::with_capacity(entries.len() * 100);
        entries.iter().for_each(|entry| entry.encode(&mut payload));
        journal.commit(&payload).await.map_err(|error| port_error(&error))?;
        for entry in entries {
            let number = u32::try_from(self.book.borrow().len());
            self.enter(entry)?;
            if let Ok(number) = number {
                self.ready.borrow_mut().push_back((number, 0));
            }
        }
        self.arrived.notify_one();
        Ok(())
    }

    fn enter(&self, entry: &Entry) -> Result<(), PortError> {
        self.book.borrow_mut().enter(entry).map_err(|contradiction| {
            // It was decided against this very book: a bug.
            tracing::error!(%contradiction, "a durable entry contradicts the book");
            PortError::Internal
        })
    }

    /// Shows what became of requests. Units of those turned down go back.
    pub fn settle(self: &Rc<Self>, row: &ResultRow) {
        use crate::domain::OrderOutcome;
        use crate::ports::FinalResult;
        let outcome = match row.result {
            FinalResult::Created { .. } => OrderOutcome::Created,
            FinalResult::Rejected { reason } => OrderOutcome::Rejected(reason),
            FinalResult::Released => return,
        };
        self.book.borrow_mut().settle(&row.request_id, outcome);
        self.metrics.result_projected.inc();
        if matches!(outcome, OrderOutcome::Rejected(_)) {
            self.release(row.request_id);
        }
    }

    fn release(self: &Rc<Self>, request_id: Uuid) {
        let lane = self.clone();
        shards::spawn(async move {
            // Should it fail, the next start finds it turned down and does it.
            if let Err(error) = lane.change(Entry::Released { request_id }).await {
                tracing::error!(%request_id, %error, "a unit that goes back is not in the journal yet");
            }
        });
    }

    fn release_rejected(self: &Rc<Self>) {
        let rejected: Vec<Uuid> = {
            let book = self.book.borrow();
            let made = (0..book.len()).filter_map(|number| book.reservation(number));
            made.filter(|made| made.state == ReservationState::Rejected).map(|made| made.request.request_id).collect()
        };
        rejected.into_iter().for_each(|request_id| self.release(request_id));
    }

    /// Up to `max` reservations that want an order, each with its number and how often it was handed out before. Waits up
    /// to `wait` for one.
    pub async fn take_ready(&self, max: usize, hide: Duration, wait: Duration) -> Vec<(u32, u32, ReserveRequest)> {
        if self.ready.borrow().is_empty() {
            // The end of the wait is no error: there is nothing to do then.
            let _ = shards::timeout(wait, self.arrived.notified()).await;
        }
        self.come_back();
        let mut ready = self.ready.borrow_mut();
        let count = max.min(ready.len());
        let taken: Vec<_> = ready.drain(..count).collect();
        if !ready.is_empty() {
            self.arrived.notify_one();
        }
        let (book, mut out, until) = (self.book.borrow(), self.out.borrow_mut(), shards::now() + hide);
        let handed = taken.into_iter().filter_map(|(number, attempts)| {
            let made = book.reservation(number as usize)?;
            out.insert(number, Out { until, attempt: attempts + 1 });
            Some((number, attempts + 1, made.request))
        });
        handed.collect()
    }

    /// Reservations that were handed out, not acknowledged, and are over their time.
    fn come_back(&self) {
        let now = shards::now();
        let mut out = self.out.borrow_mut();
        let late: Vec<(u32, u32)> =
            out.iter().filter(|(_, out)| out.until <= now).map(|(number, out)| (*number, out.attempt)).collect();
        for (number, _) in &late {
            out.remove(number);
        }
        self.ready.borrow_mut().extend(late);
    }

    /// The reservation has its order, or is put aside.
    pub fn done(&self, number: u32) {
        self.out.borrow_mut().remove(&number);
    }

    /// Keeps a reservation hidden for `hide` from now.
    pub fn extend(&self, number: u32, hide: Duration) {
        if let Some(out) = self.out.borrow_mut().get_mut(&number) {
            out.until = shards::now() + hide;
        }
    }

    /// Reservations that wait for somebody to make their order.
    pub fn waiting(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Starts a snapshot when one is due, and takes note of one that is done. Nothing waits for it.
    fn maybe_compact(&self, journal: &mut Journal) {
        let mut snapshot = self.snapshot.borrow_mut();
        if let Some(finished) = snapshot.as_mut() {
            let Some(size) = finished.try_recv() else { return };
            *snapshot = None;
            journal.compacted();
            self.snapshot_bytes.set(size.unwrap_or_else(|| self.snapshot_bytes.get()));
        }
        let sealed = journal.sealed_count() as u64 * self.segment_bytes;
        if sealed < (SEALED_MIN * self.segment_bytes).max(SNAPSHOT_GROWTH * self.snapshot_bytes.get()) {
            return;
        }
        let Some(compaction) = journal.compaction() else { return };
        let (done, finished) = mailbox::bounded(1);
        let work = move || {
            let made = compact(&compaction, shards::unix_micros() / 1_000);
            if let Err(error) = &made {
                tracing::warn!(%error, "no snapshot; the journal keeps its segments");
            }
            tell(&done, made.ok());
        };
        match std::thread::Builder::new().name("journal-snapshot".to_owned()).spawn(work) {
            Ok(_) => *snapshot = Some(finished),
            Err(error) => tracing::warn!(%error, "no thread for a snapshot"),
        }
    }
}

fn port_error(error: &CommitError) -> PortError {
    tracing::error!(%error, "reservations refused");
    match error {
        CommitError::Unavailable(_) => PortError::Unavailable,
        CommitError::Unknown(_) => PortError::Unknown,
    }
}

#[cfg(test)]
mod tests;

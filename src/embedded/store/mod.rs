//! The order store: SQLite on a thread of its own, fed by a bounded queue.
//!
//! A shard never waits for a disk here: it hands a batch over and awaits the reply. One thread writes, so nothing in a
//! transaction can be in anybody's way; a batch is one transaction, `synchronous = FULL`, and every outcome in it is
//! durable when it is told. What a file of orders does not hold the journal has.

mod settle;

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use shards::mailbox;

use super::record::Opening;
use super::tell;
use crate::domain::{OrderCreateEvent, OrderOutcome, RejectReason, Sku, UserId, Uuid};
use crate::domain::{OrderId, format_rfc3339_micros};
use crate::ports::{AttemptRow, FinalResult, OrderError, PortError, QuarantineRow, Standing};

/// Jobs that may wait for the thread; each is at most a batch of orders.
const WAITING_MAX: usize = 256;

/// A checked message on its way to the thread.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    /// What it asks for.
    pub event: OrderCreateEvent,
    /// The body as it came.
    pub body: Vec<u8>,
    /// The id of its record.
    pub broker_message_id: String,
    /// Which delivery this is, from 1.
    pub attempt: u32,
}

/// A reply to come.
type Reply<T> = mailbox::Sender<T>;

enum Job {
    Settle(Vec<StoredMessage>, Reply<Vec<Result<OrderOutcome, OrderError>>>),
    Quarantine(Box<QuarantineRow>, Reply<Result<(), PortError>>),
    Attempts(Vec<AttemptRow>, Reply<Result<(), PortError>>),
    Stored { sku: Sku, request_id: Uuid, user_id: UserId, reply: Reply<Result<Standing, PortError>> },
    Sale(Opening, bool, Reply<Result<(), PortError>>),
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite says no.
    #[error(
        "cannot use the order store {path}: {source}. If the file is damaged, move it away: the next start makes it again from \
         the journal"
    )]
    Sqlite {
        /// The file.
        path: String,
        /// What it says.
        source: rusqlite::Error,
    },
    /// A row that no version of this program writes.
    #[error("the order store {path} holds what it should not: {what}")]
    Row {
        /// The file.
        path: String,
        /// What.
        what: String,
    },
    /// No thread.
    #[error("cannot start the thread of the order store: {0}")]
    Thread(std::io::Error),
}

/// A way to the store; one for each shard that writes or asks.
#[derive(Clone)]
pub struct Store {
    jobs: SyncSender<Job>,
}

/// The thread behind it. It ends when the last [`Store`] is gone and what waits is done.
pub struct StoreThread(JoinHandle<()>);

impl StoreThread {
    /// Waits for its end.
    pub fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread of the order store panicked");
        }
    }
}

/// The open file, before its thread has it.
pub struct Opened {
    connection: Connection,
    group: String,
    path: String,
}

/// Opens or makes the file at `path`.
///
/// # Errors
/// [`StoreError`]
pub fn open(path: &Path, group: &str) -> Result<Opened, StoreError> {
    let name = path.display().to_string();
    let failed = |source| StoreError::Sqlite { path: name.clone(), source };
    let connection = Connection::open(path).map_err(failed)?;
    // A reader with `sqlite3` must not make a commit fail.
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(failed)?;
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
        .map_err(failed)?;
    connection.execute_batch(include_str!("../../../sql/embedded/tables.sql")).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(Opened { connection, group: group.to_owned(), path: name })
}

impl Opened {
    /// Gives every message that was settled to `each`: its request and what became of it.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn settled(&self, mut each: impl FnMut(Uuid, OrderOutcome)) -> Result<(), StoreError> {
        let failed = |source| StoreError::Sqlite { path: self.path.clone(), source };
        let wrong = |what: &str| StoreError::Row { path: self.path.clone(), what: what.to_owned() };
        let mut statement =
            self.connection.prepare(include_str!("../../../sql/embedded/settled.sql")).map_err(failed)?;
        let mut rows = statement.query([&self.group]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let text = |index| row.get_ref(index).ok().and_then(|value| value.as_str().ok());
            let request_id = text(0).and_then(|text| Uuid::parse(text.as_bytes()));
            let request_id = request_id.ok_or_else(|| wrong("a request_id that is no UUID"))?;
            let order_id: Option<i64> = row.get(2).map_err(failed)?;
            let outcome = settle::known(text(1).unwrap_or_default(), order_id, text(3));
            each(request_id, outcome.ok_or_else(|| wrong("an inbox row without an outcome"))?);
        }
        Ok(())
    }

    /// The largest order id; 0 without an order.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn order_id_max(&self) -> Result<i64, StoreError> {
        let max = self.connection.query_row("SELECT coalesce(max(order_id), 0) FROM orders", [], |row| row.get(0));
        max.map_err(|source| StoreError::Sqlite { path: self.path.clone(), source })
    }

    /// Sees to it that a sale of the journal has its rows.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn sale(&self, opening: &Opening, closed: bool) -> Result<(), StoreError> {
        sale(&self.connection, opening, closed).map_err(|source| StoreError::Sqlite { path: self.path.clone(), source })
    }

    /// Hands the file to a thread.
    ///
    /// # Errors
    /// [`StoreError::Thread`]
    pub fn start(self) -> Result<(Store, StoreThread), StoreError> {
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("order-store".to_owned())
            .spawn(move || work(self, &waiting))
            .map_err(StoreError::Thread)?;
        Ok((Store { jobs }, StoreThread(thread)))
    }
}

fn work(mut opened: Opened, waiting: &Receiver<Job>) {
    // A reply that nobody waits for any more is dropped: its message comes again and is answered by the inbox.
    while let Ok(job) = waiting.recv() {
        match job {
            Job::Settle(messages, reply) => tell(&reply, settle::batch(&mut opened, &messages)),
            Job::Quarantine(row, reply) => tell(&reply, told(settle::quarantine_row(&mut opened, &row))),
            Job::Attempts(rows, reply) => tell(&reply, told(settle::attempts(&mut opened, &rows))),
            Job::Stored { sku, request_id, user_id, reply } => {
                tell(&reply, told(stored(&opened.connection, sku, request_id, user_id)));
            }
            Job::Sale(opening, closed, reply) => {
                tell(&reply, told(sale(&opened.connection, &opening, closed)));
            }
        }
    }
}

fn told<T>(result: rusqlite::Result<T>) -> Result<T, PortError> {
    result.map_err(|error| {
        tracing::error!(%error, "the order store failed");
        PortError::Unavailable
    })
}

fn time(unix_micros: u64) -> String {
    String::from_utf8_lossy(&format_rfc3339_micros(unix_micros)).into_owned()
}

fn now() -> String {
    time(shards::unix_micros())
}

fn sale(connection: &Connection, opening: &Opening, closed: bool) -> rusqlite::Result<()> {
    let Opening { sku, start_ms, end_ms, expire_at_ms, total } = opening;
    let (activity, id) = (sku.activity.get(), sku.sku.get());
    let at = |ms: &u64| time(ms.saturating_mul(1_000));
    let state = if closed { "CLOSED" } else { "OPEN" };
    connection.prepare_cached(include_str!("../../../sql/embedded/open_sale.sql"))?.execute((
        activity,
        id,
        at(start_ms),
        at(end_ms),
        at(expire_at_ms),
        state,
    ))?;
    connection
        .prepare_cached(include_str!("../../../sql/embedded/open_inventory.sql"))?
        .execute((activity, id, total))?;
    Ok(())
}

fn stored(connection: &Connection, sku: Sku, request_id: Uuid, user_id: UserId) -> rusqlite::Result<Standing> {
    let mut statement = connection.prepare_cached(include_str!("../../../sql/embedded/order_by_request.sql"))?;
    let mut rows = statement.query((sku.activity.get(), sku.sku.get(), request_id.to_string(), user_id.get()))?;
    let Some(row) = rows.next()? else { return Ok(Standing::Missing) };
    let (order_id, reservation_id, code): (Option<i64>, String, Option<String>) =
        (row.get(0)?, row.get(1)?, row.get(2)?);
    let Some(reservation_id) = Uuid::parse(reservation_id.as_bytes()) else { return Ok(Standing::Missing) };
    let result = match (code, order_id.and_then(OrderId::new)) {
        (None, Some(order_id)) => FinalResult::Created { order_id },
        (Some(code), _) => {
            FinalResult::Rejected { reason: RejectReason::from_code(&code).unwrap_or(RejectReason::InternalError) }
        }
        (None, None) => return Ok(Standing::Missing),
    };
    Ok(Standing::Final { reservation_id, result })
}

impl Store {
    async fn ask<T: Send>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, PortError> {
        let (reply, mut answer) = mailbox::bounded(1);
        match self.jobs.try_send(job(reply)) {
            Ok(()) => answer.recv().await.ok_or(PortError::Internal),
            Err(TrySendError::Full(_)) => Err(PortError::Overloaded),
            Err(TrySendError::Disconnected(_)) => Err(PortError::Unavailable),
        }
    }

    /// Settles messages in one transaction: one outcome each, in order, every `Ok` durable.
    pub async fn settle(&self, messages: Vec<StoredMessage>) -> Vec<Result<OrderOutcome, OrderError>> {
        let count = messages.len();
        match self.ask(|reply| Job::Settle(messages, reply)).await {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(OrderError::Transient(error.to_string())); count],
        }
    }

    /// Puts a message aside, with its release where it holds a unit.
    ///
    /// # Errors
    /// [`PortError`]: it was not done.
    pub async fn quarantine(&self, row: QuarantineRow) -> Result<(), PortError> {
        self.ask(|reply| Job::Quarantine(Box::new(row), reply)).await?
    }

    /// Appends to the attempt log.
    ///
    /// # Errors
    /// [`PortError`]: it was not done.
    pub async fn attempts(&self, rows: Vec<AttemptRow>) -> Result<(), PortError> {
        self.ask(|reply| Job::Attempts(rows, reply)).await?
    }

    /// What the store knows of a request: `Missing` or `Final`.
    ///
    /// # Errors
    /// [`PortError`]
    pub async fn stored(&self, sku: Sku, request_id: Uuid, user_id: UserId) -> Result<Standing, PortError> {
        self.ask(|reply| Job::Stored { sku, request_id, user_id, reply }).await?
    }

    /// Writes a sale's rows.
    ///
    /// # Errors
    /// [`PortError`]: it was not done.
    pub async fn sale(&self, opening: Opening, closed: bool) -> Result<(), PortError> {
        self.ask(|reply| Job::Sale(opening, closed, reply)).await?
    }
}

#[cfg(test)]
mod tests;

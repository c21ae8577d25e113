//! One connection: a reader that always listens, a writer, and at most one exchange between them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use shards::net::{Closer, ReadHalf, TcpStream, WriteHalf};
use shards::sync::{Notify, oneshot};

use super::exchange::{Exchange, Outcome};
use super::message::{self, Backend, ProtocolError, TransactionStatus};
use super::startup::{Startup, StartupError, StartupStep};
use super::{CallError, Column, NotSent, PgError, PoolConfig, Unknown, frontend};

const READ_BYTES: usize = 16 * 1024;
/// Longest cancel request. Best effort: the connection is closed whatever becomes of it.
const CANCEL: Duration = Duration::from_secs(2);

/// How an exchange ended.
enum Ended {
    Done(Outcome),
    /// The server's last words before it closed the connection.
    Refused(PgError),
    Lost(Unknown),
}

struct Current {
    exchange: Exchange,
    caller: oneshot::Sender<Ended>,
}

/// A statement that the server knows by name.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) name: String,
    pub(super) columns: Option<Rc<[Column]>>,
}

/// A connection that has been let in.
pub(super) struct Connection {
    current: RefCell<Option<Current>>,
    out: RefCell<BytesMut>,
    work: Notify,
    /// The current request has left, at least in part.
    sent: Cell<bool>,
    ended: Cell<bool>,
    status: Cell<TransactionStatus>,
    closer: Closer,
    key: Option<(i32, i32)>,
    endpoint: String,
    bytes_max: usize,
    pub(super) prepared: RefCell<HashMap<usize, Prepared>>,
    pub(super) retire_at: Instant,
    pub(super) idle_since: Cell<Instant>,
    /// Told when the connection ends.
    on_end: Box<dyn Fn()>,
}

fn dial_error(error: impl std::fmt::Display) -> NotSent {
    NotSent::Dial(error.to_string())
}

impl Connection {
    /// Dials and logs in before `deadline`.
    pub(super) async fn open(
        config: &PoolConfig,
        retire_at: Instant,
        deadline: Instant,
        on_end: Box<dyn Fn()>,
    ) -> Result<Rc<Self>, NotSent> {
        let opened = shards::timeout_at(deadline, async {
            let addr = crate::dial::resolve(&config.endpoint).await.map_err(NotSent::Dial)?;
            let (mut read, mut write) = TcpStream::connect(addr).await.map_err(dial_error)?.into_split();
            let closer = write.closer();
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            match log_in(config, &mut read, &mut write, &mut buffer).await {
                Ok(key) => Ok((read, write, buffer, key)),
                Err(error) => {
                    closer.close();
                    Err(error)
                }
            }
        });
        let (read, write, buffer, key) = opened
            .await
            .unwrap_or_else(|_| Err(NotSent::Dial(format!("{} did not answer in time", config.endpoint))))?;
        let connection = Rc::new(Self {
            current: RefCell::default(),
            out: RefCell::default(),
            work: Notify::new(),
            sent: Cell::new(false),
            ended: Cell::new(false),
            status: Cell::new(TransactionStatus::Idle),
            closer: write.closer(),
            key,
            endpoint: config.endpoint.clone(),
            bytes_max: config.message_bytes_max,
            prepared: RefCell::default(),
            retire_at,
            idle_since: Cell::new(shards::now()),
            on_end,
        });
        shards::spawn(connection.clone().write_all(write));
        shards::spawn(connection.clone().read_all(read, buffer));
        Ok(connection)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(super) fn status(&self) -> TransactionStatus {
        self.status.get()
    }

    /// Sends `request`, which ends in Sync or is one Query, and waits for its outcome.
    ///
    /// Past the deadline, or when the caller goes away, the server is asked to cancel and the connection is closed: its
    /// state is not known any more.
    pub(super) async fn run(
        self: &Rc<Self>,
        request: &[u8],
        exchange: Exchange,
        deadline: Instant,
    ) -> Result<Outcome, CallError> {
        if self.ended.get() {
            return Err(NotSent::ConnectionEnded.into());
        }
        if shards::now() >= deadline {
            return Err(NotSent::Deadline.into());
        }
        let (caller, mut ended) = oneshot::channel();
        *self.current.borrow_mut() = Some(Current { exchange, caller });
        self.sent.set(false);
        self.out.borrow_mut().extend_from_slice(request);
        self.work.notify_one();
        let mut abandoned = GiveUp(Some(self.clone()));
        let result = shards::timeout_at(deadline, &mut ended).await;
        let sent = self.sent.get();
        match result {
            Ok(Ok(Ended::Done(outcome))) => {
                abandoned.0 = None;
                Ok(outcome)
            }
            Ok(Ok(Ended::Refused(error))) => Err(Box::new(error).into()),
            Ok(Ok(Ended::Lost(_))) | Ok(Err(_)) if !sent => Err(NotSent::ConnectionEnded.into()),
            Ok(Ok(Ended::Lost(why))) => Err(why.into()),
            Ok(Err(_)) => Err(Unknown::ConnectionLost.into()),
            Err(_) if sent => Err(Unknown::Deadline.into()),
            Err(_) => Err(NotSent::Deadline.into()),
        }
    }

    /// Closes a connection in the middle of something.
    fn give_up(&self) {
        if self.ended.get() {
            return;
        }
        if let (true, Some(key)) = (self.sent.get(), self.key) {
            let endpoint = self.endpoint.clone();
            shards::spawn(async move {
                // Best effort: the server notices the closed connection by itself, only later.
                let _ = shards::timeout(CANCEL, cancel(endpoint, key)).await;
            });
        }
        self.end(Unknown::ConnectionLost);
    }

    /// Closes the connection; what is under way on it is lost.
    pub(super) fn end(&self, why: Unknown) {
        if self.ended.replace(true) {
            return;
        }
        self.closer.close();
        self.work.notify_one();
        if let Some(current) = self.current.take() {
            let ended = match current.exchange.failure() {
                Some(error) => Ended::Refused(error.clone()),
                None => Ended::Lost(why),
            };
            // A caller who is gone needs no news.
            let _ = current.caller.send(ended);
        }
        (self.on_end)();
    }

    /// Says good-bye and closes.
    pub(super) fn terminate(self: &Rc<Self>) {
        if self.ended.get() {
            return;
        }
        frontend::terminate(&mut self.out.borrow_mut());
        self.work.notify_one();
        let connection = self.clone();
        // The server closes its end on Terminate; one that does not is closed from here.
        shards::spawn(async move {
            shards::sleep(Duration::from_millis(200)).await;
            connection.end(Unknown::ConnectionLost);
        });
    }

    async fn write_all(self: Rc<Self>, mut write: WriteHalf) {
        let mut sending = BytesMut::new();
        while !self.ended.get() {
            sending.clear();
            std::mem::swap(&mut sending, &mut *self.out.borrow_mut());
            if sending.is_empty() {
                self.work.notified().await;
                continue;
            }
            self.sent.set(true);
            let (written, back) = write.write_all(sending).await;
            sending = back;
            if written.is_err() {
                // The server may have said why before it closed; the reader finds that.
                return;
            }
        }
    }

    async fn read_all(self: Rc<Self>, mut read: ReadHalf, mut buffer: BytesMut) {
        while !self.ended.get() {
            match message::next(&mut buffer, self.bytes_max) {
                Ok(Some(message)) => self.on(message),
                Ok(None) => {
                    buffer.reserve(READ_BYTES);
                    let (result, back) = read.read(buffer).await;
                    buffer = back;
                    if !matches!(result, Ok(1..)) {
                        self.end(Unknown::ConnectionLost);
                    }
                }
                Err(error) => self.end(Unknown::Protocol(error)),
            }
        }
    }

    fn on(&self, message: Backend) {
        let mut current = self.current.borrow_mut();
        let Some(waiting) = current.as_mut() else {
            drop(current);
            match message {
                Backend::Notice(_) | Backend::ParameterStatus { .. } | Backend::Notification { .. } => {}
                // An error nobody asked for announces the end (57P01); anything else is out of step.
                Backend::Error(_) => self.end(Unknown::ConnectionLost),
                _ => self.end(Unknown::Protocol(ProtocolError::Unexpected(b'?'))),
            }
            return;
        };
        match waiting.exchange.on(message) {
            Ok(None) => {}
            Ok(Some(outcome)) => {
                self.status.set(outcome.status);
                let done = current.take();
                drop(current);
                if let Some(done) = done {
                    // A caller who is gone has closed the connection already.
                    let _ = done.caller.send(Ended::Done(outcome));
                }
            }
            Err(error) => {
                drop(current);
                self.end(Unknown::Protocol(error));
            }
        }
    }
}

/// Gives the connection up when dropped in the middle of an exchange.
struct GiveUp(Option<Rc<Connection>>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.give_up();
        }
    }
}

async fn log_in(
    config: &PoolConfig,
    read: &mut ReadHalf,
    write: &mut WriteHalf,
    buffer: &mut BytesMut,
) -> Result<Option<(i32, i32)>, NotSent> {
    let mut out = BytesMut::new();
    let settings = config.settings();
    let mut startup = Startup::begin(&config.user, config.password.as_deref(), &config.database, &settings, &mut out);
    loop {
        if !out.is_empty() {
            let (written, back) = write.write_all(out).await;
            written.map_err(dial_error)?;
            out = back;
            out.clear();
        }
        while let Some(message) = message::next(buffer, config.message_bytes_max).map_err(StartupError::from)? {
            if let StartupStep::Ready { key, .. } = startup.on(message, &mut out)? {
                return Ok(key);
            }
        }
        if out.is_empty() {
            buffer.reserve(READ_BYTES);
            let (result, back) = read.read(std::mem::take(buffer)).await;
            *buffer = back;
            if result.map_err(dial_error)? == 0 {
                return Err(NotSent::Dial("the server closed the connection during log-in".to_owned()));
            }
        }
    }
}

async fn cancel(endpoint: String, (process, secret): (i32, i32)) -> Result<(), String> {
    let addr = crate::dial::resolve(&endpoint).await?;
    let (mut read, mut write) = TcpStream::connect(addr).await.map_err(|error| error.to_string())?.into_split();
    let mut out = BytesMut::new();
    frontend::cancel(&mut out, process, secret);
    let (written, out) = write.write_all(out).await;
    written.map_err(|error| error.to_string())?;
    // The server answers by closing.
    let (_, _) = read.read(out).await;
    Ok(())
}

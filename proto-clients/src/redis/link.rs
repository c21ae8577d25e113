//! One pipelined connection: a writer that sends everything that waits in one write, a reader that hands replies out in
//! order, and a watchdog that gives the connection up when replies stay away.
//!
//! A caller who stops waiting leaves its place behind: the late reply is taken and thrown away, so it can never reach the
//! next caller. Only commands that are still unsent are taken back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use shards::net::{Closer, ReadHalf, WriteHalf};
use shards::sync::{Notify, oneshot};

use super::handshake::{READ_BYTES, Ready};
use super::{Incoming, Parser, Reply, Unknown};

/// What became of a command on this connection.
pub(super) enum Fate {
    Replied(Reply),
    /// It had left when the connection ended.
    Lost(Unknown),
    /// It had not left: another connection may take it.
    Unsent,
}

/// Tells a caller whether its command has left.
pub(super) type SentFlag = Rc<Cell<bool>>;

struct Unsent {
    bytes: Bytes,
    deadline: Instant,
    sent: SentFlag,
    caller: oneshot::Sender<Fate>,
}

struct InFlight {
    /// When the connection is given up if this reply has not come.
    doubt_at: Instant,
    caller: oneshot::Sender<Fate>,
}

/// Times of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) io_timeout: Duration,
    pub(super) idle_max: Duration,
    pub(super) retire_at: Instant,
}

/// A connection as the pool sees it.
pub(super) struct Link {
    unsent: RefCell<VecDeque<Unsent>>,
    in_flight: RefCell<VecDeque<InFlight>>,
    work: Notify,
    /// For the watchdog: the first command left, or the last reply came.
    busy: Notify,
    /// Takes no new commands; ends when the last reply is in.
    retiring: Cell<bool>,
    ended: Cell<bool>,
    closer: Closer,
    times: Times,
    events: Rc<dyn LinkEvents>,
}

/// What a link tells its pool.
pub(super) trait LinkEvents {
    /// A place became free, or the link ended.
    fn changed(&self);
    /// An out-of-band message.
    fn pushed(&self, push: Vec<Reply>);
}

impl Link {
    /// Starts the tasks of a connection.
    pub(super) fn start(ready: Ready, times: Times, events: Rc<dyn LinkEvents>) -> Rc<Self> {
        let Ready { read, write, buffer, parser } = ready;
        let link = Rc::new(Self {
            unsent: RefCell::default(),
            in_flight: RefCell::default(),
            work: Notify::new(),
            busy: Notify::new(),
            retiring: Cell::new(false),
            ended: Cell::new(false),
            closer: write.closer(),
            times,
            events,
        });
        shards::spawn(link.clone().write_all(write));
        shards::spawn(link.clone().read_all(read, buffer, parser));
        shards::spawn(link.clone().watch());
        link
    }

    /// Commands on it without a reply.
    pub(super) fn load(&self) -> usize {
        self.unsent.borrow().len() + self.in_flight.borrow().len()
    }

    pub(super) fn takes_commands(&self) -> bool {
        if !self.retiring.get() && shards::now() >= self.times.retire_at {
            self.retire();
        }
        !self.retiring.get() && !self.ended.get()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Queues a command. Its fate comes through the receiver; the flag says when it has left.
    pub(super) fn submit(&self, bytes: Bytes, deadline: Instant) -> (oneshot::Receiver<Fate>, SentFlag) {
        let (caller, fate) = oneshot::channel();
        let sent = SentFlag::default();
        self.unsent.borrow_mut().push_back(Unsent { bytes, deadline, sent: sent.clone(), caller });
        self.work.notify_one();
        (fate, sent)
    }

    /// Takes no more commands and ends with the last reply.
    pub(super) fn retire(&self) {
        self.retiring.set(true);
        self.end_if_done();
    }

    fn end_if_done(&self) {
        if self.retiring.get() && self.load() == 0 {
            self.end(Unknown::ConnectionLost);
        }
    }

    /// Ends at once: what has left is lost, what has not may go elsewhere.
    pub(super) fn end(&self, why: Unknown) {
        if self.ended.replace(true) {
            return;
        }
        self.closer.close();
        // A caller who is gone needs no news.
        for waiting in self.in_flight.take() {
            let _ = waiting.caller.send(Fate::Lost(why));
        }
        for waiting in self.unsent.take() {
            let _ = waiting.caller.send(Fate::Unsent);
        }
        self.work.notify_one();
        self.busy.notify_one();
        self.events.changed();
    }

    async fn write_all(self: Rc<Self>, mut write: WriteHalf) {
        let mut out = BytesMut::with_capacity(READ_BYTES);
        loop {
            out.clear();
            self.gather(&mut out);
            if self.ended.get() {
                return;
            }
            if out.is_empty() {
                self.end_if_done();
                self.work.notified().await;
                continue;
            }
            let (written, back) = write.write_all(out).await;
            out = back;
            if written.is_err() {
                self.end(Unknown::ConnectionLost);
                return;
            }
        }
    }

    /// Moves everything that waits into one write. From here on the commands count as sent.
    fn gather(&self, out: &mut BytesMut) {
        let (mut unsent, mut in_flight) = (self.unsent.borrow_mut(), self.in_flight.borrow_mut());
        if in_flight.is_empty() && !unsent.is_empty() {
            self.busy.notify_one();
        }
        let now = shards::now();
        for waiting in unsent.drain(..) {
            // Nobody waits for it any more, and nobody has seen it yet.
            if waiting.caller.is_closed() {
                continue;
            }
            out.extend_from_slice(&waiting.bytes);
            waiting.sent.set(true);
            let doubt_at = waiting.deadline.max(now) + self.times.io_timeout;
            in_flight.push_back(InFlight { doubt_at, caller: waiting.caller });
        }
    }

    async fn read_all(self: Rc<Self>, mut read: ReadHalf, mut buffer: BytesMut, mut parser: Parser) {
        while !self.ended.get() {
            match parser.next(&mut buffer) {
                Ok(Some(Incoming::Reply(reply))) => self.reply(reply),
                Ok(Some(Incoming::Push(push))) => self.events.pushed(push),
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

    fn reply(&self, reply: Reply) {
        let Some(waiting) = self.in_flight.borrow_mut().pop_front() else {
            // An answer that nobody asked for: the stream is out of step.
            self.end(Unknown::ConnectionLost);
            return;
        };
        if let Reply::Error(error) = &reply
            && error.wants_new_connection()
        {
            self.retire();
        }
        if self.in_flight.borrow().is_empty() {
            self.busy.notify_one();
        }
        // A caller who is gone has had its Unknown already.
        let _ = waiting.caller.send(Fate::Replied(reply));
        self.events.changed();
        self.end_if_done();
    }

    /// Ends the connection when the oldest reply is overdue, or when nothing was asked for too long.
    async fn watch(self: Rc<Self>) {
        while !self.ended.get() {
            let doubt_at = self.in_flight.borrow().front().map(|waiting| waiting.doubt_at);
            match doubt_at {
                Some(doubt_at) if shards::now() >= doubt_at => self.end(Unknown::ConnectionLost),
                // Woken early when the last reply is in: what is asked for next may be due sooner.
                Some(doubt_at) => drop(shards::timeout_at(doubt_at, self.busy.notified()).await),
                None => {
                    let woken = shards::timeout(self.times.idle_max, self.busy.notified()).await;
                    if woken.is_err() && self.load() == 0 {
                        self.retire();
                    }
                }
            }
        }
    }
}

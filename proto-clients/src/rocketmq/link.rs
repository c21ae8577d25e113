//! One connection to a name server or broker: requests out in one write, answers matched by their number.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use shards::net::Closer;
use shards::net::{ReadHalf, TcpStream, WriteHalf};
use shards::sync::{Notify, oneshot};

use super::frame::{self, Frame, FrameError, Request};
use super::{MqError, code};

const READ_BYTES: usize = 64 * 1024;
/// Requests in a row without an answer in time after which a connection is given up.
const TIMEOUTS_MAX: u32 = 3;

type Answer = Result<Frame, MqError>;

/// A connection.
pub(super) struct Link {
    /// Requests without an answer, by their number.
    waiting: RefCell<HashMap<i32, oneshot::Sender<Answer>>>,
    out: RefCell<BytesMut>,
    work: Notify,
    next_opaque: Cell<i32>,
    /// Numbers up to this one have left.
    sent_to: Cell<i32>,
    timeouts: Cell<u32>,
    ended: Cell<bool>,
    ended_signal: Notify,
    closer: Closer,
    in_flight_max: usize,
    bytes_max: usize,
    late: Cell<u64>,
}

impl Link {
    /// Dials before `deadline`.
    pub(super) async fn open(
        endpoint: &str,
        in_flight_max: usize,
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<Rc<Self>, MqError> {
        let dialled = shards::timeout_at(deadline, async {
            let addr = crate::dial::resolve(endpoint).await?;
            TcpStream::connect(addr).await.map_err(|error| format!("{endpoint}: {error}"))
        });
        let stream = match dialled.await {
            Ok(stream) => stream.map_err(MqError::Dial)?,
            Err(_) => return Err(MqError::Dial(format!("{endpoint} did not answer in time"))),
        };
        let (read, write) = stream.into_split();
        let link = Rc::new(Self {
            waiting: RefCell::default(),
            out: RefCell::default(),
            work: Notify::new(),
            next_opaque: Cell::new(1),
            sent_to: Cell::new(0),
            timeouts: Cell::new(0),
            ended: Cell::new(false),
            ended_signal: Notify::new(),
            closer: write.closer(),
            in_flight_max,
            bytes_max,
            late: Cell::new(0),
        });
        shards::spawn(link.clone().write_all(write));
        shards::spawn(link.clone().read_all(read));
        Ok(link)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Answers that came after their caller had left.
    pub(super) fn late(&self) -> u64 {
        self.late.get()
    }

    /// Sends a request and waits for its answer. A caller that goes away leaves nothing behind: its number is forgotten and
    /// the late answer dropped.
    pub(super) async fn call(&self, request: &Request, deadline: Instant) -> Answer {
        if self.ended.get() {
            return Err(MqError::Dial("the connection has ended".to_owned()));
        }
        if shards::now() >= deadline {
            return Err(MqError::NotSent);
        }
        if self.waiting.borrow().len() >= self.in_flight_max {
            return Err(MqError::Overloaded);
        }
        let opaque = self.next_opaque.get();
        if opaque == i32::MAX {
            // Two thousand million requests: a new connection is cheaper than thinking about numbers that come round.
            self.end(&MqError::ConnectionLost);
            return Err(MqError::Dial("the connection is used up".to_owned()));
        }
        self.next_opaque.set(opaque + 1);
        let (caller, mut answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(opaque, caller);
        request.encode(opaque, &mut self.out.borrow_mut());
        self.work.notify_one();
        let _forget = Forget { link: self, opaque };
        match shards::timeout_at(deadline, &mut answer).await {
            Ok(Ok(answer)) => {
                self.timeouts.set(0);
                answer
            }
            Ok(Err(_)) => Err(MqError::ConnectionLost),
            Err(_) => {
                self.timeouts.set(self.timeouts.get() + 1);
                if self.timeouts.get() >= TIMEOUTS_MAX {
                    self.end(&MqError::ConnectionLost);
                }
                Err(MqError::Timeout)
            }
        }
    }

    /// Closes the connection; what is in flight on it is lost, or was never sent.
    pub(super) fn end(&self, why: &MqError) {
        if self.ended.replace(true) {
            return;
        }
        self.closer.close();
        self.work.notify_one();
        self.ended_signal.notify_all();
        for (opaque, caller) in self.waiting.take() {
            let unsent = opaque > self.sent_to.get();
            let error = if unsent { MqError::Dial("the connection ended".to_owned()) } else { why.clone() };
            // A caller who is gone needs no news.
            let _ = caller.send(Err(error));
        }
    }

    /// Waits for the end, at most until `deadline`.
    pub(super) async fn ended_by(&self, deadline: Instant) -> bool {
        while !self.ended.get() {
            if shards::timeout_at(deadline, self.ended_signal.notified()).await.is_err() {
                return false;
            }
        }
        true
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
            self.sent_to.set(self.next_opaque.get() - 1);
            let (written, back) = write.write_all(sending).await;
            sending = back;
            if written.is_err() {
                self.end(&MqError::ConnectionLost);
            }
        }
    }

    async fn read_all(self: Rc<Self>, mut read: ReadHalf) {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        while !self.ended.get() {
            match frame::next(&mut buffer, self.bytes_max) {
                Ok(Some(frame)) => self.on(frame),
                Ok(None) => {
                    buffer.reserve(READ_BYTES);
                    let (result, back) = read.read(buffer).await;
                    buffer = back;
                    if !matches!(result, Ok(1..)) {
                        self.end(&MqError::ConnectionLost);
                    }
                }
                Err(error) => self.end(&MqError::Protocol(error)),
            }
        }
    }

    fn on(&self, frame: Frame) {
        if !frame.is_response() {
            if !frame.is_oneway() && code::ASKED_BY_BROKER.contains(&frame.code) {
                frame::answer(frame.opaque, code::NOT_SUPPORTED, &mut self.out.borrow_mut());
                self.work.notify_one();
            }
            return;
        }
        let caller = self.waiting.borrow_mut().remove(&frame.opaque);
        match caller {
            Some(caller) => {
                // The caller may leave in this very moment.
                let _ = caller.send(Ok(frame));
            }
            None if frame.opaque >= self.next_opaque.get() || frame.opaque < 1 => {
                // An answer to what was never asked: the stream is out of step.
                self.end(&MqError::Protocol(FrameError::Header));
            }
            None => self.late.set(self.late.get() + 1),
        }
    }

    /// Keeps the connection from being closed as idle, and finds one that is dead.
    pub(super) async fn keep_alive(self: Rc<Self>, every: Duration, request: Request) {
        loop {
            if self.ended_by(shards::now() + every).await {
                return;
            }
            if self.call(&request, shards::now() + every / 2).await == Err(MqError::Timeout) {
                self.end(&MqError::ConnectionLost);
            }
        }
    }
}

/// Forgets a request when its caller is done with it, however that is.
struct Forget<'a> {
    link: &'a Link,
    opaque: i32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.waiting.borrow_mut().remove(&self.opaque);
    }
}

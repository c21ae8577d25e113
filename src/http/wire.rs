//! A connection's traffic: reading ahead, gathering answers, deadlines, and an orderly end.

use std::future::{Future, poll_fn};
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use shards::BufferPool;
use shards::net::{Closer, ReadHalf, WriteHalf};

use super::config::Timeouts;
use super::gone::ClientGone;
use super::parser::Part;
use super::pump::Pump;
use super::sweep::Watch;

/// How long the other side may take to close after the last answer.
const LINGER: Duration = Duration::from_secs(1);
/// What is read and thrown away meanwhile, so that the kernel does not reset the connection under the answer.
const LINGER_BYTES_MAX: usize = 1 << 20;
/// Reads in a row that found bytes waiting before other tasks get a turn: a client that sends without pause must not
/// keep a shard to itself.
const BURST_MAX: usize = 64;
/// Room a read should have at least.
const ROOM_MIN: usize = 512;

/// What a client was too slow with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Sending a request head.
    Head,
    /// Sending a body.
    Body,
    /// Sending the next request.
    Idle,
    /// Taking in answers.
    Write,
}

/// What waiting for bytes came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    Bytes,
    /// The stream has ended or failed.
    End,
    /// The time for this phase is over.
    Late(Phase),
    /// The server stops and nothing of a request has arrived.
    Stop,
}

/// What a flush came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything is with the kernel.
    Done,
    /// The connection is broken.
    Broken,
    /// The client did not take its answers in time; the connection is broken on purpose.
    Late,
}

/// The two directions of a connection.
pub(super) struct Wire<'a, R, W> {
    reader: Pump<'a, ReadHalf, R>,
    writer: Pump<'a, WriteHalf, W>,
    closer: Closer,
    watch: Watch,
    gone: ClientGone,
    timeouts: Timeouts,
    pool: BufferPool,
    buffer_size: usize,
    /// Read while a handler was at work.
    ahead: BytesMut,
    /// Answers that were not handed to the writer yet.
    done: BytesMut,
    /// Which deadline is set.
    armed: Option<Phase>,
    /// Nothing more will be read.
    ended: bool,
    broken: bool,
    late: bool,
    /// When bytes last came in.
    read_at: Instant,
    /// Reads in a row during which the task never had to wait for anything.
    burst: usize,
    /// Whether a request was complete on this connection.
    used: bool,
}

/// What a [`Wire`] is made of.
pub(super) struct Parts<'a, R, W> {
    pub(super) reader: Pump<'a, ReadHalf, R>,
    pub(super) writer: Pump<'a, WriteHalf, W>,
    pub(super) closer: Closer,
    pub(super) watch: Watch,
    pub(super) gone: ClientGone,
    pub(super) timeouts: Timeouts,
    pub(super) pool: BufferPool,
    pub(super) buffer_size: usize,
}

impl<'a, R, W> Wire<'a, R, W>
where
    R: Future<Output = (ReadHalf, io::Result<usize>, BytesMut)>,
    W: Future<Output = (WriteHalf, io::Result<()>, BytesMut)>,
{
    pub(super) fn new(parts: Parts<'a, R, W>) -> Self {
        let Parts { reader, writer, closer, watch, gone, timeouts, pool, buffer_size } = parts;
        Self {
            reader,
            writer,
            closer,
            watch,
            gone,
            timeouts,
            pool,
            buffer_size,
            ahead: BytesMut::new(),
            done: BytesMut::new(),
            armed: None,
            ended: false,
            broken: false,
            late: false,
            read_at: shards::now(),
            burst: 0,
            used: false,
        }
    }

    /// When the bytes of the request in hand came in.
    pub(super) fn read_at(&self) -> Instant {
        self.read_at
    }

    /// A buffer for an answer.
    pub(super) fn take(&self) -> BytesMut {
        self.pool.take()
    }

    /// Adds an answer behind those not sent yet.
    pub(super) fn push(&mut self, mut answer: BytesMut) {
        if self.done.is_empty() {
            std::mem::swap(&mut self.done, &mut answer);
        } else {
            self.done.extend_from_slice(&answer);
        }
        self.pool.give(answer);
    }

    /// Bytes of answers not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.done.len()
    }

    /// A request is complete: no deadline until it is answered.
    pub(super) fn request_complete(&mut self) {
        self.used = true;
        self.armed = None;
        self.watch.disarm();
    }

    fn arm(&mut self, phase: Phase) {
        if self.armed.replace(phase) == Some(phase) {
            return;
        }
        self.watch.arm(match phase {
            Phase::Head => self.timeouts.head,
            Phase::Body => self.timeouts.body,
            Phase::Idle => self.timeouts.idle,
            Phase::Write => self.timeouts.write,
        });
    }

    /// While a handler works: sends earlier answers, and reads ahead, which is how a client's leaving is noticed.
    pub(super) fn poll_meanwhile(&mut self, context: &mut Context<'_>) {
        self.burst = 0;
        if !self.done.is_empty() && !self.broken && !self.writer.is_running() {
            self.start_write();
        }
        if self.writer.is_running() {
            let _ = self.poll_write(context);
        }
        while !self.ended && (self.reader.is_running() || self.ahead.len() < self.buffer_size) {
            if !self.reader.is_running() {
                let buffer = self.pool.take();
                self.reader.start(buffer);
            }
            let Poll::Ready((result, buffer)) = self.reader.poll(context) else { break };
            self.took(&result);
            if self.ahead.is_empty() {
                let empty = std::mem::replace(&mut self.ahead, buffer);
                self.pool.give(empty);
            } else {
                self.ahead.extend_from_slice(&buffer);
                self.pool.give(buffer);
            }
        }
    }

    fn took(&mut self, result: &io::Result<usize>) {
        if !matches!(result, Ok(1..)) {
            self.ended = true;
            self.gone.close();
        }
    }

    fn start_write(&mut self) {
        let answers = std::mem::take(&mut self.done);
        self.writer.start(answers);
        self.armed = None;
        self.arm(Phase::Write);
    }

    /// Completes when nothing is being written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.writer.is_running() {
            return Poll::Ready(());
        }
        if self.armed == Some(Phase::Write) && self.watch.poll_expired(context) {
            self.late = true;
            self.watch.disarm();
            self.closer.close();
        }
        let Poll::Ready((result, buffer)) = self.writer.poll(context) else { return Poll::Pending };
        self.pool.give(buffer);
        self.armed = None;
        self.watch.disarm();
        if result.is_err() {
            self.broken = true;
            self.gone.close();
        }
        Poll::Ready(())
    }

    /// Hands all answers to the kernel.
    pub(super) async fn flush(&mut self) -> Flushed {
        while self.writer.is_running() || !self.done.is_empty() {
            if !self.writer.is_running() {
                if self.broken {
                    break;
                }
                self.start_write();
            }
            let written = poll_fn(|context| {
                let written = self.poll_write(context);
                if written.is_pending() {
                    self.burst = 0;
                }
                written
            });
            written.await;
        }
        match (self.late, self.broken) {
            (true, _) => Flushed::Late,
            (false, true) => Flushed::Broken,
            (false, false) => Flushed::Done,
        }
    }

    /// Waits for more bytes and adds them to `input`. What is in `input` may be lost unless the outcome is bytes.
    pub(super) async fn more(&mut self, input: &mut BytesMut, part: Part, stopping: impl Fn() -> bool) -> More {
        if !self.ahead.is_empty() {
            let ahead = std::mem::take(&mut self.ahead);
            self.absorb(input, ahead);
            return More::Bytes;
        }
        if self.ended {
            return More::End;
        }
        let phase = match part {
            Part::Nothing if self.used => Phase::Idle,
            Part::Nothing | Part::Head => Phase::Head,
            Part::Body => Phase::Body,
        };
        self.arm(phase);
        let ours = !self.reader.is_running();
        if ours {
            self.make_room(input);
            self.reader.start(std::mem::take(input));
        } else if input.is_empty() {
            // The read in flight brings a buffer of its own.
            self.pool.give(std::mem::take(input));
        }
        if self.burst >= BURST_MAX {
            self.burst = 0;
            shards::yield_now().await;
        }
        self.burst += 1;
        let event = poll_fn(|context| {
            if let Poll::Ready(read) = self.reader.poll(context) {
                return Poll::Ready(Ok(read));
            }
            self.burst = 0;
            if self.watch.poll_expired(context) {
                return Poll::Ready(Err(More::Late(phase)));
            }
            if part == Part::Nothing && stopping() { Poll::Ready(Err(More::Stop)) } else { Poll::Pending }
        });
        let (result, buffer) = match event.await {
            Ok(read) => read,
            Err(why) => return why,
        };
        self.took(&result);
        if ours {
            *input = buffer;
            self.read_at = shards::now();
        } else {
            self.absorb(input, buffer);
        }
        if self.ended { More::End } else { More::Bytes }
    }

    fn absorb(&mut self, input: &mut BytesMut, mut bytes: BytesMut) {
        self.read_at = shards::now();
        if input.is_empty() {
            std::mem::swap(input, &mut bytes);
        } else {
            input.extend_from_slice(&bytes);
        }
        self.pool.give(bytes);
    }

    fn make_room(&self, input: &mut BytesMut) {
        let unfit = input.capacity() < self.buffer_size || input.capacity() > 2 * self.buffer_size;
        if input.is_empty() && unfit {
            self.pool.give(std::mem::replace(input, self.pool.take()));
        }
        if input.capacity() - input.len() < ROOM_MIN {
            input.reserve(self.buffer_size);
        }
    }

    /// Ends the sending side after the last answer and waits a little for the client to end its own. Closing at once
    /// while the client still sends would make the kernel answer with a reset, which can overtake the answer.
    pub(super) async fn linger(&mut self) {
        let sent = match self.writer.half() {
            Some(half) if !self.broken => half.shutdown().await.is_ok(),
            _ => false,
        };
        let mut dropped = 0;
        self.watch.arm(LINGER);
        while sent && !self.ended && dropped < LINGER_BYTES_MAX {
            if !self.reader.is_running() {
                let buffer = self.pool.take();
                self.reader.start(buffer);
            }
            let event = poll_fn(|context| match self.reader.poll(context) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                Poll::Pending if self.watch.poll_expired(context) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let Some((result, buffer)) = event.await else { break };
            dropped += buffer.len();
            self.took(&result);
            self.pool.give(buffer);
        }
    }

    /// Closes the connection and takes back what is in flight.
    pub(super) async fn finish(&mut self, input: BytesMut) {
        self.watch.disarm();
        self.closer.close();
        self.gone.close();
        while self.reader.is_running() {
            let (_, buffer) = poll_fn(|context| self.reader.poll(context)).await;
            self.pool.give(buffer);
        }
        while self.writer.is_running() {
            let (_, buffer) = poll_fn(|context| self.writer.poll(context)).await;
            self.pool.give(buffer);
        }
        for buffer in [input, std::mem::take(&mut self.ahead), std::mem::take(&mut self.done)] {
            self.pool.give(buffer);
        }
    }
}

//! One connection: requests in, answers out, in order.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use shards::net::{ReadHalf, TcpStream, WriteHalf};

use super::gone::ClientGone;
use super::parser::{Parser, Part, Step};
use super::pump::{self, Pump};
use super::reject::Reject;
use super::response::{ErrorIds, Responder};
use super::server::{Handler, Observer, Shared};
use super::sweep::Watch;
use super::wire::{Flushed, More, Parts, Phase, Wire};

/// Answers gathered for one write when requests come faster than they are read.
const GATHERED_MAX: usize = 64;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Serves `stream` to its end; or, when there are too many connections, only says so.
pub(super) async fn run<H: Handler, O: Observer>(stream: TcpStream, shared: Rc<Shared<H, O>>, welcome: bool) {
    let (read, write) = stream.into_split();
    let closer = write.closer();
    let (reading, writing) = (pin!(None), pin!(None));
    let gone = ClientGone::new();
    let wire = Wire::new(Parts {
        reader: Pump::new(read, reading, pump::read),
        writer: Pump::new(write, writing, pump::write),
        closer,
        watch: Watch::new(&shared.sweep),
        gone: gone.clone(),
        timeouts: shared.config.timeouts,
        pool: shared.pool.clone(),
        buffer_size: shared.config.buffer_size(),
    });
    let parser = Parser::new(Rc::clone(&shared.limits));
    let mut connection = Connection { shared, wire, parser, gone, input: BytesMut::new(), start: 0, gathered: 0 };
    let answered_last = if welcome { connection.serve().await } else { connection.turn_away().await };
    if answered_last {
        connection.wire.linger().await;
    }
    let input = std::mem::take(&mut connection.input);
    connection.wire.finish(input).await;
}

struct Connection<'a, H, O, R, W> {
    shared: Rc<Shared<H, O>>,
    wire: Wire<'a, R, W>,
    parser: Parser,
    gone: ClientGone,
    /// The request being read starts at `start`.
    input: BytesMut,
    start: usize,
    /// Answers since the last flush.
    gathered: usize,
}

impl<'a, H: Handler, O: Observer, R, W> Connection<'a, H, O, R, W>
where
    R: Future<Output = (ReadHalf, io::Result<usize>, BytesMut)>,
    W: Future<Output = (WriteHalf, io::Result<()>, BytesMut)>,
{
    /// Answers requests until one side has had enough. True if a last answer was sent that the client may not have
    /// read yet.
    async fn serve(&mut self) -> bool {
        loop {
            match self.parser.advance(&mut self.input[self.start..]) {
                Ok(Step::Complete) => {
                    let open = self.answer().await;
                    self.consume();
                    if !open {
                        return self.flush().await;
                    }
                    let full = self.wire.unsent() >= self.shared.config.buffer_size() || self.gathered >= GATHERED_MAX;
                    if full && !self.flush().await {
                        return false;
                    }
                }
                Ok(Step::SendContinue) => {
                    let mut interim = self.wire.take();
                    interim.extend_from_slice(CONTINUE);
                    self.wire.push(interim);
                }
                Ok(Step::NeedMore) => {
                    if !self.flush().await {
                        return false;
                    }
                    if let Some(answered_last) = self.read_more().await {
                        return answered_last;
                    }
                }
                Err(reject) => {
                    let (status, code) = reject.status_and_code();
                    return self.refuse(status, code).await;
                }
            }
        }
    }

    /// Reads on; `Some` when the connection is over, with what [`Self::serve`] then returns.
    async fn read_more(&mut self) -> Option<bool> {
        let part = self.parser.part();
        self.compact();
        let shared = Rc::clone(&self.shared);
        match self.wire.more(&mut self.input, part, || shared.stopping.get()).await {
            More::Bytes => None,
            More::Stop => Some(false),
            More::End if part == Part::Nothing => Some(false),
            More::End => {
                let (status, code) = Reject::Syntax("incomplete request").status_and_code();
                Some(self.refuse(status, code).await)
            }
            More::Late(phase) => {
                self.shared.observer.timed_out(phase);
                Some(part != Part::Nothing && self.refuse(408, "REQUEST_TIMEOUT").await)
            }
        }
    }

    /// Moves what is left of the input to the front of its buffer.
    fn compact(&mut self) {
        self.parser.compact(&mut self.input, self.start);
        let rest = self.input.len() - self.start;
        if self.start > 0 {
            self.input.copy_within(self.start.., 0);
            self.input.truncate(rest);
            self.start = 0;
        }
    }

    fn consume(&mut self) {
        self.start += self.parser.consumed();
        self.parser.reset();
        if self.start == self.input.len() {
            self.input.clear();
            self.start = 0;
        }
    }

    /// Has the complete request answered; true if the connection goes on.
    async fn answer(&mut self) -> bool {
        let Self { shared, wire, parser, gone, input, start, gathered } = self;
        wire.request_complete();
        *gathered += 1;
        let request = parser.request(&input[*start..]);
        let mut out = wire.take();
        let answered = {
            let responder = Responder::new(&mut out, &shared.date, &request, false).close_when(&shared.stopping);
            // Called inside the future, so that a panic before its first await is caught as well.
            let mut work = pin!(async { shared.handler.handle(&request, gone, responder).await });
            poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
                Ok(Poll::Ready(answered)) => Poll::Ready(Some(answered)),
                Ok(Poll::Pending) => {
                    wire.poll_meanwhile(context);
                    Poll::Pending
                }
                Err(_reported_by_the_panic_hook) => Poll::Ready(None),
            })
            .await
        };
        let answered = match answered {
            Some(answered) => answered,
            None => {
                shared.observer.handler_panicked();
                out.clear();
                Responder::new(&mut out, &shared.date, &request, true).error(500, "INTERNAL_ERROR", &new_ids())
            }
        };
        let elapsed = shards::now().saturating_duration_since(wire.read_at());
        shared.observer.answered(answered.route, answered.status, elapsed);
        wire.push(out);
        !answered.close
    }

    async fn flush(&mut self) -> bool {
        self.gathered = 0;
        let flushed = self.wire.flush().await;
        if flushed == Flushed::Late {
            self.shared.observer.timed_out(Phase::Write);
        }
        flushed == Flushed::Done
    }

    /// Answers what could not be read as a request; nothing after it is looked at.
    async fn refuse(&mut self, status: u16, code: &str) -> bool {
        let mut out = self.wire.take();
        let answered = Responder::refusing(&mut out, &self.shared.date).error(status, code, &new_ids());
        let elapsed = shards::now().saturating_duration_since(self.wire.read_at());
        self.shared.observer.refused(answered.status, elapsed);
        self.wire.push(out);
        self.flush().await
    }

    /// Says that there are too many connections.
    async fn turn_away(&mut self) -> bool {
        let mut out = self.wire.take();
        let responder = Responder::refusing(&mut out, &self.shared.date).retry_after(1);
        let answered = responder.error(503, "OVERLOADED", &new_ids());
        self.shared.observer.refused(answered.status, Duration::ZERO);
        self.wire.push(out);
        self.flush().await
    }
}

/// Ids for an error that belongs to no trace yet.
fn new_ids() -> ErrorIds {
    let id = u128::from(shards::random_u64()) << 64 | u128::from(shards::random_u64());
    // An all-zero trace id is invalid (W3C Trace Context).
    ErrorIds { request_id: None, trace_id: id.max(1).to_be_bytes() }
}

//! Spans: what one order took, step by step, across processes (spec section 9, reference [12.4]).
//!
//! ```text
//! HTTP Submit                      MQ Consume            child of the send's span, and linked to it
//! ├── Admission                    ├── Decode/Validate
//! ├── Redis Lua Reserve            ├── PostgreSQL Transaction
//! └── RocketMQ Send  ··message··>  │   ├── Inbox Insert · Inventory Update · Order Insert · Commit
//!                                  └── RocketMQ ACK
//! ```
//!
//! A shard records a span only of a trace that is sampled: by the caller (its `traceparent` says so), or by us (`trace.sample`). All
//! others cost a look at one flag. A finished span goes through a bounded channel to the thread of [`export`]; when that is full, or a
//! shard has used up its `trace.limit_per_s`, the span is dropped and counted, and nobody waits.

pub mod export;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::metrics::Metrics;
use crate::config::Trace as Settings;
use crate::domain::{OrderCreateEvent, Uuid};
use crate::trace_context::TraceContext;

/// The span ids by which one span names another.
pub type SpanId = [u8; 8];

/// What a span is about. The names are those of the reference [12.4].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A submit, from the complete request to its answer.
    HttpSubmit,
    /// A look-up of a result.
    HttpQuery,
    /// Slot, identity and body of a submit.
    Admission,
    /// The reserve script, with the wait for a batch.
    Reserve,
    /// The send of the order's message, with the wait for a batch.
    Send,
    /// A message in hand, from receipt to ack.
    Consume,
    /// The check of a message.
    Decode,
    /// The order transaction, with the wait for a connection.
    Transaction,
    /// Its first statement.
    InboxInsert,
    /// The stock's deduction.
    InventoryUpdate,
    /// The order's row.
    OrderInsert,
    /// The commit.
    Commit,
    /// The ack, with the wait for a batch.
    Ack,
}

/// A span's role towards other processes (OpenTelemetry trace API, "SpanKind").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answers a caller.
    Server,
    /// Calls another service and waits.
    Client,
    /// Hands work to others who do it later.
    Producer,
    /// Does such work.
    Consumer,
    /// Stays in this process.
    Internal,
}

impl Step {
    /// The span's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HttpSubmit => "HTTP Submit",
            Self::HttpQuery => "HTTP Query",
            Self::Admission => "Admission",
            Self::Reserve => "Redis Lua Reserve",
            Self::Send => "RocketMQ Send",
            Self::Consume => "MQ Consume",
            Self::Decode => "Decode/Validate",
            Self::Transaction => "PostgreSQL Transaction",
            Self::InboxInsert => "Inbox Insert",
            Self::InventoryUpdate => "Inventory Update",
            Self::OrderInsert => "Order Insert",
            Self::Commit => "Commit",
            Self::Ack => "RocketMQ ACK",
        }
    }

    /// The span's kind.
    pub const fn kind(self) -> Kind {
        match self {
            Self::HttpSubmit | Self::HttpQuery => Kind::Server,
            Self::Admission | Self::Decode => Kind::Internal,
            Self::Send => Kind::Producer,
            Self::Consume => Kind::Consumer,
            _ => Kind::Client,
        }
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One of few words.
    Word(&'static str),
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// An id.
    Id(Uuid),
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Id(id)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A span that has ended, on its way to the exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanRecord {
    /// The trace and this span.
    pub context: TraceContext,
    /// The span above it.
    pub parent: Option<SpanId>,
    /// Whether that one is another process's.
    pub remote_parent: bool,
    /// The span that handed over the work, where it went through a queue.
    pub link: Option<TraceContext>,
    /// What it is about.
    pub step: Step,
    /// When it began, Unix nanoseconds.
    pub start_ns: u64,
    /// When it ended, Unix nanoseconds.
    pub end_ns: u64,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed, if it did.
    pub error: Option<&'static str>,
}

/// What every shard's tracer is made of; goes to the shard's thread.
#[derive(Debug, Clone, Default)]
pub struct TracerSeed {
    settings: Option<Settings>,
    sender: Option<SyncSender<SpanRecord>>,
}

impl TracerSeed {
    /// The tracer of the shard whose metrics these are.
    pub fn tracer(&self, metrics: &Rc<Metrics>) -> Tracer {
        let (Some(settings), Some(sender)) = (&self.settings, &self.sender) else { return Tracer::off() };
        // The threshold below which a random number is sampled; `sample` is checked to be 0..=1.
        let threshold = (settings.sample * u64::MAX as f64) as u64;
        Tracer(Some(Rc::new(Inner {
            sender: sender.clone(),
            threshold,
            limit: settings.limit_per_s,
            window: Cell::new((shards::now(), 0)),
            metrics: metrics.clone(),
        })))
    }
}

#[derive(Debug)]
struct Inner {
    sender: SyncSender<SpanRecord>,
    threshold: u64,
    limit: u32,
    /// Since when, and how many spans were recorded since.
    window: Cell<(Instant, u32)>,
    metrics: Rc<Metrics>,
}

/// Records the spans of one shard. Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Rc<Inner>>);

impl Tracer {
    /// A tracer that records nothing and samples nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Whether a trace that starts here is sampled. `random` is uniform.
    pub fn samples(&self, random: u64) -> bool {
        self.0.as_ref().is_some_and(|inner| random < inner.threshold)
    }

    /// Whether anything is ever recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span under its own id, begun now: what a request or a message is, as its context was made for it.
    pub fn span(&self, step: Step, context: TraceContext, parent: Option<SpanId>) -> Span {
        self.begin(step, context, parent)
    }

    /// A span below `parent`, begun now.
    pub fn child(&self, step: Step, parent: &TraceContext) -> Span {
        match &self.0 {
            Some(_) if parent.is_sampled() => {
                self.begin(step, parent.child(shards::random_u64()), Some(parent.span_id))
            }
            _ => Span(None),
        }
    }

    fn begin(&self, step: Step, context: TraceContext, parent: Option<SpanId>) -> Span {
        let Some(inner) = self.0.as_ref().filter(|_| context.is_sampled()) else { return Span(None) };
        let now = unix_nanos();
        let record = SpanRecord {
            context,
            parent,
            remote_parent: false,
            link: None,
            step,
            start_ns: now,
            end_ns: now,
            attributes: Vec::new(),
            error: None,
        };
        Span(Some(Box::new(Open { record: RefCell::new(record), tracer: inner.clone() })))
    }
}

impl Inner {
    /// Hands a span on, or drops and counts it.
    fn finish(&self, record: SpanRecord) {
        let now = shards::now();
        let (since, count) = self.window.get();
        let (since, count) = if (now - since).as_secs() >= 1 { (now, 0) } else { (since, count) };
        self.window.set((since, count.saturating_add(1)));
        if count >= self.limit || self.sender.try_send(record).is_err() {
            self.metrics.trace_spans_dropped.inc();
        } else {
            self.metrics.trace_spans.inc();
        }
    }
}

#[derive(Debug)]
struct Open {
    record: RefCell<SpanRecord>,
    tracer: Rc<Inner>,
}

/// A span that has begun, or nothing where its trace is not sampled. It ends when it is dropped, however that comes about.
#[derive(Debug, Default)]
#[must_use = "a span that is dropped at once has no duration"]
pub struct Span(Option<Box<Open>>);

impl Span {
    /// No span.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Its place in the trace, where it is recorded.
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(|open| open.record.borrow().context)
    }

    /// Notes an attribute; `value` is made only where the span is recorded.
    pub fn note<V: Into<Value>>(&self, name: &'static str, value: impl FnOnce() -> V) {
        self.edit(|record| record.attributes.push((name, value().into())));
    }

    /// It failed.
    pub fn fail(&self, why: &'static str) {
        self.edit(|record| record.error = Some(why));
    }

    /// The span that handed over the work, in another process, is also the one above.
    pub fn linked(self, from: TraceContext) -> Self {
        self.edit(|record| {
            record.link = Some(from);
            record.remote_parent = true;
        });
        self
    }

    /// The span above is the caller's.
    pub fn remote(self) -> Self {
        self.edit(|record| record.remote_parent = record.parent.is_some());
        self
    }

    /// It had begun before it was known to be one.
    pub fn since(self, start_ns: u64) -> Self {
        self.edit(|record| record.start_ns = start_ns);
        self
    }

    /// A step of this one, begun now.
    pub fn child(&self, step: Step) -> Self {
        let Some(open) = &self.0 else { return Self(None) };
        Tracer(Some(open.tracer.clone())).child(step, &open.record.borrow().context)
    }

    /// Notes the ids that an order's message carries.
    pub fn note_event(&self, event: &OrderCreateEvent) {
        self.edit(|record| {
            record.attributes.extend([
                ("seckill.request_id", Value::Id(event.request_id)),
                ("seckill.reservation_id", Value::Id(event.reservation_id)),
                ("messaging.message.id", Value::Id(event.message_id)),
                ("seckill.order_id", Value::Number(event.order_id.get())),
                ("seckill.activity_id", Value::Number(event.sku.activity.get())),
                ("seckill.sku_id", Value::Number(event.sku.sku.get())),
            ]);
        });
    }

    /// Records a step below this one that is over already, with its own times.
    pub fn past(&self, step: Step, start_ns: u64, end_ns: u64) {
        let Some(open) = &self.0 else { return };
        let above = open.record.borrow();
        open.tracer.finish(SpanRecord {
            context: above.context.child(shards::random_u64()),
            parent: Some(above.context.span_id),
            remote_parent: false,
            link: None,
            step,
            start_ns,
            end_ns: end_ns.max(start_ns),
            attributes: Vec::new(),
            error: None,
        });
    }

    fn edit(&self, change: impl FnOnce(&mut SpanRecord)) {
        if let Some(open) = &self.0 {
            change(&mut open.record.borrow_mut());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let record = self.record.get_mut();
        let attributes = std::mem::take(&mut record.attributes);
        let end_ns = unix_nanos().max(record.start_ns);
        self.tracer.finish(SpanRecord { attributes, end_ns, ..record.clone() });
    }
}

/// Wall clock, Unix nanoseconds, to the microsecond.
pub fn unix_nanos() -> u64 {
    shards::unix_micros() * 1_000
}

#[cfg(test)]
mod tests;

//! Fulfil: messages become orders (spec section 5).
//!
//! ```text
//! pullers --(slots first)--> check --> lanes (one a SKU) --> order transaction --> ack, project, attempt log
//!                              \--> quarantine --> ack
//! ```
//!
//! A message in hand holds a slot from before it is received until it is acked or given up, so no more than `workers +
//! queue_capacity` are ever in hand. Nothing here acks a message whose outcome is not committed: what fails or
//! panics is simply let go and the broker delivers it again.

mod ack;
mod attempts;
mod in_hand;
mod lanes;
mod puller;
mod settle;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::{Gate, Notify, Queue};
use shards::{Admission, Permit};

use crate::config::Worker as Settings;
use crate::observe::metrics::{Metrics, Processed};
use crate::observe::trace::Tracer;
use crate::ports::{AttemptRow, MessageSource, Orders, ResultBoard};

use ack::Ack;
use in_hand::InHand;
use lanes::Lanes;

/// First and longest pause between two probes of an order store that refused work, and the longest probe.
const PROBE_FIRST: Duration = Duration::from_millis(100);
const PROBE_LAST: Duration = Duration::from_secs(1);
const PROBE: Duration = Duration::from_secs(2);

/// Times and limits of fulfilment that do not come from `[worker]`.
#[derive(Debug, Clone, Copy)]
pub struct FulfilLimits {
    /// How long a popped message stays hidden.
    pub invisible: Duration,
    /// Longest order transaction.
    pub transaction: Duration,
    /// Deliveries before a message goes to the dead-letter topic.
    pub deliveries_max: u32,
    /// Longest orderly stop.
    pub drain: Duration,
}

/// The order worker of one shard.
pub struct Fulfil<S: MessageSource, O, B> {
    source: S,
    orders: O,
    board: B,
    settings: Settings,
    limits: FulfilLimits,
    metrics: Rc<Metrics>,
    tracer: Tracer,
    slots: Admission,
    /// Told whenever a slot is given back.
    slot_freed: Rc<Notify>,
    lanes: RefCell<Lanes<S::Handle>>,
    in_hand: InHand<S::Handle>,
    acks: Rc<Queue<Ack<S::Handle>>>,
    attempts: Rc<Queue<AttemptRow>>,
    /// Messages being worked on, at most `settings.workers`.
    working: Cell<usize>,
    /// While the order store is down nothing is pulled: when to probe it next.
    probe_at: Cell<Option<Instant>>,
    probe_pause: Cell<Duration>,
    stopping: Gate,
    cancelled: Gate,
}

/// A slot: permission to hold one message.
struct Slot {
    permit: Option<Permit>,
    freed: Rc<Notify>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The permit goes first, so that whoever is woken finds it.
        self.permit = None;
        self.freed.notify_one();
    }
}

impl<S, O, B> Fulfil<S, O, B>
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    /// A worker over its three ports, which records spans by `tracer`.
    pub fn new(
        source: S,
        orders: O,
        board: B,
        settings: Settings,
        limits: FulfilLimits,
        metrics: Rc<Metrics>,
        tracer: Tracer,
    ) -> Rc<Self> {
        let in_flight_max = settings.workers + settings.queue_capacity;
        Rc::new(Self {
            source,
            orders,
            board,
            limits,
            slots: Admission::new(in_flight_max),
            slot_freed: Rc::new(Notify::new()),
            lanes: RefCell::new(Lanes::new(settings.sku_batches_max)),
            in_hand: InHand::new(metrics.clone()),
            metrics,
            tracer,
            acks: Rc::new(Queue::new(in_flight_max)),
            attempts: Rc::new(Queue::new(attempts::WAITING_MAX)),
            working: Cell::new(0),
            probe_at: Cell::new(None),
            probe_pause: Cell::new(Duration::ZERO),
            stopping: Gate::new(),
            cancelled: Gate::new(),
            settings,
        })
    }

    /// Works until [`stop`](Self::stop), then drains. Returns how many messages were let go unfinished.
    pub async fn run(self: Rc<Self>) -> usize {
        let acker = shards::spawn(ack::run(self.clone()));
        let logger = shards::spawn(attempts::run(self.clone()));
        let extender = shards::spawn(in_hand::extend_while_in_hand(self.clone()));
        let pullers: Vec<_> =
            (0..self.settings.pullers).map(|index| shards::spawn(self.clone().keep_pulling(index))).collect();
        self.stopping.closed().await;
        for puller in pullers {
            if puller.await.is_err() {
                self.panicked("puller");
            }
        }
        let unfinished = self.drain().await;
        self.acks.close();
        self.attempts.close();
        self.cancelled.close();
        for (name, task) in [("acker", acker), ("attempt log", logger), ("extender", extender)] {
            if task.await.is_err() {
                self.panicked(name);
            }
        }
        unfinished
    }

    /// A puller that panics is started again: its messages come back by themselves, a missing puller would not.
    async fn keep_pulling(self: Rc<Self>, index: usize) {
        while shards::spawn(puller::run(self.clone(), index)).await.is_err() {
            self.panicked("puller");
            shards::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops pulling. Work in hand is finished within the drain time; the rest is let go without an ack.
    pub fn stop(&self) {
        self.stopping.close();
    }

    /// Messages in hand now.
    pub fn in_flight(&self) -> usize {
        self.slots.in_use()
    }

    async fn drain(&self) -> usize {
        let deadline = shards::now() + self.limits.drain;
        while self.slots.in_use() > 0 && shards::now() < deadline {
            // A deadline that strikes here is seen by the loop's condition.
            let _ = shards::timeout_at(deadline, self.slot_freed.notified()).await;
        }
        self.slots.in_use()
    }

    /// Takes up to `max` slots.
    fn take_slots(&self, max: usize) -> Vec<Slot> {
        let permits = std::iter::from_fn(|| self.slots.try_acquire()).take(max);
        permits.map(|permit| Slot { permit: Some(permit), freed: self.slot_freed.clone() }).collect()
    }

    fn panicked(&self, what: &str) {
        self.metrics.task_panics.inc();
        tracing::error!(what, "a task panicked");
    }

    /// The order store refuses work: nothing is pulled until a probe says that it takes some again. Messages wait better
    /// in the broker, where no delivery of theirs is used up.
    fn store_is_down(&self) {
        // All that is in hand fails at once: that is one outage, not many.
        if self.probe_at.get().is_none() {
            self.schedule_probe();
        }
    }

    fn schedule_probe(&self) {
        let pause = (self.probe_pause.get() * 2).clamp(PROBE_FIRST, PROBE_LAST);
        self.probe_pause.set(pause);
        self.probe_at.set(Some(shards::now() + pause));
    }

    fn store_is_up(&self) {
        self.probe_pause.set(Duration::ZERO);
        self.probe_at.set(None);
    }

    /// Asks the store whether it is back; one of several pullers does.
    async fn probe(&self) {
        // Others come back when this one is certainly done.
        self.probe_at.set(Some(shards::now() + 2 * PROBE));
        if self.orders.probe(shards::now() + PROBE).await {
            tracing::info!("the order store takes work again");
            self.store_is_up();
        } else {
            self.schedule_probe();
        }
    }

    fn finished(&self, outcome: Processed, since: Instant) {
        self.metrics.processed(outcome, shards::now() - since);
    }
}

#[cfg(test)]
mod tests;

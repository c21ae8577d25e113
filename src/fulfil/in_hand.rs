//! The messages in hand: their handles, and the extension of their invisible time while they are worked on.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use super::{Fulfil, Slot};
use crate::observe::metrics::Metrics;
use crate::observe::trace::Span;
use crate::ports::{Delivery, MessageSource, Orders, ResultBoard};
use crate::race::{First, race};

/// Extending close to expiry makes the broker deliver a copy more (RocketMQ notes, section 6): leave it alone then.
const EXTEND_MARGIN: Duration = Duration::from_secs(3);

/// A message in hand. Dropping the last reference gives its slot back.
pub(super) struct Held<H> {
    /// The message as it came.
    pub(super) delivery: Delivery<H>,
    /// When it came.
    pub(super) received_at: Instant,
    /// The handle that acks it now; an extension replaces it.
    handle: RefCell<H>,
    hidden_until: Cell<Instant>,
    metrics: Rc<Metrics>,
    /// From receipt to ack.
    pub(super) span: Span,
    _slot: Slot,
}

impl<H> Drop for Held<H> {
    fn drop(&mut self) {
        self.metrics.mq_inflight.add(-1);
    }
}

impl<H: Clone> Held<H> {
    pub(super) fn handle(&self) -> H {
        self.handle.borrow().clone()
    }
}

/// Everything in hand, oldest first. Weak: the owner of the work decides how long a message is held.
pub(super) struct InHand<H> {
    list: RefCell<Vec<Weak<Held<H>>>>,
    metrics: Rc<Metrics>,
}

impl<H: Clone> InHand<H> {
    pub(super) fn new(metrics: Rc<Metrics>) -> Self {
        Self { list: RefCell::default(), metrics }
    }

    pub(super) fn hold(&self, delivery: Delivery<H>, slot: Slot, invisible: Duration, span: Span) -> Rc<Held<H>> {
        let now = shards::now();
        let held = Rc::new(Held {
            handle: RefCell::new(delivery.handle.clone()),
            delivery,
            received_at: now,
            hidden_until: Cell::new(now + invisible),
            metrics: self.metrics.clone(),
            span,
            _slot: slot,
        });
        self.metrics.mq_inflight.add(1);
        self.metrics.mq_inflight_peak.set(self.metrics.mq_inflight_peak.get().max(self.metrics.mq_inflight.get()));
        let mut list = self.list.borrow_mut();
        // The list is as long as the slots at most, once what was let go is swept out.
        if list.len() == list.capacity() {
            list.retain(|held| held.strong_count() > 0);
        }
        list.push(Rc::downgrade(&held));
        held
    }

    /// What has less than half of its invisible time left, but enough for an extension to be safe.
    fn due(&self, invisible: Duration) -> Vec<Rc<Held<H>>> {
        let now = shards::now();
        let mut list = self.list.borrow_mut();
        list.retain(|held| held.strong_count() > 0);
        let alive = list.iter().filter_map(Weak::upgrade);
        alive
            .filter(|held| {
                let left = held.hidden_until.get().saturating_duration_since(now);
                left < invisible / 2 && left > EXTEND_MARGIN
            })
            .collect()
    }
}

/// Extends what is worked on for long, until fulfilment has ended.
pub(super) async fn extend_while_in_hand<S, O, B>(fulfil: Rc<Fulfil<S, O, B>>)
where
    S: MessageSource + 'static,
    O: Orders + 'static,
    B: ResultBoard + 'static,
{
    let invisible = fulfil.limits.invisible;
    loop {
        let pause = shards::sleep(invisible / 8);
        if let First::Right(()) = race(pause, fulfil.cancelled.closed()).await {
            return;
        }
        for held in fulfil.in_hand.due(invisible) {
            let extended_at = shards::now();
            match fulfil.source.extend(&held.handle(), invisible).await {
                Ok(handle) => {
                    *held.handle.borrow_mut() = handle;
                    held.hidden_until.set(extended_at + invisible);
                    fulfil.metrics.mq_extended.inc();
                }
                // It may come a second time; the inbox makes that harmless.
                Err(error) => tracing::warn!(%error, "invisible time not extended"),
            }
        }
    }
}

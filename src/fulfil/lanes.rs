//! Lanes: the messages that wait, one lane a SKU, so that a hot SKU's messages meet in few hands and never hold up
//! another SKU.

use std::collections::HashMap;
use std::rc::Rc;

use super::in_hand::Held;
use crate::domain::{OrderCreateEvent, Sku};

/// A checked message that waits for its order transaction.
pub(super) struct Job<H> {
    pub(super) held: Rc<Held<H>>,
    pub(super) event: OrderCreateEvent,
}

struct Lane<H> {
    waiting: Vec<Job<H>>,
    in_flight: usize,
}

/// All lanes of a shard. Bounded by the slots: a lane exists only while one of its messages is in hand.
pub(super) struct Lanes<H> {
    lanes: HashMap<Sku, Lane<H>>,
    batches_max: usize,
    waiting: usize,
}

impl<H> Lanes<H> {
    pub(super) fn new(batches_max: usize) -> Self {
        Self { lanes: HashMap::new(), batches_max, waiting: 0 }
    }

    pub(super) fn push(&mut self, job: Job<H>) {
        let lane = self.lanes.entry(job.event.sku).or_insert_with(|| Lane { waiting: Vec::new(), in_flight: 0 });
        lane.waiting.push(job);
        self.waiting += 1;
    }

    /// Messages that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The next batch of at most `max` messages, from the lane that holds most and has not its share of transactions
    /// in flight yet. The caller reports its end to [`done`](Self::done).
    pub(super) fn take(&mut self, max: usize) -> Option<Vec<Job<H>>> {
        if max == 0 {
            return None;
        }
        let ready = self.lanes.values_mut().filter(|lane| lane.in_flight < self.batches_max);
        let lane = ready.max_by_key(|lane| lane.waiting.len()).filter(|lane| !lane.waiting.is_empty())?;
        let count = lane.waiting.len().min(max);
        let batch: Vec<Job<H>> = lane.waiting.drain(..count).collect();
        lane.in_flight += 1;
        self.waiting -= batch.len();
        Some(batch)
    }

    /// A batch of `sku` has ended.
    pub(super) fn done(&mut self, sku: Sku) {
        if let Some(lane) = self.lanes.get_mut(&sku) {
            lane.in_flight -= 1;
            if lane.in_flight == 0 && lane.waiting.is_empty() {
                self.lanes.remove(&sku);
            }
        }
    }
}

//! What the main thread and the shards tell each other.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use shards::mailbox::{self, Sender};

use super::shard::ShardEnd;
use super::{Role, readiness};
use crate::observe::metrics::Metrics;

/// Messages that may wait for a shard: a stop and some scrapes.
pub(super) const WAITING_MAX: usize = 16;
/// What a shard may take beyond the drain time to close its connections.
pub(super) const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// How long a scrape waits for a shard.
const SNAPSHOT: Duration = Duration::from_secs(1);

/// To a shard.
pub(super) enum Control {
    /// Drain and end.
    Stop,
    /// Send a copy of the metrics.
    Snapshot(Sender<Metrics>),
}

/// From a shard.
pub(super) enum Notice {
    /// It takes work.
    Started,
    /// It has ended.
    Ended {
        /// Which.
        index: usize,
        /// How.
        end: ShardEnd,
    },
}

/// The main thread's view of all shards.
#[derive(Clone)]
pub(super) struct Overview(Rc<Inner>);

struct Inner {
    controls: Vec<Sender<Control>>,
    ready: Cell<bool>,
    role: Role,
    services: bool,
    instance: String,
}

impl Overview {
    pub(super) fn new(controls: Vec<Sender<Control>>, role: Role, services: bool, instance: String) -> Self {
        Self(Rc::new(Inner { controls, ready: Cell::new(false), role, services, instance }))
    }

    pub(super) fn role(&self) -> Role {
        self.0.role
    }

    /// Which process of the service this is.
    pub(super) fn instance(&self) -> &str {
        &self.0.instance
    }

    pub(super) fn shards(&self) -> usize {
        self.0.controls.len()
    }

    /// Every reason why this process should get no work now.
    pub(super) async fn why_not_ready(&self) -> Vec<String> {
        self.why_not(&self.metrics().await)
    }

    /// The same by metrics that were asked for already.
    pub(super) fn why_not(&self, shards: &[Metrics]) -> Vec<String> {
        readiness::why_not(self.0.ready.get(), self.0.role, self.0.services, shards)
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.0.ready.set(ready);
    }

    pub(super) fn broadcast_stop(&self) {
        for (index, control) in self.0.controls.iter().enumerate() {
            if control.try_send(Control::Stop).is_err() {
                tracing::error!(shard = index, "a shard does not take its stop");
            }
        }
    }

    /// A copy of every shard's metrics; shards that do not answer in time are missing and named in the log.
    pub(super) async fn metrics(&self) -> Vec<Metrics> {
        let (sender, mut copies) = mailbox::bounded(self.shards().max(1));
        for control in &self.0.controls {
            // A shard whose mailbox is full is stuck; the count below says so.
            let _ = control.try_send(Control::Snapshot(sender.clone()));
        }
        drop(sender);
        let deadline = shards::now() + SNAPSHOT;
        let mut all = Vec::with_capacity(self.shards());
        while all.len() < self.shards() {
            match shards::timeout_at(deadline, copies.recv()).await {
                Ok(Some(copy)) => all.push(copy),
                Ok(None) | Err(_) => {
                    tracing::warn!(answered = all.len(), shards = self.shards(), "a scrape misses shards");
                    break;
                }
            }
        }
        all.sort_by_key(|copy| copy.shard.get());
        all
    }
}

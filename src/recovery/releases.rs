//! Units on their way back: decided in PostgreSQL with the rejection, carried to Redis here.
//!
//! The outbox row is claimed, the rejection shown to its buyer, the unit given back (exactly once: the script knows by the
//! reservation's state), and only then is the row done. A crash in between comes to the same, a little later.

use std::rc::Rc;
use std::time::Duration;

use shards::sync::Gate;

use super::work_off;
use crate::domain::by_sku;
use crate::observe::metrics::Metrics;
use crate::ports::{PortError, Release, ReleaseOutbox, Returned};

/// Releases claimed at a time.
const CLAIM_MAX: usize = 256;
/// Longest step against one of the services.
const STEP: Duration = Duration::from_secs(2);

/// The task that gives units back, one a process.
pub struct ReleaseTask<O> {
    outbox: O,
    pause: Duration,
    metrics: Rc<Metrics>,
}

impl<O: ReleaseOutbox> ReleaseTask<O> {
    /// A task that looks every `pause` while nothing is due.
    pub fn new(outbox: O, pause: Duration, metrics: Rc<Metrics>) -> Self {
        Self { outbox, pause, metrics }
    }

    /// Works until `stopping`.
    pub async fn run(self, stopping: Gate) {
        work_off(&stopping, self.pause, CLAIM_MAX, "units cannot be given back for now", async || self.work().await)
            .await;
    }

    /// Gives back what is due. How many were claimed.
    ///
    /// # Errors
    /// When the outbox cannot be read or written; what was given back is found so the next time.
    pub async fn work(&self) -> Result<usize, PortError> {
        let due = self.outbox.claim(CLAIM_MAX, shards::now() + STEP).await?;
        let count = due.len();
        let mut applied = Vec::with_capacity(count);
        for (sku, group) in by_sku(due, |release| release.sku) {
            match self.outbox.give_back(sku, &group, shards::now() + STEP).await {
                Ok(answers) => {
                    for (release, returned) in group.iter().zip(answers) {
                        match returned {
                            Returned::Done => applied.push(release.id),
                            Returned::Refused => {
                                self.metrics.release_refused.inc();
                                let Release { reservation_id, reason, .. } = release;
                                tracing::error!(%sku, %reservation_id, reason, "a unit that is to go back is not free in Redis");
                            }
                        }
                    }
                }
                // One SKU's Redis may be down while another's is not.
                Err(error) => tracing::warn!(%sku, %error, "units cannot be given back for now"),
            }
        }
        if !applied.is_empty() {
            self.outbox.applied(&applied, shards::now() + STEP).await?;
            self.metrics.release_applied.add(applied.len() as u64);
        }
        Ok(count)
    }
}

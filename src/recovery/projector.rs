//! The result projector: outcomes that were committed but perhaps never shown, because Redis or the worker was down in between.
//!
//! The worker shows what it settles at once; this task follows the inbox behind it, row by row, and shows everything again.
//! A result that is there already costs two reads. So nothing is missed, whoever died when.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use shards::sync::Gate;

use super::work_off;
use crate::domain::by_sku;
use crate::observe::metrics::Metrics;
use crate::ports::{PortError, ResultRow, SettledOutcomes};

/// Outcomes shown at a time (the script's own bound).
const CLAIM_MAX: usize = 512;
/// Longest step against one of the services.
const STEP: Duration = Duration::from_secs(2);

/// The projector, one a process; a lease in PostgreSQL lets one of them work at a time.
pub struct Projector<O> {
    outcomes: O,
    pause: Duration,
    metrics: Rc<Metrics>,
    /// The cursor is there.
    open: Cell<bool>,
}

impl<O: SettledOutcomes> Projector<O> {
    /// A projector that looks every `pause` while there is nothing to show.
    pub fn new(outcomes: O, pause: Duration, metrics: Rc<Metrics>) -> Self {
        Self { outcomes, pause, metrics, open: Cell::new(false) }
    }

    /// Works until `stopping`.
    pub async fn run(self, stopping: Gate) {
        let what = "committed outcomes cannot be shown for now";
        work_off(&stopping, self.pause, CLAIM_MAX, what, async || self.work().await).await;
    }

    /// Shows the next outcomes. How many there were.
    ///
    /// # Errors
    /// When a store cannot be asked; the cursor stays, and the same outcomes come again.
    pub async fn work(&self) -> Result<usize, PortError> {
        if !self.open.get() {
            self.outcomes.open(shards::now() + STEP).await?;
            self.open.set(true);
        }
        let rows = self.outcomes.claim(CLAIM_MAX, shards::now() + STEP).await?;
        let Some(last) = rows.last() else { return Ok(0) };
        let results: Vec<ResultRow> = rows.iter().filter_map(|row| row.result).collect();
        for (sku, group) in by_sku(results, |row| row.sku) {
            let contradicted = self.outcomes.show(sku, &group, shards::now() + STEP).await?;
            self.metrics.reservation_illegal_transition.add(contradicted);
        }
        self.outcomes.advance(last, shards::now() + STEP).await?;
        self.metrics.result_reprojected.add(rows.len() as u64);
        Ok(rows.len())
    }
}

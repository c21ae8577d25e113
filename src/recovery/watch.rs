//! The book watch: a look at the sums of every live sale now and then, at low priority, as one number to alarm on.
//!
//! It repairs nothing and reads no single reservation; `seckill reconcile` does, and says what the number is made of.

use std::rc::Rc;
use std::time::Duration;

use shards::sync::Gate as Stop;

use crate::observe::metrics::Metrics;
use crate::race::{First, race};
use crate::sale::{Gate, Sale, SaleError, Sales};

/// An inbox row without an outcome is stuck after this: no transaction takes as long.
const STUCK: Duration = Duration::from_secs(60);
/// Pause between two sales: whoever sells comes first.
const BETWEEN: Duration = Duration::from_millis(20);

/// The watch, one a process.
pub struct BookWatch {
    sales: Sales,
    every: Duration,
    metrics: Rc<Metrics>,
}

impl BookWatch {
    /// A watch that looks every `every`.
    pub fn new(sales: Sales, every: Duration, metrics: Rc<Metrics>) -> Self {
        Self { sales, every, metrics }
    }

    /// Watches until `stopping`.
    pub async fn run(self, stopping: Stop) {
        loop {
            if let First::Right(()) = race(shards::sleep(self.every), stopping.closed()).await {
                return;
            }
            match self.look(&stopping).await {
                Ok(units) => self.metrics.inventory_discrepancy.set(units),
                // The number stands as it was: what cannot be read is not wrong.
                Err(error) => tracing::warn!(%error, "the books cannot be compared for now"),
            }
            match self.sales.stuck_inbox(STUCK).await {
                Ok(rows) => self.metrics.inbox_stuck.set(rows),
                Err(error) => tracing::warn!(%error, "the inbox cannot be looked at for now"),
            }
        }
    }

    /// Units that are not where they should be, over all live sales.
    async fn look(&self, stopping: &Stop) -> Result<i64, SaleError> {
        let mut units = 0;
        for sku in self.sales.live().await? {
            if stopping.is_closed() {
                break;
            }
            let Some(sale) = self.sales.load(sku).await? else { continue };
            let gate = self.sales.gate(sku).await?;
            let wrong = discrepancy(&sale, &gate);
            if wrong > 0 {
                tracing::error!(
                    %sku, units = wrong, stock = gate.stock, buyers = gate.buyers, total = sale.total, sold = sale.sold,
                    "the books of a sale do not agree: `seckill reconcile` says why"
                );
            }
            units += wrong;
            shards::sleep(BETWEEN).await;
        }
        Ok(units)
    }
}

/// How many units of a sale are not where they should be.
fn discrepancy(sale: &Sale, gate: &Gate) -> i64 {
    let (total, sold) = (i64::from(sale.total), i64::from(sale.sold));
    if !gate.warmed {
        // A sale that was never opened has sold nothing.
        return sold;
    }
    if gate.state == "rebuilding" {
        return total - gate.stock - gate.buyers;
    }
    // Every order has a buyer; the sale row is read first, so that one that is made in between counts for no one.
    (gate.stock + gate.buyers - total).abs() + (sold - gate.buyers).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(total: i32, sold: i32) -> Sale {
        Sale { start_at: 0, end_at: 1, expire_at: 1, closed: false, generation: 1, total, sold }
    }

    fn gate(stock: i64, buyers: i64) -> Gate {
        Gate {
            warmed: true,
            state: "open".to_owned(),
            total: 10,
            stock,
            buyers,
            pending: 0,
            oldest_pending_ms: -1,
            start_ms: 0,
            end_ms: 1,
            expire_at_ms: 1,
            generation: 1,
            redis_now_ms: 0,
        }
    }

    #[test]
    fn units_that_are_missing_too_many_or_unknown_count() {
        assert_eq!(discrepancy(&sale(10, 2), &gate(7, 3)), 0);
        assert_eq!(discrepancy(&sale(10, 3), &gate(8, 3)), 1, "one too many");
        assert_eq!(discrepancy(&sale(10, 3), &gate(6, 3)), 1, "one lost");
        assert_eq!(discrepancy(&sale(10, 5), &gate(7, 3)), 2, "two orders whose buyers Redis forgot");
        assert_eq!(discrepancy(&sale(10, 5), &Gate { warmed: false, ..gate(-1, 0) }), 5);
        assert_eq!(discrepancy(&sale(10, 0), &Gate { warmed: false, ..gate(-1, 0) }), 0);
    }
}

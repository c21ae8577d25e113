//! Recovery: what a process that died, or a broker that did not answer, has left unfinished.
//!
//! [`ReleaseTask`] gives units back whose order was turned down, [`Projector`] shows outcomes that may not have been shown. The pending scanner finds reservations whose message was never confirmed, through the sorted set of their SKU, and sends the
//! message again: the same message_id, a higher retry_count. A claim is a lease in Redis, so many instances share the work;
//! whatever is sent twice all the same is answered by the consumer's inbox.

mod projector;
mod releases;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::Gate;

use crate::config::Recovery as Settings;
use crate::domain::{OrderCreateEvent, Sku};
use crate::observe::metrics::Metrics;
use crate::ports::{EventBus, PendingIndex, PortError, Reservations};
use crate::race::{First, race};

pub use projector::Projector;
pub use releases::ReleaseTask;
pub use watch::BookWatch;

/// Longest step against one of the services.
const STEP: Duration = Duration::from_secs(2);
/// How often the list of sales is read again.
const SALES_EVERY: Duration = Duration::from_secs(5);

/// Does `work` until `stopping`: at once again when it found as much as it takes at a time, after `pause` when it did not.
async fn work_off(
    stopping: &Gate,
    pause: Duration,
    full: usize,
    failure: &'static str,
    work: impl AsyncFn() -> Result<usize, PortError>,
) {
    loop {
        let more = match work().await {
            Ok(count) => count == full,
            Err(error) => {
                tracing::warn!(%error, "{failure}");
                false
            }
        };
        let pause = if more { Duration::ZERO } else { pause };
        if let First::Right(()) = race(shards::sleep(pause), stopping.closed()).await {
            return;
        }
    }
}

/// The pending scanner of one process.
pub struct PendingScanner<P, R, B> {
    index: P,
    book: Rc<R>,
    bus: Rc<B>,
    settings: Settings,
    metrics: Rc<Metrics>,
    sales: RefCell<Vec<Sku>>,
}

impl<P: PendingIndex, R: Reservations + 'static, B: EventBus + 'static> PendingScanner<P, R, B> {
    /// A scanner over the index, the book that is told what was sent, and the bus.
    pub fn new(index: P, book: Rc<R>, bus: Rc<B>, settings: Settings, metrics: Rc<Metrics>) -> Self {
        Self { index, book, bus, settings, metrics, sales: RefCell::default() }
    }

    /// Scans until `stopping`.
    pub async fn run(self, stopping: Gate) {
        let mut sales_read: Option<Instant> = None;
        loop {
            if sales_read.is_none_or(|at| at.elapsed() >= SALES_EVERY) {
                match self.index.live_sales(shards::now() + STEP).await {
                    Ok(sales) => *self.sales.borrow_mut() = sales,
                    // The sales known so far are scanned on: what matters here is in Redis.
                    Err(error) => tracing::warn!(%error, "the list of sales cannot be read"),
                }
                sales_read = Some(shards::now());
            }
            let found = self.scan().await;
            // A full claim means that more waits behind it.
            let pause = if found { Duration::ZERO } else { Duration::from_millis(self.settings.scan_ms) };
            if let First::Right(()) = race(shards::sleep(pause), stopping.closed()).await {
                return;
            }
        }
    }

    /// One look at every sale. Whether one of them had as much to claim as is claimed at a time.
    pub async fn scan(&self) -> bool {
        if !self.bus.is_available() {
            // What cannot be sent need not be claimed.
            return false;
        }
        let sales = self.sales.borrow().clone();
        let mut full = false;
        for sku in sales {
            let age = Duration::from_millis(self.settings.pending_age_ms);
            let lease = Duration::from_millis(self.settings.lease_ms);
            match self.index.claim(sku, age, lease, self.settings.batch_max, shards::now() + STEP).await {
                Ok(events) => {
                    full |= events.len() == self.settings.batch_max;
                    self.resend(sku, events).await;
                }
                // Every sale is in the same Redis.
                Err(error) => {
                    tracing::warn!(%sku, %error, "pending reservations cannot be claimed");
                    break;
                }
            }
        }
        full
    }

    /// Sends all at once, so that they share sends with each other and with everybody else.
    async fn resend(&self, sku: Sku, events: Vec<OrderCreateEvent>) {
        if events.is_empty() {
            return;
        }
        tracing::info!(%sku, count = events.len(), "messages that were never confirmed are sent again");
        let deadline = shards::now() + Duration::from_millis(self.settings.lease_ms).min(STEP);
        let sends: Vec<_> = events
            .into_iter()
            .map(|event| {
                let (book, bus, metrics) = (self.book.clone(), self.bus.clone(), self.metrics.clone());
                shards::spawn(async move {
                    let reservation_id = event.reservation_id;
                    match bus.publish(event, deadline).await {
                        Ok(()) => {
                            metrics.recovery_resent.inc();
                            book.mark_sent(sku, reservation_id);
                        }
                        // It stays in the index, and is claimed again when the lease is over.
                        Err(error) => {
                            metrics.recovery_failed.inc();
                            tracing::warn!(%reservation_id, %error, "message not sent again");
                        }
                    }
                })
            })
            .collect();
        for send in sends {
            if send.await.is_err() {
                self.metrics.task_panics.inc();
            }
        }
    }
}

#[cfg(test)]
mod tests;

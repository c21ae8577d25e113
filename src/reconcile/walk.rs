//! The walk through both books, and the repairs.

use std::collections::HashSet;
use std::time::Duration;

use proto_clients::rocketmq::{Client, SendOutcome};

use super::{Findings, Judge, Kind};
use crate::domain::{OrderCreateEvent, OrderId, Sku, TraceContext, UserId, Uuid};
use crate::sale::{Counts, Gate, Inspected, OrderRow, PAGE, Reindex, Sale, SaleError, Sales};
use crate::services::order_message;

/// Longest send of a message that was lost.
const SEND: Duration = Duration::from_secs(5);

/// What a reconciliation says.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// The sale in PostgreSQL.
    pub postgres: Sale,
    /// What PostgreSQL counts.
    pub counts: Counts,
    /// The sale in Redis.
    pub redis: Gate,
    /// Messages in the topic that nobody has popped.
    pub lag: u64,
    /// What is wrong.
    pub findings: Findings,
    /// What is neither repaired nor heals by itself.
    pub open: u64,
}

/// Compares, and repairs if asked to.
pub struct Reconciler<'a> {
    /// Both books.
    pub sales: &'a Sales,
    /// The topic.
    pub client: &'a Client,
    /// Its name.
    pub topic: &'a str,
    /// How long a reservation may be under way.
    pub patience: Duration,
    /// Whether to repair.
    pub repair: bool,
}

/// What is to be done, by the kind that it repairs.
#[derive(Default)]
struct Repairs {
    orders: Vec<(Kind, OrderRow)>,
    indexes: Vec<(Kind, (Reindex, UserId, Uuid))>,
    releases: Vec<Uuid>,
    messages: Vec<OrderCreateEvent>,
}

impl Reconciler<'_> {
    /// One SKU.
    ///
    /// # Errors
    /// When a store or the broker cannot be asked.
    pub async fn run(&self, sku: Sku) -> Result<Report, SaleError> {
        let postgres = self.sales.load(sku).await?.ok_or(SaleError::Unknown(sku))?;
        let lag = self.client.lag(self.topic, shards::now() + SEND).await?;
        let (counts, redis) = (self.sales.counts(sku).await?, self.sales.gate(sku).await?);
        let mut findings = Findings::default();
        Judge::sums(&postgres, &redis, &counts, &mut findings);
        if redis.warmed {
            let patience_ms = i64::try_from(self.patience.as_millis()).unwrap_or(i64::MAX);
            let judge = Judge { now_ms: redis.redis_now_ms, patience_ms, drained: lag == 0 };
            let mut repairs = Repairs::default();
            self.orders(sku, &mut findings, &mut repairs).await?;
            self.buyers(sku, judge, &mut findings, &mut repairs).await?;
            if self.repair {
                self.repair(sku, repairs, &mut findings).await?;
            }
        }
        let open = findings.open();
        Ok(Report { postgres, counts, redis, lag, findings, open })
    }

    async fn orders(&self, sku: Sku, findings: &mut Findings, repairs: &mut Repairs) -> Result<(), SaleError> {
        let mut after = 0;
        loop {
            let orders = self.sales.orders_page(sku, after).await?;
            let Some(last) = orders.last() else { return Ok(()) };
            after = last.user_id.get();
            let asked: Vec<_> = orders.iter().map(|order| (order.user_id, order.reservation_id)).collect();
            for (order, seen) in orders.iter().zip(self.sales.inspect(sku, &asked).await?) {
                let Some(kind) = Judge::order(order.reservation_id, &seen) else { continue };
                findings.add(kind, format!("order {} of user {}", order.order_id.get(), order.user_id.get()));
                if kind.is_repaired() {
                    repairs.orders.push((kind, *order));
                }
            }
        }
    }

    async fn buyers(
        &self,
        sku: Sku,
        judge: Judge,
        findings: &mut Findings,
        repairs: &mut Repairs,
    ) -> Result<(), SaleError> {
        let (mut cursor, mut known) = ("0".to_owned(), HashSet::new());
        loop {
            let (next, mut buyers) = self.sales.buyers_page(sku, &cursor).await?;
            buyers.retain(|(user, _)| known.insert(user.get()));
            for page in buyers.chunks(PAGE) {
                // Redis first: what PostgreSQL decides in between is then seen as decided, not as missing.
                let seen = self.sales.inspect(sku, page).await?;
                let ids: Vec<Uuid> = page.iter().map(|(_, id)| *id).collect();
                let decided = self.sales.decided(&ids).await?;
                for ((entry, seen), decided) in page.iter().zip(&seen).zip(decided) {
                    if let Some(kind) = judge.buyer(seen, decided) {
                        findings.add(kind, format!("reservation {} of user {}", entry.1, entry.0.get()));
                        plan(kind, sku, *entry, seen, repairs);
                    }
                }
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn repair(&self, sku: Sku, repairs: Repairs, findings: &mut Findings) -> Result<(), SaleError> {
        for page in repairs.orders.chunks(PAGE) {
            let orders: Vec<OrderRow> = page.iter().map(|(_, order)| *order).collect();
            for ((kind, _), code) in page.iter().zip(self.sales.restore_orders(sku, &orders).await?) {
                findings.repaired(*kind, u64::from(matches!(code, b'0' | b'1')));
            }
        }
        for page in repairs.indexes.chunks(PAGE) {
            let entries: Vec<_> = page.iter().map(|(_, entry)| *entry).collect();
            // Code 1: it has changed since, and is right now.
            for ((kind, _), code) in page.iter().zip(self.sales.reindex(sku, &entries).await?) {
                findings.repaired(*kind, u64::from(matches!(code, b'0' | b'1')));
            }
        }
        if !repairs.releases.is_empty() {
            self.sales.release_again(&repairs.releases).await?;
            findings.repaired(Kind::ReleaseForgotten, repairs.releases.len() as u64);
        }
        for event in &repairs.messages {
            if self.send(event).await? {
                findings.repaired(Kind::MessageLost, 1);
            }
        }
        // Last, because the repairs before it change how many buyers there are.
        let counted = self.sales.recount(sku, None, "").await?;
        if matches!(counted.code, 0 | 1) {
            findings.repaired(Kind::StockOff, 1);
        }
        Ok(())
    }

    async fn send(&self, event: &OrderCreateEvent) -> Result<bool, SaleError> {
        match self.client.send(self.topic, &[order_message(event)], shards::now() + SEND).await {
            SendOutcome::Stored { .. } => Ok(true),
            // Perhaps it is there twice now; the inbox takes it once.
            SendOutcome::Unknown(error) | SendOutcome::NotStored(error) => {
                tracing::warn!(reservation_id = %event.reservation_id, %error, "message not sent again");
                Ok(false)
            }
        }
    }
}

/// Notes the repair of a buyer's entry.
fn plan(kind: Kind, sku: Sku, entry: (UserId, Uuid), seen: &Inspected, repairs: &mut Repairs) {
    let (user, reservation) = entry;
    match kind {
        Kind::UnsentAndLost => repairs.indexes.push((kind, (Reindex::Pending, user, reservation))),
        Kind::BuyerOfNothing | Kind::BuyerWithoutReservation => {
            repairs.indexes.push((kind, (Reindex::Buyer, user, reservation)));
        }
        Kind::ReleaseForgotten => repairs.releases.push(reservation),
        Kind::MessageLost => repairs.messages.extend(event(sku, entry, seen)),
        _ => {}
    }
}

/// The message of a reservation, as recovery would send it. `None` when its record cannot be read: then it stays a finding.
fn event(sku: Sku, (user_id, reservation_id): (UserId, Uuid), seen: &Inspected) -> Option<OrderCreateEvent> {
    Some(OrderCreateEvent {
        message_id: Uuid::parse(seen.message_id.as_bytes())?,
        request_id: Uuid::parse(seen.request_id.as_bytes())?,
        reservation_id,
        sku,
        user_id,
        order_id: OrderId::new(seen.order_id.parse().ok()?)?,
        created_at_micros: u64::try_from(seen.created_at_ms).ok()?.checked_mul(1_000)?,
        retry_count: seen.retry_count.saturating_add(1),
        trace: TraceContext::default(),
    })
}

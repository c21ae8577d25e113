//! Redis made anew from PostgreSQL (spec section 12, last row).
//!
//! ```text
//! wait until the topic is empty --> shut the gate --> restore every order --> stock = total - buyers, open
//! ```
//!
//! Whatever Redis still has is kept: a reservation on its way holds its unit. Whatever it lost is gone with it: a reservation
//! that was neither in the topic nor an order yet is nobody's, and its unit is for sale again. Orders that come in meanwhile are
//! found by counting; too few units for sale is the worst that can happen, for PostgreSQL has the last word.

use std::time::{Duration, Instant};

use proto_clients::postgres::{Statement, Type};
use proto_clients::rocketmq::Client;

use super::{SaleError, Sales, deadline, sku_params};
use crate::domain::Sku;
use crate::services::key_prefix;

static NEXT_GENERATION: Statement =
    Statement { sql: include_str!("../../sql/activity/next_generation.sql"), params: &[Type::Int8, Type::Int8] };

/// Passes over the orders before giving up on a count that does not stand still.
const PASSES: u32 = 20;
/// How often the topic is looked at, and how often in a row it must be empty.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS: u32 = 3;

/// What a rebuild did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Rebuilt {
    /// The new generation.
    pub generation: i64,
    /// Orders that Redis knows again.
    pub orders: i64,
    /// Of them, orders of which something was missing.
    pub restored: u64,
    /// Orders whose reservation Redis has as given back or turned down: an alarm, see `seckill reconcile`.
    pub contradicted: u64,
    /// Buyers, orders on their way included.
    pub buyers: i64,
    /// Units for sale.
    pub stock: i64,
}

impl Sales {
    /// Waits until every message of the topic has been popped and the sale's orders stand still, at most until `until`.
    ///
    /// # Errors
    /// [`SaleError::Backlog`] when time is up.
    pub async fn wait_for_topic(
        &self,
        sku: Sku,
        client: &Client,
        topic: &str,
        until: Instant,
    ) -> Result<(), SaleError> {
        let (mut quiet, mut orders) = (0, -1);
        loop {
            let lag = client.lag(topic, deadline()).await?;
            let now = self.counts(sku).await?.orders;
            quiet = if lag == 0 && now == orders { quiet + 1 } else { 0 };
            orders = now;
            if quiet >= LOOKS {
                return Ok(());
            }
            if shards::now() >= until {
                return Err(SaleError::Backlog { sku, lag });
            }
            shards::sleep(LOOK_EVERY).await;
        }
    }

    /// Rebuilds stock, buyers and results of a sale in Redis. The gate is shut from the first step to the last.
    ///
    /// # Errors
    /// When a store cannot be asked: the gate stays shut, and the rebuild is run again from the start.
    pub async fn rebuild(&self, sku: Sku) -> Result<Rebuilt, SaleError> {
        let sale = self.load(sku).await?.ok_or(SaleError::Unknown(sku))?;
        let generation = {
            let mut client = self.postgres.acquire(deadline()).await?;
            let rows = client.query(&NEXT_GENERATION, &sku_params(sku), deadline()).await?;
            if rows.is_empty() {
                return Err(SaleError::Unknown(sku));
            }
            rows.row(0).i64(0)?
        };
        let mut command = self.scripts.rebuild_begin.command(1, 6);
        command.arg(key_prefix(sku).as_bytes());
        command.arg_i64(i64::from(sale.total));
        for micros in [sale.start_at, sale.end_at, sale.expire_at] {
            command.arg_i64(micros / 1_000);
        }
        command.arg_i64(generation);
        match self.code(&self.scripts.rebuild_begin, command).await? {
            0 => {}
            3 => return Err(SaleError::Refused { sku, why: "another rebuild has begun" }),
            _ => return Err(SaleError::Refused { sku, why: "its values make no sense; has it expired already?" }),
        }
        let mut restored = 0;
        for _ in 0..PASSES {
            let (mut after, mut seen, mut contradicted) = (0, 0, 0);
            loop {
                let orders = self.orders_page(sku, after).await?;
                let Some(last) = orders.last() else { break };
                after = last.user_id.get();
                let codes = self.restore_orders(sku, &orders).await?;
                seen += orders.len() as i64;
                restored += codes.iter().filter(|code| **code == b'0').count() as u64;
                contradicted += codes.iter().filter(|code| matches!(code, b'3' | b'4')).count() as u64;
            }
            // Workers go on meanwhile: an order that came behind the page is not restored yet.
            if self.counts(sku).await?.orders == seen {
                return self.reopen(sku, sale.closed, generation, seen, restored, contradicted).await;
            }
        }
        Err(SaleError::Refused { sku, why: "its orders do not stand still; the gate stays shut, run it again" })
    }

    async fn reopen(
        &self,
        sku: Sku,
        closed: bool,
        generation: i64,
        orders: i64,
        restored: u64,
        contradicted: u64,
    ) -> Result<Rebuilt, SaleError> {
        let counted = self.recount(sku, Some(generation), if closed { "closed" } else { "open" }).await?;
        match counted.code {
            0 | 1 | 3 => {
                let (stock, buyers) = (counted.stock, counted.buyers);
                Ok(Rebuilt { generation, orders, restored, contradicted, buyers, stock })
            }
            2 => Err(SaleError::Refused { sku, why: "another rebuild has begun" }),
            _ => Err(SaleError::Refused { sku, why: "Redis lost it again meanwhile; run it again" }),
        }
    }
}

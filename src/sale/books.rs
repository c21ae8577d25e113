//! The two books of a sale read side by side, page by page, and the safe steps that bring them together again.

use proto_clients::postgres::{Params, Statement, Type};
use proto_clients::redis::{Command, Reply, Script};

use super::{SaleError, Sales, deadline, sku_params};
use crate::domain::{OrderId, Sku, UserId, Uuid};
use crate::services::key_prefix;

/// Rows of one page: the bound of the scripts.
pub const PAGE: usize = 512;
/// Fields a reservation in the reply of `inspect.lua`.
const INSPECTED: usize = 9;

static ORDERS: Statement = Statement {
    sql: include_str!("../../sql/reconcile/orders_page.sql"),
    params: &[Type::Int8, Type::Int8, Type::Int8, Type::Int8],
};
static DECIDED: Statement =
    Statement { sql: include_str!("../../sql/reconcile/decided.sql"), params: &[Type::UuidArray] };
static RELEASE_AGAIN: Statement =
    Statement { sql: include_str!("../../sql/reconcile/release_again.sql"), params: &[Type::UuidArray] };
static COUNTS: Statement =
    Statement { sql: include_str!("../../sql/reconcile/counts.sql"), params: &[Type::Int8, Type::Int8] };

/// An order as PostgreSQL has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderRow {
    /// The buyer.
    pub user_id: UserId,
    /// The buyer's key.
    pub request_id: Uuid,
    /// The reservation that became it.
    pub reservation_id: Uuid,
    /// Its id.
    pub order_id: OrderId,
    /// When it was made, Unix milliseconds.
    pub created_at_ms: i64,
}

/// What PostgreSQL has decided about a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// It has an order.
    Ordered,
    /// Its unit goes back.
    Released {
        /// Redis has taken it.
        applied: bool,
    },
}

/// What PostgreSQL counts of a SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Order rows.
    pub orders: i64,
    /// Releases that Redis has not taken.
    pub releases_due: i64,
}

/// What Redis has of a reservation (`lua/inspect.lua`). Empty text: not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of lua/inspect.lua")]
pub struct Inspected {
    pub status: String,
    pub created_at_ms: i64,
    pub request_id: String,
    pub message_id: String,
    pub order_id: String,
    pub retry_count: u32,
    pub held: String,
    pub pending: bool,
    pub result: String,
}

/// What `lua/recount.lua` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recounted {
    /// Its code.
    pub code: i64,
    /// Units left now.
    pub stock: i64,
    /// Buyers.
    pub buyers: i64,
    /// Units left before.
    pub before: i64,
}

/// What is done to an index entry (`lua/reindex.lua`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reindex {
    /// Back into the pending index.
    Pending,
    /// Out of the buyers.
    Buyer,
}

impl Sales {
    /// At most [`PAGE`] orders of users beyond `after`, by user.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn orders_page(&self, sku: Sku, after: i64) -> Result<Vec<OrderRow>, SaleError> {
        let mut params = sku_params(sku);
        params.i64(after).i64(PAGE as i64);
        let mut client = self.postgres.acquire(deadline()).await?;
        let rows = client.query(&ORDERS, &params, deadline()).await?;
        let mut orders = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let (user_id, order_id) = (UserId::new(row.i64(0)?), OrderId::new(row.i64(3)?));
            let (Some(user_id), Some(order_id)) = (user_id, order_id) else {
                return Err(SaleError::Reply(format!("an order of {sku} with ids that cannot be: {:?}", row.i64(3))));
            };
            orders.push(OrderRow {
                user_id,
                request_id: Uuid(row.uuid(1)?),
                reservation_id: Uuid(row.uuid(2)?),
                order_id,
                created_at_ms: row.timestamptz_micros(4)? / 1_000,
            });
        }
        Ok(orders)
    }

    /// What PostgreSQL has decided about each of these, `None` for nothing yet.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn decided(&self, reservations: &[Uuid]) -> Result<Vec<Option<Decided>>, SaleError> {
        let mut params = Params::new();
        params.uuid_array(reservations.iter().map(|id| id.0));
        let mut client = self.postgres.acquire(deadline()).await?;
        let rows = client.query(&DECIDED, &params, deadline()).await?;
        let mut found = std::collections::HashMap::with_capacity(rows.len());
        for row in rows.iter() {
            let decided = if row.bool(1)? { Decided::Ordered } else { Decided::Released { applied: row.bool(2)? } };
            found.insert(row.uuid(0)?, decided);
        }
        Ok(reservations.iter().map(|id| found.get(&id.0).copied()).collect())
    }

    /// Makes the releases of these reservations due again.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn release_again(&self, reservations: &[Uuid]) -> Result<(), SaleError> {
        let mut params = Params::new();
        params.uuid_array(reservations.iter().map(|id| id.0));
        let mut client = self.postgres.acquire(deadline()).await?;
        client.query(&RELEASE_AGAIN, &params, deadline()).await?;
        Ok(())
    }

    /// What PostgreSQL counts.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn counts(&self, sku: Sku) -> Result<Counts, SaleError> {
        let mut client = self.postgres.acquire(deadline()).await?;
        let rows = client.query(&COUNTS, &sku_params(sku), deadline()).await?;
        let row = rows.row(0);
        Ok(Counts { orders: row.i64(0)?, releases_due: row.i64(1)? })
    }

    /// Some of the buyers in Redis with the reservation each of them holds, and the cursor of the next page; `0` begins and ends.
    /// A buyer may come twice.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn buyers_page(&self, sku: Sku, cursor: &str) -> Result<(String, Vec<(UserId, Uuid)>), SaleError> {
        let mut command = Command::new("HSCAN", 4);
        command.arg(format!("{}:buyers", key_prefix(sku)).as_bytes());
        command.arg(cursor.as_bytes());
        command.arg(b"COUNT");
        command.arg_i64(PAGE as i64);
        let reply = self.redis.call(command, deadline()).await?;
        let wrong = || SaleError::Reply(format!("HSCAN of the buyers of {sku} gave something else"));
        let [next, flat] = reply.as_array().ok_or_else(wrong)? else { return Err(wrong()) };
        let next = String::from_utf8(next.as_bytes().ok_or_else(wrong)?.to_vec()).map_err(|_| wrong())?;
        let (pairs, _) = flat.as_array().ok_or_else(wrong)?.as_chunks::<2>();
        let pair = |pair: &[Reply; 2]| {
            let user = std::str::from_utf8(pair[0].as_bytes()?).ok()?.parse().ok()?;
            Some((UserId::new(user)?, Uuid::parse(pair[1].as_bytes()?)?))
        };
        let buyers = pairs.iter().map(pair).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        Ok((next, buyers))
    }

    /// What Redis has of each of these, at most [`PAGE`].
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn inspect(&self, sku: Sku, reservations: &[(UserId, Uuid)]) -> Result<Vec<Inspected>, SaleError> {
        let mut command = self.scripts.inspect.command(1, 1 + 2 * reservations.len());
        command.arg(key_prefix(sku).as_bytes());
        for (user, reservation) in reservations {
            command.arg_i64(user.get());
            command.arg(&reservation.text());
        }
        let reply = self.redis.eval(&self.scripts.inspect, command, deadline()).await?;
        let wrong = || SaleError::Reply("inspect.lua answered in another shape than its header says".to_owned());
        let (rows, []) = reply.as_array().ok_or_else(wrong)?.as_chunks::<INSPECTED>() else { return Err(wrong()) };
        if rows.len() != reservations.len() {
            return Err(wrong());
        }
        rows.iter().map(|row| inspected(row).ok_or_else(wrong)).collect()
    }

    /// Writes back what Redis should know of these orders, at most [`PAGE`]; one code each (`lua/restore_orders.lua`).
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn restore_orders(&self, sku: Sku, orders: &[OrderRow]) -> Result<Vec<u8>, SaleError> {
        let mut command = self.scripts.restore_orders.command(1, 1 + 5 * orders.len());
        command.arg(key_prefix(sku).as_bytes());
        for order in orders {
            command.arg_i64(order.user_id.get());
            command.arg(&order.request_id.text());
            command.arg(&order.reservation_id.text());
            command.arg_i64(order.order_id.get());
            command.arg_i64(order.created_at_ms);
        }
        self.codes(&self.scripts.restore_orders, command, orders.len()).await
    }

    /// Repairs index entries, at most [`PAGE`]; one code each (`lua/reindex.lua`).
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn reindex(&self, sku: Sku, entries: &[(Reindex, UserId, Uuid)]) -> Result<Vec<u8>, SaleError> {
        let mut command = self.scripts.reindex.command(1, 1 + 3 * entries.len());
        command.arg(key_prefix(sku).as_bytes());
        for (what, user, reservation) in entries {
            command.arg(match what {
                Reindex::Pending => b"pending",
                Reindex::Buyer => b"buyer",
            });
            command.arg_i64(user.get());
            command.arg(&reservation.text());
        }
        self.codes(&self.scripts.reindex, command, entries.len()).await
    }

    /// Makes the stock what the buyers leave of the total (`lua/recount.lua`).
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn recount(&self, sku: Sku, generation: Option<i64>, state: &str) -> Result<Recounted, SaleError> {
        let mut command = self.scripts.recount.command(1, 3);
        command.arg(key_prefix(sku).as_bytes());
        command.arg(generation.map(|number| number.to_string()).unwrap_or_default().as_bytes());
        command.arg(state.as_bytes());
        let reply = self.redis.eval(&self.scripts.recount, command, deadline()).await?;
        let number = |at: usize| reply.as_array()?.get(at)?.as_i64();
        match (number(0), number(1), number(2), number(3)) {
            (Some(code), Some(stock), Some(buyers), Some(before)) => Ok(Recounted { code, stock, buyers, before }),
            _ => Err(SaleError::Reply(format!("recount.lua answered {reply:?}"))),
        }
    }

    async fn codes(&self, script: &Script, command: Command, items: usize) -> Result<Vec<u8>, SaleError> {
        let reply = self.redis.eval(script, command, deadline()).await?;
        let codes = reply.as_array().and_then(|fields| fields.first()?.as_bytes());
        match codes {
            Some(codes) if codes.len() == items => Ok(codes.to_vec()),
            _ => Err(SaleError::Reply(format!("a script answered {reply:?}"))),
        }
    }
}

fn inspected(row: &[Reply; INSPECTED]) -> Option<Inspected> {
    let text = |at: usize| Some(String::from_utf8_lossy(row[at].as_bytes()?).into_owned());
    let number = |at: usize| Some(text(at)?.parse().unwrap_or(0));
    Some(Inspected {
        status: text(0)?,
        created_at_ms: number(1)?,
        request_id: text(2)?,
        message_id: text(3)?,
        order_id: text(4)?,
        retry_count: u32::try_from(number(5)?).ok()?,
        held: text(6)?,
        pending: text(7)? == "1",
        result: text(8)?,
    })
}

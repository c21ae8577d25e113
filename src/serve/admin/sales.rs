//! The sales that are on, as the dashboard shows them: read from the stores with connections of the admin thread's own, so that nobody
//! who looks costs a shard anything.

use std::time::Duration;

use serde_json::{Value, json};
use shards::mailbox;

use crate::config::Config;
use crate::embedded::lane::{Message, SaleView, ask};
use crate::sale::{SaleError, Sales};
use crate::serve::pools::{postgres_pool, redis_pool};

/// Sales shown, those that end soonest first.
const SHOWN_MAX: usize = 16;
/// Longest look: the dashboard asks every second.
const LOOK: Duration = Duration::from_millis(800);

/// The way to the stores; `None` in embedded mode, where the book is asked.
///
/// # Errors
/// When `postgres.url` cannot be read.
pub(in crate::serve) fn sales(config: &Config) -> Result<Option<Sales>, String> {
    if !config.names_services() {
        return Ok(None);
    }
    let postgres = postgres_pool(config, 1).map_err(|error| error.to_string())?;
    Ok(Some(Sales::new(postgres, redis_pool(config))))
}

/// The list, or why there is none.
pub(super) async fn shown(sales: Option<&Sales>, owner: Option<mailbox::Sender<Message>>) -> Value {
    let look = async {
        match (sales, owner) {
            (Some(sales), _) => in_stores(sales).await.map_err(|error| error.to_string()),
            (None, Some(owner)) => {
                let views = ask(&owner, |reply| Message::Views(SHOWN_MAX, reply)).await;
                views.map(|views| views.iter().map(in_book).collect()).map_err(|error| error.to_string())
            }
            (None, None) => Err("stopping".to_owned()),
        }
    };
    match shards::timeout(LOOK, look).await {
        Ok(Ok(list)) => json!({ "list": Value::Array(list) }),
        Ok(Err(why)) => json!({ "list": [], "error": why }),
        Err(_) => json!({ "list": [], "error": "Redis or PostgreSQL did not answer in time" }),
    }
}

async fn in_stores(sales: &Sales) -> Result<Vec<Value>, SaleError> {
    let mut list = Vec::new();
    for sku in sales.live().await?.into_iter().take(SHOWN_MAX) {
        let Some(sale) = sales.load(sku).await? else { continue };
        let gate = sales.gate(sku).await?;
        let (start_ms, end_ms) = (sale.start_at / 1_000, sale.end_at / 1_000);
        let state = match (gate.warmed, sale.closed) {
            (false, _) => "not warmed",
            (true, true) => "closed",
            (true, false) => gate.state.as_str(),
        };
        let units = [sale.total.into(), gate.stock, gate.buyers].map(Some);
        list.push(row((sku.activity.get(), sku.sku.get()), state, [start_ms, end_ms], units, Some(sale.sold.into())));
    }
    Ok(list)
}

fn in_book(view: &SaleView) -> Value {
    let state = if view.closed { "closed" } else { "open" };
    let time = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    let units = [Some(view.total), Some(view.stock), i64::try_from(view.buyers).ok()];
    // The book holds reservations; orders are in another file, and the funnel counts them.
    row((view.activity_id, view.sku_id), state, [time(view.start_ms), time(view.end_ms)], units, None)
}

/// `units`: for sale, left, reserved. Ids are text, as JavaScript rounds large numbers.
fn row(sku: (i64, i64), state: &str, times_ms: [i64; 2], units: [Option<i64>; 3], ordered: Option<i64>) -> Value {
    let ([start_ms, end_ms], [total, left, reserved]) = (times_ms, units);
    json!({
        "activity_id": sku.0.to_string(), "sku_id": sku.1.to_string(), "state": state, "start_ms": start_ms, "end_ms": end_ms,
        "total": total, "left": left, "reserved": reserved, "ordered": ordered,
    })
}

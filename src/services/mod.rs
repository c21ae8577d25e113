//! The ports over real Redis, RocketMQ and PostgreSQL.
//!
//! Every write goes through a group commit of its own: one pump a shard and kind, which sends whatever waits when the
//! previous round trip returns.

use std::rc::Rc;

use proto_clients::postgres::{CallError, NotSent};

use crate::observe::metrics::Metrics;
use crate::ports::PortError;
use crate::resilience::{Guard, Guards, Open};

mod events;
mod order_ids;
mod orders;
mod outcomes;
mod pending;
mod redis_call;
mod releases;
mod reservations;
mod results;
mod scripts;

pub use events::{RocketMqBus, RocketMqSource};
pub use orders::PostgresOrders;
pub use outcomes::InboxOutcomes;
pub use pending::RedisPending;
pub(crate) use pending::live_sales;
pub use releases::Releases;
pub use reservations::{RedisReservations, ReserveLimits};
pub use results::{RedisBoard, Results};
pub use scripts::Scripts;
pub(crate) use scripts::key_prefix;

/// A PostgreSQL call through the guard: refused at once while the breaker is open.
async fn guarded<T>(guard: &Guard, call: impl Future<Output = Result<T, CallError>>) -> Result<T, PortError> {
    let pass = guard.enter().map_err(|Open| PortError::Unavailable)?;
    let result = call.await;
    match &result {
        // Our own pool is used up or closed: that says nothing about the server.
        Err(CallError::NotSent(NotSent::PoolWait | NotSent::Closed)) => drop(pass),
        other => pass.report(other.as_ref().is_err_and(orders::is_fault)),
    }
    result.map_err(|error| orders::port_error(&error))
}

/// What all services of one shard share.
#[derive(Clone)]
pub struct Shared {
    /// The Redis scripts.
    pub scripts: Rc<Scripts>,
    /// Where they count.
    pub metrics: Rc<Metrics>,
    /// Breakers and retry budgets.
    pub guards: Guards,
}

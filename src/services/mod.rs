//! The ports over real Redis, RocketMQ and PostgreSQL.
//!
//! Every write goes through a group commit of its own: one pump a shard and kind, which sends whatever waits when the
//! previous round trip returns.

use std::rc::Rc;

use crate::config::Resilience;
use crate::observe::metrics::Metrics;
use crate::resilience::Guards;

mod events;
mod order_ids;
mod orders;
mod outcomes;
mod pending;
mod postgres_call;
mod redis_call;
mod releases;
mod reservations;
mod results;
mod scripts;

pub use events::{RocketMqBus, RocketMqSource, order_message};
pub use orders::PostgresOrders;
pub use outcomes::InboxOutcomes;
pub use pending::RedisPending;
pub(crate) use pending::live_sales;
pub use releases::Releases;
pub use reservations::{RedisReservations, ReserveLimits};
pub use results::{RedisBoard, Results};
pub use scripts::Scripts;
pub(crate) use scripts::key_prefix;

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

impl Shared {
    /// Closed breakers, nothing loaded yet.
    pub fn new(settings: &Resilience, metrics: &Rc<Metrics>) -> Self {
        let guards = Guards::new(settings, metrics);
        Self { scripts: Rc::new(Scripts::new()), metrics: metrics.clone(), guards }
    }
}

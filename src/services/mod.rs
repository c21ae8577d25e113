//! The ports over real Redis, RocketMQ and PostgreSQL.
//!
//! Every write goes through a group commit of its own: one pump a shard and kind, which sends whatever waits when the
//! previous round trip returns.

mod events;
mod order_ids;
mod orders;
mod pending;
mod redis_call;
mod releases;
mod reservations;
mod results;
mod scripts;

pub use events::{RocketMqBus, RocketMqSource};
pub use orders::PostgresOrders;
pub use pending::RedisPending;
pub use releases::Releases;
pub use reservations::{RedisReservations, ReserveLimits};
pub use results::{RedisBoard, Results};
pub use scripts::Scripts;
pub(crate) use scripts::key_prefix;

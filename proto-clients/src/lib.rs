//! Wire clients for Redis, RocketMQ and PostgreSQL: a sans-IO core each (bytes in, events out; no sockets, no
//! clock) and a thin driver over a shard's stream. Knows nothing of sales.

#[cfg(feature = "drivers")]
mod dial;
#[doc(hidden)]
pub mod fuzzing;
pub mod postgres;
pub mod redis;
pub mod rocketmq;

//! RocketMQ wire client.

//! What an operator sees: metrics, logs, the admin listener.

pub mod log;
pub mod metrics;
pub mod text;

pub use text::{openmetrics, process_rows};

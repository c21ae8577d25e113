//! What an operator sees: metrics, logs, the admin listener.

pub mod allocator;
pub mod log;
pub mod metrics;
pub mod summary;
pub mod text;
pub mod trace;

pub use text::{openmetrics, process_rows};

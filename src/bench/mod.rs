//! Measuring a running system from outside: open-loop submits, clicks followed to their final result, backlogs drained.
//!
//! Latencies count from the moment at which a request was due, not from when it could be sent (coordinated omission): a
//! server that stalls is charged for everything that should have come meanwhile.

mod client;
mod cpu;
mod drain;
mod e2e;
mod report;
mod schedule;
mod submit;

pub use drain::{DrainOptions, drain};
pub use e2e::{E2eOptions, e2e};
pub use report::{DrainReport, E2eReport, Quantiles, SubmitReport};
pub use schedule::Pace;
pub use submit::{Buyers, LoadOptions, submit};

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The target cannot be reached.
    #[error("{target} cannot be reached: {reason}")]
    Target {
        /// `host:port`
        target: String,
        /// What the system said.
        reason: String,
    },
    /// A service that the measurement itself needs.
    #[error("{0}")]
    Service(String),
    /// It did not come to its end in time.
    #[error("not finished within {0} s")]
    TooLong(u64),
}

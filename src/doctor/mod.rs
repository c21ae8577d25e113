//! What of a host or its settings deviates from what a sale wants: what, why it matters, and the command that changes it.
//!
//! [`host`] reads files of the kernel below a root that tests may replace; nothing is ever changed.

pub mod host;
pub mod services;

use serde::Serialize;

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// As it should be.
    Good,
    /// Cannot be looked at here.
    Unknown,
    /// Costs speed, or room to move.
    Advice,
    /// Will fail under load, or loses what must not be lost.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub what: String,
    /// How it is.
    pub found: String,
    /// How much that matters.
    pub grade: Grade,
    /// Why, where it does.
    pub why: String,
    /// The command or setting that changes it.
    pub fix: String,
}

impl Check {
    /// As it should be.
    pub fn good(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), grade: Grade::Good, why: String::new(), fix: String::new() }
    }

    /// Cannot be looked at.
    pub fn unknown(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), found: String::new(), grade: Grade::Unknown, why: why.into(), fix: String::new() }
    }

    /// Deviates.
    pub fn off(
        grade: Grade,
        what: impl Into<String>,
        found: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), found: found.into(), grade, why: why.into(), fix: fix.into() }
    }
}

//! The answer table of spec section 1.

use crate::domain::{OrderId, Uuid};
use crate::ports::PortError;

/// What a submit comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitAnswer {
    /// 202.
    Accepted {
        /// The reservation, the original one for a repeated request.
        reservation_id: Uuid,
        /// The order id that goes with it.
        order_id: OrderId,
        /// QUEUED, MQ_PENDING, or the final state of a repeated request.
        state: &'static str,
    },
    /// Anything else.
    Refused(Refusal),
}

/// Every way to say no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Not one JSON object with exactly the known fields.
    InvalidJson,
    /// Body over 4 KiB.
    PayloadTooLarge,
    /// Missing or bad Idempotency-Key, ids <= 0.
    InvalidArgument,
    /// No or bad identity.
    Unauthenticated,
    /// The same request_id for another user, activity or SKU.
    KeyReused,
    /// The user has a reservation under another request_id.
    DuplicateOrder {
        /// The user's own original reservation.
        reservation_id: Uuid,
    },
    /// No unit left.
    SoldOut,
    /// Not warmed, closed, or lost.
    ActivityUnavailable,
    /// Before the window.
    NotStarted,
    /// After the window.
    Ended,
    /// No admission slot.
    Overloaded,
    /// Outcome unknown: retry with the same key.
    Timeout,
    /// Redis or RocketMQ down.
    DependencyUnavailable,
    /// Wrong media type.
    UnsupportedMediaType,
    /// Anything else.
    Internal,
}

impl Refusal {
    /// HTTP status and `code`.
    pub const fn status_and_code(&self) -> (u16, &'static str) {
        match self {
            Self::InvalidJson => (400, "INVALID_JSON"),
            Self::PayloadTooLarge => (413, "PAYLOAD_TOO_LARGE"),
            Self::InvalidArgument => (400, "INVALID_ARGUMENT"),
            Self::Unauthenticated => (401, "UNAUTHENTICATED"),
            Self::KeyReused => (422, "IDEMPOTENCY_KEY_REUSED"),
            Self::DuplicateOrder { .. } => (409, "DUPLICATE_ORDER"),
            Self::SoldOut => (409, "SOLD_OUT"),
            Self::ActivityUnavailable => (503, "ACTIVITY_UNAVAILABLE"),
            Self::NotStarted => (409, "NOT_STARTED"),
            Self::Ended => (409, "ENDED"),
            Self::Overloaded => (429, "OVERLOADED"),
            Self::Timeout => (504, "TIMEOUT"),
            Self::DependencyUnavailable => (503, "DEPENDENCY_UNAVAILABLE"),
            Self::UnsupportedMediaType => (415, "UNSUPPORTED_MEDIA_TYPE"),
            Self::Internal => (500, "INTERNAL_ERROR"),
        }
    }

    /// Seconds of `Retry-After`, where one is due.
    pub const fn retry_after_s(&self) -> Option<u32> {
        match self {
            Self::Overloaded | Self::DependencyUnavailable => Some(1),
            _ => None,
        }
    }
}

impl From<PortError> for Refusal {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Timeout | PortError::Unknown => Self::Timeout,
            PortError::Unavailable => Self::DependencyUnavailable,
            PortError::Overloaded => Self::Overloaded,
            PortError::Internal => Self::Internal,
        }
    }
}

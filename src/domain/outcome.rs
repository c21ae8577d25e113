//! What can become of a request for a unit and of a message that asks for an order.

use super::{OrderId, ReservationState, Uuid};

/// What the reservation book answered to one request (spec section 2, reserve codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// Code 0: a unit is reserved, under the ids that the request brought.
    Created,
    /// Code 1: this request_id has a reservation already; nothing was changed.
    SameRequest {
        /// The original reservation.
        reservation_id: Uuid,
        /// The original message, so that a resend is the same message.
        message_id: Uuid,
        /// The order id given out with the original reservation.
        order_id: OrderId,
        /// Where the original reservation stands.
        state: ReservationState,
        /// When the original was made, Unix milliseconds.
        created_at_ms: u64,
    },
    /// Code 2: this user has a reservation under another request_id.
    SameUser {
        /// The user's own original reservation.
        reservation_id: Uuid,
    },
    /// Code 3: no unit left.
    SoldOut,
    /// Code 4: the SKU is not warmed, or Redis lost it: the gate is closed.
    Unavailable,
    /// Code 5: the sale has not started, by Redis' clock.
    NotStarted,
    /// Code 6: the sale has ended, by Redis' clock.
    Ended,
    /// Code 7: the request_id belongs to another user. Whose, and which reservation, is not told.
    KeyReused,
    /// Code 8: the operator has closed the sale.
    Closed,
}

impl ReserveOutcome {
    /// One word for it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::SameRequest { .. } => "SAME_REQUEST",
            Self::SameUser { .. } => "SAME_USER",
            Self::SoldOut => "SOLD_OUT",
            Self::Unavailable => "UNAVAILABLE",
            Self::NotStarted => "NOT_STARTED",
            Self::Ended => "ENDED",
            Self::KeyReused => "KEY_REUSED",
            Self::Closed => "CLOSED",
        }
    }
}

/// Why a message that asked for an order was turned down for good (spec section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RejectReason {
    /// PostgreSQL, the last word on stock, has none left.
    StockExhausted,
    /// The user has an order for this SKU under another reservation.
    OneUserOneOrder,
    /// The reservation's release is decided: no order may take its unit any more.
    ReservationReleased,
    /// An id of the message belongs to another operation's order. Kept in quarantine too.
    IdentifierCollision,
    /// The message breaks a rule of the store. Kept in quarantine too.
    InternalError,
}

impl RejectReason {
    /// All reasons, for tables and tests.
    pub const ALL: [Self; 5] = [
        Self::StockExhausted,
        Self::OneUserOneOrder,
        Self::ReservationReleased,
        Self::IdentifierCollision,
        Self::InternalError,
    ];

    /// The code in `consumer_inbox.last_error_code`, results and metrics.
    pub const fn code(self) -> &'static str {
        match self {
            Self::StockExhausted => "PG_STOCK_EXHAUSTED",
            Self::OneUserOneOrder => "ONE_USER_ONE_ORDER",
            Self::ReservationReleased => "RESERVATION_RELEASED",
            Self::IdentifierCollision => "IDENTIFIER_COLLISION",
            Self::InternalError => "INTERNAL_ERROR",
        }
    }

    /// The reason a stored code stands for.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

/// What became of one message in the order transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderOutcome {
    /// This delivery made the order.
    Created,
    /// An earlier delivery made the order; nothing was changed.
    DuplicateCreated {
        /// The order that exists.
        order_id: OrderId,
    },
    /// This delivery was turned down; its release is in the outbox.
    Rejected(RejectReason),
    /// An earlier delivery was turned down; nothing was changed.
    DuplicateRejected(RejectReason),
    /// The message_id is known with other contents. Nothing was changed; the message goes to quarantine.
    MessageIdReused,
}

impl OrderOutcome {
    /// The `outcome` of logs, metrics and the attempt log.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::DuplicateCreated { .. } | Self::DuplicateRejected(_) => "DUPLICATE",
            Self::Rejected(_) => "REJECTED",
            Self::MessageIdReused => "MESSAGE_ID_REUSED",
        }
    }

    /// Why there is no order, as a code; empty when there is one.
    pub const fn error_code(self) -> &'static str {
        match self {
            Self::Created | Self::DuplicateCreated { .. } => "",
            Self::Rejected(reason) | Self::DuplicateRejected(reason) => reason.code(),
            Self::MessageIdReused => "MESSAGE_ID_REUSED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reject_codes_round_trip() {
        for reason in RejectReason::ALL {
            assert_eq!(RejectReason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(RejectReason::from_code("OTHER"), None);
    }
}

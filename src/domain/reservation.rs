//! The reservation state machine (spec section 3).
//!
//! ```text
//! RESERVED ---> MQ_SENT ---> CREATED
//!    |  \          ^  \----> REJECTED ---> RELEASED
//!    |   \-> MQ_PENDING                       ^
//!    |             \--------------------------|
//!    \----------------------------------------/
//! ```
//!
//! An order can be committed before the api has noted that its message left, so a settled message also moves
//! RESERVED and MQ_PENDING on. A state that is reached again is not an error: messages come more than once.

use std::fmt;

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationState {
    /// The unit is taken; the message has not been confirmed by the broker.
    Reserved,
    /// The broker's answer to the send is not known, or the send failed and is to be tried again.
    MqPending,
    /// The broker has the message.
    MqSent,
    /// The order is committed. Terminal.
    Created,
    /// The order was turned down; the unit is on its way back.
    Rejected,
    /// The unit has been given back. Terminal.
    Released,
}

/// What can happen to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationEvent {
    /// The broker confirmed the message.
    SendConfirmed,
    /// The send's outcome is unknown or it is to be repeated.
    SendUnknown,
    /// The order was committed.
    OrderCreated,
    /// The order was turned down.
    OrderRejected,
    /// The unit goes back to the stock.
    Release,
}

/// A change the state machine does not have. It is refused and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a reservation that is {from} cannot take {event:?}")]
pub struct IllegalTransition {
    /// The state it was in.
    pub from: ReservationState,
    /// What was asked of it.
    pub event: ReservationEvent,
}

impl ReservationState {
    /// All states, for tables and tests.
    pub const ALL: [Self; 6] =
        [Self::Reserved, Self::MqPending, Self::MqSent, Self::Created, Self::Rejected, Self::Released];

    /// The name used in Redis, JSON and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::MqPending => "MQ_PENDING",
            Self::MqSent => "MQ_SENT",
            Self::Created => "CREATED",
            Self::Rejected => "REJECTED",
            Self::Released => "RELEASED",
        }
    }

    /// The state a stored name stands for.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name().as_bytes() == name)
    }

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the state machine has no such move.
    pub const fn apply(self, event: ReservationEvent) -> Result<Self, IllegalTransition> {
        use ReservationEvent::*;
        use ReservationState::*;
        Ok(match (self, event) {
            (Reserved | MqPending | MqSent, SendConfirmed) => MqSent,
            (Reserved | MqPending, SendUnknown) => MqPending,
            (Reserved | MqPending | MqSent | Created, OrderCreated) => Created,
            (Reserved | MqPending | MqSent | Rejected, OrderRejected) => Rejected,
            (Reserved | MqPending | Rejected | Released, Release) => Released,
            _ => return Err(IllegalTransition { from: self, event }),
        })
    }
}

impl fmt::Display for ReservationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ReservationEvent::*;
    use super::ReservationState::*;
    use super::*;

    /// The same table that the scripts are tested against (tests/lua).
    #[test]
    fn every_state_answers_every_event_as_the_table_says() {
        let lines = include_str!("../../tests/cases/book/transitions.tsv").lines();
        let mut rows = lines.filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect::<Vec<_>>());
        let names = rows.next().unwrap();
        let column = |name: &str| names.iter().position(|known| *known == name).unwrap();
        let mut states = Vec::new();
        for row in rows {
            let state = ReservationState::from_name(row[0].as_bytes()).unwrap();
            states.push(state);
            let taken = |name: &str| match row[column(name)].split_once(' ').unwrap() {
                ("0" | "1", after) => ReservationState::from_name(after.as_bytes()),
                _ => None,
            };
            for (event, expected) in [
                (SendConfirmed, taken("mark_sent")),
                (SendUnknown, taken("mark_pending")),
                (SendUnknown, taken("claim").or(taken("mark_pending"))),
                (OrderCreated, taken("created")),
                (OrderRejected, taken("rejected")),
                (Release, taken("release_unsent").or(taken("release_rejected"))),
            ] {
                assert_eq!(state.apply(event).ok(), expected, "{state} + {event:?}");
            }
        }
        assert_eq!(states, ReservationState::ALL);
    }

    #[test]
    fn a_reservation_whose_order_exists_is_never_released() {
        assert_eq!(Created.apply(Release), Err(IllegalTransition { from: Created, event: Release }));
    }

    #[test]
    fn names_round_trip() {
        for state in ReservationState::ALL {
            assert_eq!(ReservationState::from_name(state.name().as_bytes()), Some(state));
        }
        assert_eq!(ReservationState::from_name(b"reserved"), None);
    }
}

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

    /// The answer of every state to every event. `None` is a refusal.
    #[test]
    fn every_state_answers_every_event() {
        let events = [SendConfirmed, SendUnknown, OrderCreated, OrderRejected, Release];
        #[rustfmt::skip]
        let table = [
            (Reserved,  [Some(MqSent), Some(MqPending), Some(Created), Some(Rejected), Some(Released)]),
            (MqPending, [Some(MqSent), Some(MqPending), Some(Created), Some(Rejected), Some(Released)]),
            (MqSent,    [Some(MqSent), None,            Some(Created), Some(Rejected), None]),
            (Created,   [None,         None,            Some(Created), None,           None]),
            (Rejected,  [None,         None,            None,          Some(Rejected), Some(Released)]),
            (Released,  [None,         None,            None,          None,           Some(Released)]),
        ];
        assert_eq!(table.map(|row| row.0), ReservationState::ALL);
        for (state, answers) in table {
            for (event, expected) in events.into_iter().zip(answers) {
                assert_eq!(state.apply(event).ok(), expected, "{state} + {event:?}");
            }
        }
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

//! The rules of a sale: ids, commands, the order event, the reservation state machine, outcomes and error kinds.
//!
//! No I/O, no async, no clock: every time and every random bit is passed in. Everything else in `seckill` depends on
//! this module and it depends on nothing of the rest, so the rules can be read, tested and model-checked alone.

mod event;
mod ids;
mod outcome;
mod reservation;
mod timestamp;
mod uuid;

pub use event::{EVENT_BYTES_MAX, EVENT_TAG, EventError, OrderCreateEvent, SCHEMA_VERSION, TraceContext, UnitHolder};
pub use ids::{ActivityId, ORDER_ID_MAX, OrderId, OrderIdBlock, Sku, SkuId, UserId, by_sku};
pub use outcome::{OrderOutcome, RejectReason, ReserveOutcome};
pub use reservation::{IllegalTransition, ReservationEvent, ReservationState};
pub use timestamp::{format_rfc3339_micros, parse_rfc3339_micros};
pub use uuid::{Uuid, UuidV7Source};

//! Reconciliation: Redis, PostgreSQL and the topic compared for one SKU (spec section 7).
//!
//! This module judges and explains; it has no I/O. [`walk`] reads the books page by page, and repairs what can be repaired safely.

mod walk;

use std::collections::BTreeMap;

pub use walk::{Reconciler, Report};

use crate::domain::{ReservationState, Uuid};
use crate::sale::{Counts, Decided, Gate, Inspected, Sale};

/// What can be wrong. Each is explained in words by [`Kind::explanation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Redis does not know the sale.
    GateLost,
    /// A rebuild was begun and not finished.
    GateShut,
    /// Redis and PostgreSQL disagree about total or window.
    TermsDiffer,
    /// `stock + buyers` is not the total.
    StockOff,
    /// `sold_stock` is not the number of orders.
    SoldOff,
    /// An order whose buyer Redis does not have.
    BuyerMissing,
    /// An order whose buyer holds another reservation in Redis.
    BuyerOfAnother,
    /// An order whose reservation or result is not final in Redis.
    NotShown,
    /// An order whose reservation Redis has as turned down or given back.
    OrderContradicted,
    /// A reservation that says CREATED without an order.
    OrderMissing,
    /// A unit whose release is decided and not carried out.
    ReleaseDue,
    /// A release that counts as carried out, but Redis still holds the unit.
    ReleaseForgotten,
    /// A turned-down reservation without a release.
    ReleaseMissing,
    /// A buyer whose reservation is given back.
    BuyerOfNothing,
    /// A buyer whose reservation does not exist.
    BuyerWithoutReservation,
    /// A reservation whose message nobody has confirmed, longer than recovery takes.
    Unsent,
    /// The same, and it is not in the index that recovery reads.
    UnsentAndLost,
    /// A confirmed message that is neither in the topic nor in PostgreSQL.
    MessageLost,
}

impl Kind {
    /// What it means, and what becomes of it.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::GateLost => {
                "Redis does not know the sale, so nobody can buy. If it was lost: `seckill activity warm --rebuild`"
            }
            Self::GateShut => "a rebuild was begun and not finished; run `seckill activity warm --rebuild` again",
            Self::TermsDiffer => {
                "total or window in Redis are not those of PostgreSQL; `seckill activity warm --rebuild` takes over PostgreSQL's"
            }
            Self::StockOff => "units left and buyers do not add up to the total in Redis; repaired by counting anew",
            Self::SoldOff => {
                "sold_stock in PostgreSQL is not the number of orders: somebody changed rows by hand. Not repaired here"
            }
            Self::BuyerMissing => {
                "orders whose buyers Redis does not have: Redis lost its last writes. Repaired by writing the order back"
            }
            Self::BuyerOfAnother => {
                "orders whose buyers hold another reservation in Redis: Redis lost its last writes and sold to them again. \
                 Repaired: the order's reservation takes the unit, the other one ends"
            }
            Self::NotShown => "orders that their owners cannot see in Redis yet; repaired by showing them",
            Self::OrderContradicted => {
                "orders whose reservations Redis has as turned down or given back: their units may be for sale twice, which \
                 PostgreSQL will stop. Not repaired: find out how it came about"
            }
            Self::OrderMissing => {
                "reservations that were shown as ordered, and PostgreSQL has no order: it lost committed rows, or is another \
                 database. Not repaired: restore it first"
            }
            Self::ReleaseDue => "units on their way back; the order worker's compensation carries them out",
            Self::ReleaseForgotten => {
                "releases that were carried out once, but Redis has forgotten it. Repaired: they are due again"
            }
            Self::ReleaseMissing => {
                "reservations shown as turned down of which PostgreSQL knows nothing. Not repaired: restore PostgreSQL first"
            }
            Self::BuyerOfNothing => "buyers whose reservation was given back; repaired by taking the entry out",
            Self::BuyerWithoutReservation => {
                "buyers whose reservation does not exist, with nothing in the topic; repaired by taking the entry out"
            }
            Self::Unsent => "reservations whose message is not confirmed; recovery of any running api sends it again",
            Self::UnsentAndLost => {
                "reservations whose message is not confirmed and which recovery would not find; repaired by putting them back \
                 into its index"
            }
            Self::MessageLost => {
                "reservations whose message the broker confirmed, and which is neither in the topic nor in PostgreSQL. \
                 Repaired by sending it again under its own message_id"
            }
        }
    }

    /// Whether `--repair` does something about it.
    pub const fn is_repaired(self) -> bool {
        matches!(
            self,
            Self::StockOff
                | Self::BuyerMissing
                | Self::BuyerOfAnother
                | Self::NotShown
                | Self::ReleaseForgotten
                | Self::BuyerOfNothing
                | Self::BuyerWithoutReservation
                | Self::UnsentAndLost
                | Self::MessageLost
        )
    }

    /// Whether the running system takes care of it by itself.
    pub const fn heals(self) -> bool {
        matches!(self, Self::ReleaseDue | Self::Unsent)
    }
}

/// How often something was found, and the first few ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// How often.
    pub count: u64,
    /// The first few of them.
    pub examples: Vec<String>,
    /// How many of them were repaired.
    pub repaired: u64,
    /// What it means, and what becomes of it.
    pub explanation: &'static str,
}

/// Ids kept of each kind.
const EXAMPLES: usize = 5;

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Findings(pub BTreeMap<Kind, Finding>);

impl Findings {
    /// Takes one in.
    pub fn add(&mut self, kind: Kind, example: impl Into<String>) {
        let explanation = kind.explanation();
        let finding = self.0.entry(kind).or_insert_with(|| Finding { explanation, ..Finding::default() });
        finding.count += 1;
        if finding.examples.len() < EXAMPLES {
            finding.examples.push(example.into());
        }
    }

    /// `count` of a kind were repaired.
    pub fn repaired(&mut self, kind: Kind, count: u64) {
        if let Some(finding) = self.0.get_mut(&kind) {
            finding.repaired += count;
        }
    }

    /// What is neither repaired nor heals by itself.
    pub fn open(&self) -> u64 {
        let open = self.0.iter().filter(|(kind, _)| !kind.heals());
        open.map(|(_, finding)| finding.count.saturating_sub(finding.repaired)).sum()
    }
}

/// What an age means: below it a reservation is simply under way.
#[derive(Debug, Clone, Copy)]
pub struct Judge {
    /// Redis' clock, Unix milliseconds.
    pub now_ms: i64,
    /// How long a reservation may be under way, milliseconds.
    pub patience_ms: i64,
    /// The topic is empty: no message is on its way.
    pub drained: bool,
}

impl Judge {
    /// The gate and the sums.
    pub fn sums(sale: &Sale, gate: &Gate, counts: &Counts, findings: &mut Findings) {
        if i64::from(sale.sold) != counts.orders {
            findings.add(Kind::SoldOff, format!("sold_stock {}, orders {}", sale.sold, counts.orders));
        }
        if !gate.warmed {
            findings.add(Kind::GateLost, format!("{} orders in PostgreSQL", counts.orders));
            return;
        }
        if gate.state == "rebuilding" {
            findings.add(Kind::GateShut, format!("generation {}", gate.generation));
        }
        let terms = [i64::from(sale.total), sale.start_at / 1_000, sale.end_at / 1_000, sale.expire_at / 1_000];
        let shown = [gate.total, gate.start_ms, gate.end_ms, gate.expire_at_ms];
        if terms != shown {
            findings.add(Kind::TermsDiffer, format!("total, start, end, expiry: {terms:?} and {shown:?}"));
        }
        if gate.stock + gate.buyers != gate.total {
            findings.add(Kind::StockOff, format!("{} left + {} buyers, total {}", gate.stock, gate.buyers, gate.total));
        }
    }

    /// An order, and what Redis has of its reservation.
    pub fn order(reservation_id: Uuid, seen: &Inspected) -> Option<Kind> {
        let held = Uuid::parse(seen.held.as_bytes());
        match ReservationState::from_name(seen.status.as_bytes()) {
            Some(ReservationState::Rejected | ReservationState::Released) => Some(Kind::OrderContradicted),
            _ if held.is_none() => Some(Kind::BuyerMissing),
            _ if held != Some(reservation_id) => Some(Kind::BuyerOfAnother),
            Some(ReservationState::Created) if seen.result == "CREATED" => None,
            _ => Some(Kind::NotShown),
        }
    }

    /// A buyer in Redis, what Redis has of the reservation, and what PostgreSQL has decided about it.
    pub fn buyer(&self, seen: &Inspected, decided: Option<Decided>) -> Option<Kind> {
        let state = ReservationState::from_name(seen.status.as_bytes());
        let old = self.now_ms - seen.created_at_ms > self.patience_ms;
        match (decided, state) {
            // Judged with the orders.
            (Some(Decided::Ordered), _) => None,
            (Some(Decided::Released { .. }), Some(ReservationState::Released)) => Some(Kind::BuyerOfNothing),
            (Some(Decided::Released { applied: false }), _) => Some(Kind::ReleaseDue),
            (Some(Decided::Released { applied: true }), Some(_)) => Some(Kind::ReleaseForgotten),
            (Some(Decided::Released { applied: true }), None) => Some(Kind::BuyerWithoutReservation),
            (None, Some(ReservationState::Released)) => Some(Kind::BuyerOfNothing),
            (None, Some(ReservationState::Created)) => Some(Kind::OrderMissing),
            (None, Some(ReservationState::Rejected)) => Some(Kind::ReleaseMissing),
            (None, None) => self.drained.then_some(Kind::BuyerWithoutReservation),
            (None, Some(ReservationState::MqSent)) => (old && self.drained).then_some(Kind::MessageLost),
            (None, Some(_)) if !seen.pending => Some(Kind::UnsentAndLost),
            (None, Some(_)) => old.then_some(Kind::Unsent),
        }
    }
}

#[cfg(test)]
mod tests;

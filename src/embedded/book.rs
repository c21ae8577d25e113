//! The reservation book in memory: what `lua/reserve.lua` decides in Redis, decided here, by the same rules.
//!
//! No I/O and no clock. [`Book::decide`] changes nothing: what it decides is made durable first and then entered with
//! [`Book::enter`], so that the book never holds what a crash could take back.

use std::collections::HashMap;

use super::record::{Entry, Opening};
use crate::domain::{OrderOutcome, RejectReason, ReservationState, ReserveOutcome, Sku, UserId, Uuid};
use crate::ports::{FinalResult, ReserveRequest, Standing};

/// One unit taken by one buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The ids it was made with.
    pub request: ReserveRequest,
    /// Where it stands. Durable means sent here: the journal is the topic.
    pub state: ReservationState,
    /// Why it was turned down.
    pub reason: Option<RejectReason>,
}

/// A sale in the book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    /// What it was opened with.
    pub opening: Opening,
    /// Closed by the operator.
    pub closed: bool,
    /// Units left.
    pub stock: i64,
    buyers: HashMap<UserId, u32>,
}

impl Sale {
    /// Buyers who hold a unit.
    pub fn buyers(&self) -> usize {
        self.buyers.len()
    }
}

/// Why an entry cannot be made: it contradicts what the book holds. In a journal it means damage or a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Contradiction(pub String);

/// Every sale and every reservation of a data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Book {
    sales: HashMap<Sku, Sale>,
    reservations: Vec<Reservation>,
    /// Every key ever used here, on whatever SKU.
    requests: HashMap<Uuid, u32>,
    order_id_max: i64,
}

/// What a batch that is being decided has taken so far.
#[derive(Default)]
struct Batch {
    taken: HashMap<Sku, i64>,
    by_request: HashMap<Uuid, usize>,
    by_user: HashMap<(Sku, UserId), usize>,
}

impl Book {
    /// One outcome for each request, in order, as if decided and entered one by one.
    ///
    /// Precedence as in `lua/reserve.lua`: a replay or somebody else's key, then the user's own unit, then the gate
    /// (unknown, ended, closed, not started), then the stock. A key used on another SKU is refused too: one book sees all.
    pub fn decide(&self, requests: &[ReserveRequest], now_ms: u64) -> Vec<ReserveOutcome> {
        let mut batch = Batch::default();
        let decided = requests.iter().enumerate();
        decided
            .map(|(index, request)| {
                let outcome = self.decide_one(request, requests, &batch, now_ms);
                if outcome == ReserveOutcome::Created {
                    *batch.taken.entry(request.sku).or_default() += 1;
                    batch.by_request.insert(request.request_id, index);
                    batch.by_user.insert((request.sku, request.user_id), index);
                }
                outcome
            })
            .collect()
    }

    fn decide_one(
        &self,
        request: &ReserveRequest,
        requests: &[ReserveRequest],
        batch: &Batch,
        now_ms: u64,
    ) -> ReserveOutcome {
        if let Some(&at) = self.requests.get(&request.request_id) {
            let known = &self.reservations[at as usize];
            return replay(&known.request, known.state, request);
        }
        if let Some(&at) = batch.by_request.get(&request.request_id) {
            return replay(&requests[at], ReservationState::MqSent, request);
        }
        let sale = self.sales.get(&request.sku);
        if let Some(&at) = sale.and_then(|sale| sale.buyers.get(&request.user_id)) {
            return ReserveOutcome::SameUser { reservation_id: self.reservations[at as usize].request.reservation_id };
        }
        if let Some(&at) = batch.by_user.get(&(request.sku, request.user_id)) {
            return ReserveOutcome::SameUser { reservation_id: requests[at].reservation_id };
        }
        let Some(sale) = sale else { return ReserveOutcome::Unavailable };
        let taken = batch.taken.get(&request.sku).copied().unwrap_or_default();
        if now_ms >= sale.opening.expire_at_ms {
            ReserveOutcome::Unavailable
        } else if now_ms >= sale.opening.end_ms {
            ReserveOutcome::Ended
        } else if sale.closed {
            ReserveOutcome::Closed
        } else if now_ms < sale.opening.start_ms {
            ReserveOutcome::NotStarted
        } else if sale.stock <= taken {
            ReserveOutcome::SoldOut
        } else {
            ReserveOutcome::Created
        }
    }

    /// Enters what is durable.
    ///
    /// # Errors
    /// [`Contradiction`] when it cannot follow what the book holds; nothing is entered then.
    pub fn enter(&mut self, entry: &Entry) -> Result<(), Contradiction> {
        match entry {
            Entry::Opened(opening) => self.open(*opening),
            Entry::Closed(sku) => match self.sales.get_mut(sku) {
                Some(sale) => {
                    sale.closed = true;
                    Ok(())
                }
                None => Err(Contradiction(format!("sale {sku} is closed but was never opened"))),
            },
            Entry::Reserved(request) => self.reserve(request),
            Entry::Released { request_id } => self.release(request_id),
        }
    }

    fn open(&mut self, opening: Opening) -> Result<(), Contradiction> {
        if self.sales.contains_key(&opening.sku) {
            return Err(Contradiction(format!("sale {} is opened twice", opening.sku)));
        }
        let sale = Sale { opening, closed: false, stock: opening.total, buyers: HashMap::new() };
        self.sales.insert(opening.sku, sale);
        Ok(())
    }

    fn reserve(&mut self, request: &ReserveRequest) -> Result<(), Contradiction> {
        let reservation_id = request.reservation_id;
        let wrong = |why: &str| Err(Contradiction(format!("reservation {reservation_id}: {why}")));
        let Ok(at) = u32::try_from(self.reservations.len()) else { return wrong("the book is full") };
        let Some(sale) = self.sales.get_mut(&request.sku) else { return wrong("its sale was never opened") };
        if sale.stock <= 0 {
            return wrong("no unit is left for it");
        }
        if sale.buyers.contains_key(&request.user_id) || self.requests.contains_key(&request.request_id) {
            return wrong("its buyer or its key has a reservation already");
        }
        sale.stock -= 1;
        sale.buyers.insert(request.user_id, at);
        self.requests.insert(request.request_id, at);
        self.order_id_max = self.order_id_max.max(request.order_id.get());
        self.reservations.push(Reservation { request: *request, state: ReservationState::MqSent, reason: None });
        Ok(())
    }

    fn release(&mut self, request_id: &Uuid) -> Result<(), Contradiction> {
        let Some(&at) = self.requests.get(request_id) else {
            return Err(Contradiction(format!("request {request_id} is released but was never made")));
        };
        let reservation = &mut self.reservations[at as usize];
        if reservation.state == ReservationState::Released {
            return Err(Contradiction(format!("request {request_id} is released twice")));
        }
        reservation.state = ReservationState::Released;
        if let Some(sale) = self.sales.get_mut(&reservation.request.sku) {
            sale.stock += 1;
            sale.buyers.remove(&reservation.request.user_id);
        }
        Ok(())
    }

    /// Notes what the order store made of a reservation. Kept in memory only: the store knows it.
    pub fn settle(&mut self, request_id: &Uuid, outcome: OrderOutcome) {
        let Some(&at) = self.requests.get(request_id) else { return };
        let reservation = &mut self.reservations[at as usize];
        match outcome {
            OrderOutcome::Created | OrderOutcome::DuplicateCreated { .. } => {
                reservation.state = ReservationState::Created;
            }
            OrderOutcome::Rejected(reason) | OrderOutcome::DuplicateRejected(reason) => {
                reservation.reason = Some(reason);
                if reservation.state != ReservationState::Released {
                    reservation.state = ReservationState::Rejected;
                }
            }
            OrderOutcome::MessageIdReused => {}
        }
    }

    /// What a user may know of a request.
    pub fn standing(&self, sku: Sku, request_id: &Uuid, user_id: UserId) -> Standing {
        let Some(&at) = self.requests.get(request_id) else { return Standing::Missing };
        let Reservation { request, state, reason } = &self.reservations[at as usize];
        if request.user_id != user_id || request.sku != sku {
            return Standing::NotOwner;
        }
        let reservation_id = request.reservation_id;
        let last = |result| Standing::Final { reservation_id, result };
        match (state, reason) {
            (ReservationState::Created, _) => last(FinalResult::Created { order_id: request.order_id }),
            (ReservationState::Rejected | ReservationState::Released, Some(reason)) => {
                last(FinalResult::Rejected { reason: *reason })
            }
            (ReservationState::Released, None) => last(FinalResult::Released),
            _ => Standing::Open {
                reservation_id,
                order_id: request.order_id,
                state: *state,
                created_at_ms: request.created_at_micros / 1_000,
            },
        }
    }

    /// Entries that make this book again, without the sales that have expired by `now_ms`.
    pub fn entries(&self, now_ms: u64) -> impl Iterator<Item = Entry> {
        let lives = move |sku: &Sku| self.sales.get(sku).is_some_and(|sale| sale.opening.expire_at_ms > now_ms);
        let sales = self.sales.values().filter(move |sale| lives(&sale.opening.sku));
        let opened = sales.clone().map(|sale| Entry::Opened(sale.opening));
        let closed = sales.filter(|sale| sale.closed).map(|sale| Entry::Closed(sale.opening.sku));
        let made = self.reservations.iter().filter(move |made| lives(&made.request.sku)).flat_map(|made| {
            let request_id = made.request.request_id;
            let released = (made.state == ReservationState::Released).then_some(Entry::Released { request_id });
            std::iter::once(Entry::Reserved(made.request)).chain(released)
        });
        opened.chain(made).chain(closed)
    }

    /// A sale, if there is one.
    pub fn sale(&self, sku: Sku) -> Option<&Sale> {
        self.sales.get(&sku)
    }

    /// Every sale.
    pub fn sales(&self) -> impl Iterator<Item = &Sale> {
        self.sales.values()
    }

    /// How many reservations there are; they are numbered from 0 in the order in which they were made.
    pub fn len(&self) -> usize {
        self.reservations.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.reservations.is_empty()
    }

    /// The reservation of this number.
    pub fn reservation(&self, number: usize) -> Option<&Reservation> {
        self.reservations.get(number)
    }

    /// The number of a request's reservation.
    pub fn number_of(&self, request_id: &Uuid) -> Option<usize> {
        self.requests.get(request_id).map(|at| *at as usize)
    }

    /// Ids up to `max` are taken by orders that are in no book any more.
    pub fn reserve_order_ids(&mut self, max: i64) {
        self.order_id_max = self.order_id_max.max(max);
    }

    /// The largest order id that was ever given out, as far as is known here; 0 for none.
    pub fn order_id_max(&self) -> i64 {
        self.order_id_max
    }
}

/// The answer to a key that is known: its reservation for its owner who asks for the same again, a refusal else.
fn replay(known: &ReserveRequest, state: ReservationState, request: &ReserveRequest) -> ReserveOutcome {
    if known.user_id != request.user_id || known.sku != request.sku {
        return ReserveOutcome::KeyReused;
    }
    ReserveOutcome::SameRequest {
        reservation_id: known.reservation_id,
        message_id: known.message_id,
        order_id: known.order_id,
        state,
        created_at_ms: known.created_at_micros / 1_000,
    }
}

#[cfg(test)]
mod tests;

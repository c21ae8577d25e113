//! Query: what became of a request (spec section 6).
//!
//! The result board (Redis) first; a terminal answer is given at once. A request that the board does not know, or that
//! is older than the processing window and still open, is looked up in the order store, through its own small pool
//! and a rate limit. Only the owner sees anything: everybody else gets the answer for a request that does not exist.

mod rate;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::Gate;

use crate::config::Query as Settings;
use crate::domain::{ReservationState, Sku, UserId, Uuid};
use crate::observe::metrics::Metrics;
use crate::ports::{FinalResult, PortError, ResultLookup, Standing};
use crate::race::{First, race};
use rate::RateLimit;

/// First and longest pause between two looks of a long poll. They grow by half: a result usually comes within
/// milliseconds, and a late one does not need many looks.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(200);

/// Who asks for what.
#[derive(Debug, Clone, Copy)]
pub struct QueryCommand {
    /// The SKU of the request.
    pub sku: Sku,
    /// The request.
    pub request_id: Uuid,
    /// Who asks.
    pub user_id: UserId,
    /// How long to wait for a final answer; zero = answer at once.
    pub wait: Duration,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryAnswer {
    /// Not final yet.
    Processing {
        /// The reservation, where it is known.
        reservation_id: Option<Uuid>,
    },
    /// Final.
    Final {
        /// The reservation.
        reservation_id: Uuid,
        /// What became of it.
        result: FinalResult,
    },
    /// No such request of this user.
    NotFound,
    /// The board cannot be asked and the fallback is used up or down.
    Unavailable,
    /// The deadline passed.
    Timeout,
}

/// The query path of one shard.
pub struct QueryService<L> {
    lookup: Rc<L>,
    settings: Settings,
    metrics: Rc<Metrics>,
    fallback: RefCell<RateLimit>,
}

impl<L: ResultLookup> QueryService<L> {
    /// A service over the lookup port.
    pub fn new(lookup: Rc<L>, settings: Settings, metrics: Rc<Metrics>) -> Self {
        let fallback = RefCell::new(RateLimit::new(settings.fallback_per_s, shards::now()));
        Self { lookup, settings, metrics, fallback }
    }

    /// Answers, waiting up to `command.wait` (capped) for a final result. A client that leaves ends the wait.
    pub async fn query(&self, command: QueryCommand, client: &Gate) -> QueryAnswer {
        let wait_until = shards::now() + command.wait.min(Duration::from_millis(self.settings.wait_max_ms));
        let mut pause = LOOK_FIRST;
        loop {
            let deadline = shards::now() + Duration::from_millis(self.settings.deadline_ms);
            let answer = self.look(&command, deadline).await;
            let open = matches!(answer, QueryAnswer::Processing { .. });
            let next_look = shards::now() + pause;
            if !open || next_look > wait_until || client.is_closed() {
                return answer;
            }
            if let First::Right(()) = race(shards::sleep_until(next_look), client.closed()).await {
                self.metrics.client_canceled.inc();
                return answer;
            }
            pause = (pause * 3 / 2).min(LOOK_LAST);
        }
    }

    async fn look(&self, command: &QueryCommand, deadline: Instant) -> QueryAnswer {
        let QueryCommand { sku, request_id, user_id, .. } = *command;
        match self.lookup.standing(sku, request_id, user_id, deadline).await {
            Ok(Standing::Final { reservation_id, result }) => QueryAnswer::Final { reservation_id, result },
            Ok(Standing::NotOwner) => QueryAnswer::NotFound,
            Ok(Standing::Open { reservation_id, state, created_at_ms, .. }) => {
                let processing = QueryAnswer::Processing { reservation_id: Some(reservation_id) };
                let age_ms = (shards::unix_micros() / 1_000).saturating_sub(created_at_ms);
                // Only what reached the topic can be in the order store.
                let may_be_stored = state != ReservationState::Released;
                if age_ms <= self.settings.processing_window_ms || !may_be_stored {
                    return processing;
                }
                match self.stored(command, deadline).await {
                    answer @ QueryAnswer::Final { .. } => answer,
                    _ => processing,
                }
            }
            // Nothing on the board: it never was, it has expired, or Redis lost it. The store knows.
            Ok(Standing::Missing) => self.stored(command, deadline).await,
            Err(PortError::Timeout) if shards::now() >= deadline => QueryAnswer::Timeout,
            Err(_) => match self.stored(command, deadline).await {
                // Without the board, "not in the store" does not mean "never was".
                QueryAnswer::NotFound => QueryAnswer::Unavailable,
                answer => answer,
            },
        }
    }

    async fn stored(&self, command: &QueryCommand, deadline: Instant) -> QueryAnswer {
        if !self.fallback.borrow_mut().allow(shards::now()) {
            self.metrics.query_fallback_refused.inc();
            return QueryAnswer::Unavailable;
        }
        self.metrics.query_fallback.inc();
        match self.lookup.stored(command.sku, command.request_id, command.user_id, deadline).await {
            Ok(Standing::Final { reservation_id, result }) => QueryAnswer::Final { reservation_id, result },
            Ok(_) => QueryAnswer::NotFound,
            Err(PortError::Timeout) => QueryAnswer::Timeout,
            Err(error) => {
                tracing::warn!(%error, "the order store could not be asked");
                QueryAnswer::Unavailable
            }
        }
    }
}

#[cfg(test)]
mod tests;

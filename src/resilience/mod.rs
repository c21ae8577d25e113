//! What stands between a shard and a dependency that is ill (spec section 7): a circuit breaker and a retry budget.
//!
//! A call goes through `bulkhead -> deadline -> retry(breaker -> attempt timeout -> call)`. The bulkheads are the pools and
//! bounded queues of each purpose, the attempt timeout is the call's own deadline; [`Guard`] is the part in between, one a
//! shard and dependency, shared by all purposes: whether a server is up is the same question for each of them.

mod breaker;
mod budget;
mod retry;

use std::cell::RefCell;
use std::rc::Rc;

pub use breaker::{Breaker, BreakerLimits, State};
pub use budget::RetryBudget;
pub use retry::Retry;

use crate::config::Resilience;
use crate::observe::metrics::{BreakerState, Dependency, Metrics};

/// Breaker and retry budget of one dependency.
pub struct Guard {
    dependency: Dependency,
    breaker: RefCell<Breaker>,
    budget: RefCell<RetryBudget>,
    metrics: Rc<Metrics>,
}

/// Whom a failed call speaks against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// It could not be reached, did not answer in time, or said that it is not able to.
    Dependency,
    /// It answered: what was asked of it was wrong, or it said no.
    Caller,
    /// Ours: a pool or queue that is full or closed says nothing about the other end.
    Nobody,
}

/// The breaker is open: the call is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the breaker is open")]
pub struct Open;

impl Guard {
    /// A closed breaker and an empty budget.
    pub fn new(dependency: Dependency, settings: &Resilience, metrics: Rc<Metrics>) -> Rc<Self> {
        let guard = Self {
            dependency,
            breaker: RefCell::new(Breaker::new(BreakerLimits::from(settings))),
            budget: RefCell::new(RetryBudget::new(settings.retry_percent, settings.retry_floor_per_min)),
            metrics,
        };
        guard.show(State::Closed);
        Rc::new(guard)
    }

    /// Asks for one call.
    ///
    /// # Errors
    /// [`Open`]: the dependency is ill and nobody may bother it now.
    pub fn enter(&self) -> Result<Pass<'_>, Open> {
        let now = shards::now();
        let admitted = self.change(|breaker| breaker.admit(now));
        if !admitted {
            self.metrics.breaker_refused[self.dependency as usize].inc();
            return Err(Open);
        }
        self.budget.borrow_mut().call(now);
        self.metrics.dependency_calls[self.dependency as usize].inc();
        Ok(Pass { guard: self, reported: false })
    }

    /// Makes one call and notes how it went; `blame` judges a failure.
    ///
    /// # Errors
    /// [`Open`]: the call was not made.
    pub async fn call<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
        blame: impl FnOnce(&E) -> Blame,
    ) -> Result<Result<T, E>, Open> {
        let pass = self.enter()?;
        let result = call.await;
        match result.as_ref().err().map_or(Blame::Caller, blame) {
            Blame::Dependency => pass.fault(),
            Blame::Caller => pass.ok(),
            Blame::Nobody => drop(pass),
        }
        Ok(result)
    }

    /// Whether the call that just failed may be made again; counts it if so.
    pub fn may_retry(&self) -> bool {
        let answered = self.breaker.borrow().is_answering();
        let granted = self.budget.borrow_mut().retry(shards::now(), answered);
        let counters = if granted { &self.metrics.dependency_retries } else { &self.metrics.retries_refused };
        counters[self.dependency as usize].inc();
        granted
    }

    /// Whether a call would be refused now. `false` once the cool-down is over: somebody has to be the probe.
    pub fn is_open(&self) -> bool {
        self.breaker.borrow().refuses(shards::now())
    }

    fn change<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.breaker.borrow_mut();
        let before = breaker.state();
        let result = act(&mut breaker);
        let after = breaker.state();
        drop(breaker);
        if before != after {
            self.show(after);
            self.metrics.breaker_transitions[self.dependency as usize][label(after) as usize].inc();
            let dependency = Dependency::TEXTS[self.dependency as usize];
            if after == State::Closed {
                tracing::info!(dependency, from = before.name(), to = after.name(), "breaker");
            } else {
                tracing::warn!(dependency, from = before.name(), to = after.name(), "breaker");
            }
        }
        result
    }

    fn show(&self, state: State) {
        for (index, gauge) in self.metrics.breaker_state[self.dependency as usize].iter().enumerate() {
            gauge.set(i64::from(index == label(state) as usize));
        }
    }
}

const fn label(state: State) -> BreakerState {
    match state {
        State::Closed => BreakerState::Closed,
        State::Open => BreakerState::Open,
        State::HalfOpen => BreakerState::HalfOpen,
    }
}

/// Leave to make one call. Say how it went; dropping it says that nobody knows, for instance because the caller left.
pub struct Pass<'a> {
    guard: &'a Guard,
    reported: bool,
}

impl Pass<'_> {
    /// The dependency answered, whatever the answer was: sold out and duplicates are answers.
    pub fn ok(mut self) {
        self.reported = true;
        self.guard.change(Breaker::succeeded);
    }

    /// It could not be reached, did not answer in time, or said that it is not able to.
    pub fn fault(mut self) {
        self.reported = true;
        let random = shards::random_u64();
        self.guard.change(|breaker| breaker.failed(shards::now(), random));
    }

    /// [`ok`](Self::ok) or [`fault`](Self::fault).
    pub fn report(self, fault: bool) {
        if fault { self.fault() } else { self.ok() }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.reported {
            self.guard.change(Breaker::abandoned);
        }
    }
}

/// The guards of one shard.
#[derive(Clone)]
pub struct Guards {
    /// Redis.
    pub redis: Rc<Guard>,
    /// RocketMQ, both directions.
    pub rocketmq: Rc<Guard>,
    /// PostgreSQL.
    pub postgres: Rc<Guard>,
}

impl Guards {
    /// One a dependency.
    pub fn new(settings: &Resilience, metrics: &Rc<Metrics>) -> Self {
        let guard = |dependency| Guard::new(dependency, settings, metrics.clone());
        Self {
            redis: guard(Dependency::Redis),
            rocketmq: guard(Dependency::RocketMq),
            postgres: guard(Dependency::Postgres),
        }
    }
}

#[cfg(test)]
mod tests;

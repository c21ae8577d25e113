//! `bench e2e`: clicks followed to the final result that their buyers see.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use shards::ShardConfig;
use shards::sync::Queue;

use super::client::{Connection, member};
use super::report::{E2eReport, Quantiles, histogram, note};
use super::submit::{Accepted, Buyers, LoadOptions, Run, identity, resolve};
use super::{BenchError, cpu};
use crate::domain::Sku;

/// How long one look at a result waits on the server.
const LOOK_MS: u64 = 2_000;

/// Clicks to follow.
#[derive(Clone)]
pub struct E2eOptions {
    /// The clicks.
    pub load: LoadOptions,
    /// `host:port` of each query server; empty = the same as the load's targets.
    pub queries: Vec<String>,
    /// How long an accepted click may take to its final state.
    pub settle: Duration,
    /// Long polls at a time.
    pub followers: usize,
}

struct Follow {
    waiting: Queue<Accepted>,
    sku: Sku,
    buyers: Buyers,
    settle: Duration,
    visible: RefCell<Histogram<u64>>,
    finals: RefCell<BTreeMap<String, u64>>,
    unfinished: Cell<u64>,
    within: [Cell<u64>; 2],
}

impl Follow {
    async fn connection(self: Rc<Self>, target: SocketAddr) -> Result<(), BenchError> {
        let mut connection = Connection::new(target);
        while let Some(click) = self.waiting.pop().await {
            let until = click.due_at + self.settle;
            match self.final_state(&mut connection, &click, until).await? {
                Some(state) => {
                    let took = shards::now() - click.due_at;
                    note(&mut self.visible.borrow_mut(), took);
                    *self.finals.borrow_mut().entry(state).or_default() += 1;
                    for (within, seconds) in self.within.iter().zip([1, 3]) {
                        within.set(within.get() + u64::from(took <= Duration::from_secs(seconds)));
                    }
                }
                None => self.unfinished.set(self.unfinished.get() + 1),
            }
        }
        Ok(())
    }

    async fn final_state(
        &self,
        connection: &mut Connection,
        click: &Accepted,
        until: Instant,
    ) -> Result<Option<String>, BenchError> {
        let request = format!(
            "GET /v1/seckill/activities/{}/skus/{}/requests/{}?wait={LOOK_MS} HTTP/1.1\r\nHost: bench\r\n{}\r\n\r\n",
            self.sku.activity,
            self.sku.sku,
            click.request_id,
            identity(&self.buyers, click.user_id)?
        );
        while shards::now() < until {
            match connection.call(request.as_bytes()).await {
                Ok(answer) if answer.status == 200 => match member(&answer.body, "state") {
                    Some("PROCESSING") | None => {}
                    Some(state) => return Ok(Some(state.to_owned())),
                },
                // Overload and time-outs ask for another try; a broken connection is made anew.
                Ok(_) | Err(_) => shards::sleep(Duration::from_millis(20)).await,
            }
        }
        Ok(None)
    }
}

/// Clicks, follows each accepted click, and reports when its result was seen.
///
/// # Errors
/// [`BenchError`]; answers of any kind are none.
pub fn e2e(options: E2eOptions) -> Result<E2eReport, BenchError> {
    let targets = resolve(&options.load.targets)?;
    let queries = if options.queries.is_empty() { targets.clone() } else { resolve(&options.queries)? };
    let config = ShardConfig { ring_entries: 4096, ..ShardConfig::default() };
    let report = shards::run_with(&config, async move {
        let load = options.load;
        let follow = Rc::new(Follow {
            waiting: Queue::new(usize::try_from(load.count).unwrap_or(usize::MAX)),
            sku: load.sku,
            buyers: load.buyers.clone(),
            settle: options.settle,
            visible: RefCell::new(histogram()),
            finals: RefCell::default(),
            unfinished: Cell::new(0),
            within: Default::default(),
        });
        let followers: Vec<_> = (0..options.followers)
            .map(|index| shards::spawn(follow.clone().connection(queries[index % queries.len()])))
            .collect();
        let (start, cpu_before) = (shards::now(), cpu::used_by_all(&load.watch));
        let run = Run::new(load, start);
        let connections: Vec<_> = (0..run.options.connections)
            .map(|index| {
                let follow = follow.clone();
                let accepted = move |click| {
                    // The queue has room for every click there is.
                    let _ = follow.waiting.try_push(click);
                };
                shards::spawn(run.clone().connection(targets[index % targets.len()], accepted))
            })
            .collect();
        for connection in connections {
            connection.await.map_err(|panicked| BenchError::Service(panicked.message().to_owned()))??;
        }
        let elapsed = shards::now() - start;
        follow.waiting.close();
        for follower in followers {
            follower.await.map_err(|panicked| BenchError::Service(panicked.message().to_owned()))??;
        }
        let watch = &run.options.watch;
        let cpu = (!watch.is_empty()).then(|| cpu::used_by_all(watch).saturating_sub(cpu_before));
        let accepted = follow.visible.borrow().len() + follow.unfinished.get();
        let share = |within: &Cell<u64>| within.get() as f64 / accepted.max(1) as f64;
        let report = E2eReport {
            submit: run.tally.borrow().report(elapsed, cpu),
            finals: follow.finals.borrow().clone(),
            unfinished: follow.unfinished.get(),
            visible_ms: Quantiles::of(&follow.visible.borrow()),
            within_1s: share(&follow.within[0]),
            within_3s: share(&follow.within[1]),
        };
        Ok(report)
    });
    report.unwrap_or_else(|error| Err(BenchError::Service(format!("cannot start a shard: {error}"))))
}

//! `bench submit`: clicks at a pace, and what was answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use shards::ShardConfig;

use super::client::{Answer, Connection, member};
use super::report::{Quantiles, SubmitReport, histogram, note};
use super::schedule::{Due, Pace, Schedule};
use super::{BenchError, cpu};
use crate::api::ORDERS_PATH;
use crate::domain::{Sku, Uuid, UuidV7Source};

/// Who the buyers say they are.
#[derive(Clone)]
pub enum Buyers {
    /// In a header, as a gateway would.
    Header(String),
    /// By a signed token each, made before its request is due.
    Token {
        /// The HS256 secret.
        secret: String,
        /// `aud`.
        audience: String,
    },
}

/// The load.
#[derive(Clone)]
pub struct LoadOptions {
    /// `host:port` of each server; connections are spread over them.
    pub targets: Vec<String>,
    /// What is clicked on.
    pub sku: Sku,
    /// Who the buyers say they are.
    pub buyers: Buyers,
    /// The first user id; each request takes the next one.
    pub first_user: i64,
    /// Open or closed loop.
    pub pace: Pace,
    /// Connections kept open.
    pub connections: usize,
    /// How many requests at most.
    pub count: u64,
    /// How long at most.
    pub lasts: Option<Duration>,
    /// Buyers ask again with the same key after 429, 503 and 504, as those answers tell them to, for as long as this.
    /// Latency counts from the first time.
    pub patience: Duration,
    /// Processes whose CPU time is charged to the answers.
    pub watch: Vec<u32>,
    /// Every so many clicks one is a buyer's second, under another key; 0 = never.
    pub twice_every: u64,
    /// Moved on by one with each click that has its last answer.
    pub progress: indicatif::ProgressBar,
}

impl LoadOptions {
    /// Who makes click `index`.
    fn user(&self, index: u64) -> i64 {
        let seconds = index.checked_div(self.twice_every).unwrap_or(0);
        self.first_user.saturating_add_unsigned(index - seconds)
    }
}

/// How long a patient buyer waits before the same click again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// An accepted click.
pub(super) struct Accepted {
    pub(super) due_at: Instant,
    pub(super) user_id: i64,
    pub(super) request_id: Uuid,
}

/// What the connections have seen so far.
pub(super) struct Tally {
    pub(super) latency: Histogram<u64>,
    pub(super) answers: BTreeMap<String, u64>,
    pub(super) broken: u64,
    pub(super) repeated: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { latency: histogram(), answers: BTreeMap::new(), broken: 0, repeated: 0 }
    }
}

impl Tally {
    pub(super) fn report(&self, elapsed: Duration, cpu: Option<Duration>) -> SubmitReport {
        let answered = self.latency.len();
        let per_answer = |cpu: Duration| cpu.as_secs_f64() * 1e6 / answered.max(1) as f64;
        SubmitReport {
            answered,
            broken: self.broken,
            repeated: self.repeated,
            answers: self.answers.clone(),
            elapsed_s: elapsed.as_secs_f64(),
            rate: answered as f64 / elapsed.as_secs_f64().max(1e-9),
            latency_ms: Quantiles::of(&self.latency),
            cpu_us_per_answer: cpu.map(per_answer),
        }
    }
}

/// Resolves the targets.
pub(super) fn resolve(targets: &[String]) -> Result<Vec<SocketAddr>, BenchError> {
    let one = |target: &String| {
        let failed = |reason: String| BenchError::Target { target: target.clone(), reason };
        let mut found = target.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        found.next().ok_or_else(|| failed("it has no address".to_owned()))
    };
    targets.iter().map(one).collect()
}

/// The bytes that name a buyer.
pub(super) fn identity(buyers: &Buyers, user_id: i64) -> Result<String, BenchError> {
    match buyers {
        Buyers::Header(name) => Ok(format!("{name}: {user_id}")),
        Buyers::Token { secret, audience } => {
            let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
            let claims = serde_json::json!({
                "sub": user_id.to_string(), "aud": audience, "exp": shards::unix_micros() / 1_000_000 + 3_600,
            });
            let token = key.and_then(|key| jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key));
            let token = token.map_err(|error| BenchError::Service(format!("a token cannot be signed: {error}")))?;
            Ok(format!("Authorization: Bearer {token}"))
        }
    }
}

fn request(options: &LoadOptions, user_id: i64, request_id: Uuid) -> Result<Vec<u8>, BenchError> {
    let body = format!(r#"{{"activity_id":{},"sku_id":{}}}"#, options.sku.activity, options.sku.sku);
    let head = format!(
        "POST {ORDERS_PATH} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{}\r\n\
         Idempotency-Key: {request_id}\r\nContent-Length: {}\r\n\r\n",
        identity(&options.buyers, user_id)?,
        body.len()
    );
    Ok([head.as_bytes(), body.as_bytes()].concat())
}

/// Everything the connections share.
pub(super) struct Run {
    pub(super) options: LoadOptions,
    schedule: Schedule,
    pub(super) tally: RefCell<Tally>,
    ids: RefCell<UuidV7Source>,
}

impl Run {
    pub(super) fn new(options: LoadOptions, start: Instant) -> Rc<Self> {
        let schedule = Schedule::new(options.pace, start, options.count, options.lasts);
        Rc::new(Self { options, schedule, tally: RefCell::default(), ids: RefCell::default() })
    }

    /// One connection, to the end of the schedule.
    pub(super) async fn connection(
        self: Rc<Self>,
        target: SocketAddr,
        accepted: impl Fn(Accepted),
    ) -> Result<(), BenchError> {
        let mut connection = Connection::new(target);
        while let Some(Due { index, at }) = self.schedule.take(shards::now()) {
            let user_id = self.options.user(index);
            let request_id = self.ids.borrow_mut().next(shards::unix_micros() / 1_000, shards::random_u64());
            let bytes = request(&self.options, user_id, request_id)?;
            if at > shards::now() {
                shards::sleep_until(at).await;
            }
            let clicked = self.click(&mut connection, &bytes, at).await;
            self.options.progress.inc(1);
            match clicked {
                Ok(answer) => {
                    self.answered(&answer, at);
                    if answer.status == 202 {
                        accepted(Accepted { due_at: at, user_id, request_id });
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no answer");
                    self.tally.borrow_mut().broken += 1;
                }
            }
        }
        Ok(())
    }

    /// One click, and its repetitions.
    async fn click(&self, connection: &mut Connection, bytes: &[u8], due_at: Instant) -> std::io::Result<Answer> {
        loop {
            let answer = connection.call(bytes).await?;
            let again = matches!(answer.status, 429 | 503 | 504);
            if !again || shards::now() + RETRY_PAUSE > due_at + self.options.patience {
                return Ok(answer);
            }
            self.tally.borrow_mut().repeated += 1;
            shards::sleep(RETRY_PAUSE).await;
        }
    }

    fn answered(&self, answer: &Answer, due_at: Instant) {
        let mut tally = self.tally.borrow_mut();
        note(&mut tally.latency, shards::now() - due_at);
        let code = member(&answer.body, "code").or_else(|| member(&answer.body, "state")).unwrap_or_default();
        *tally.answers.entry(format!("{} {code}", answer.status)).or_default() += 1;
    }
}

/// Clicks, and reports what was answered.
///
/// # Errors
/// [`BenchError`]; answers of any kind are none.
pub fn submit(options: LoadOptions) -> Result<SubmitReport, BenchError> {
    let targets = resolve(&options.targets)?;
    let config = ShardConfig { ring_entries: 4096, ..ShardConfig::default() };
    let report = shards::run_with(&config, async move {
        let (start, cpu_before) = (shards::now(), cpu::used_by_all(&options.watch));
        let run = Run::new(options, start);
        let connections: Vec<_> = (0..run.options.connections)
            .map(|index| shards::spawn(run.clone().connection(targets[index % targets.len()], |_| ())))
            .collect();
        for connection in connections {
            connection.await.map_err(|panicked| BenchError::Service(panicked.message().to_owned()))??;
        }
        let elapsed = shards::now() - start;
        let watch = &run.options.watch;
        let cpu = (!watch.is_empty()).then(|| cpu::used_by_all(watch).saturating_sub(cpu_before));
        let report = run.tally.borrow().report(elapsed, cpu);
        Ok(report)
    });
    report.unwrap_or_else(|error| Err(BenchError::Service(format!("cannot start a shard: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_so_many_clicks_one_is_a_second() {
        let options = |twice_every| LoadOptions {
            targets: Vec::new(),
            sku: Sku::new(1, 1).unwrap(),
            buyers: Buyers::Header("X-User-Id".to_owned()),
            first_user: 100,
            pace: Pace::Closed,
            connections: 1,
            count: 1,
            lasts: None,
            patience: Duration::ZERO,
            watch: Vec::new(),
            twice_every,
            progress: indicatif::ProgressBar::hidden(),
        };
        let users = |twice_every| (0..7).map(|index| options(twice_every).user(index)).collect::<Vec<_>>();
        assert_eq!(users(0), [100, 101, 102, 103, 104, 105, 106]);
        assert_eq!(users(3), [100, 101, 102, 102, 103, 104, 104]);
    }
}

//! Messages that were set aside, for people to look at and to send again (spec sections 4 and 5): dead letters, which came too
//! often, in a topic of their own; and quarantine, which could not be ordered, in PostgreSQL.
//!
//! A replay is the same bytes with the same tag and key on the order topic again: they take the usual way, and the inbox answers
//! what was settled meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto_clients::postgres::{CallError, DecodeError, Params, Pool, Row, Statement, Type};
use proto_clients::rocketmq::{Client, MqError, Outgoing, SendOutcome, record::Record};

use crate::config::RocketMq as Settings;
use crate::domain::{OrderCreateEvent, Sku, Uuid};

static LIST: Statement = Statement {
    sql: include_str!("../sql/set_aside/list_quarantine.sql"),
    params: &[Type::Text, Type::Text, Type::Int8Array, Type::Int8],
};
static DECIDE: Statement =
    Statement { sql: include_str!("../sql/set_aside/decide_quarantine.sql"), params: &[Type::Int8, Type::Text] };
static SETTLED: Statement =
    Statement { sql: include_str!("../sql/set_aside/settled.sql"), params: &[Type::Text, Type::UuidArray] };

/// Longest step against one of the services.
const STEP: Duration = Duration::from_secs(10);
/// Messages read in one pull.
const PULL: u32 = 32;

fn deadline() -> Instant {
    shards::now() + STEP
}

/// Why a command on messages set aside failed.
#[derive(Debug, thiserror::Error)]
pub enum SetAsideError {
    /// PostgreSQL did not do it, or it is not known whether it did.
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] CallError),
    /// An answer of PostgreSQL that cannot be read.
    #[error("PostgreSQL: {0}")]
    Decode(#[from] DecodeError),
    /// RocketMQ did not do it.
    #[error("RocketMQ: {0}")]
    RocketMq(#[from] MqError),
    /// The send of a replay has no answer.
    #[error("whether message {0} was sent is not known; replay it again, the inbox takes it once")]
    Unknown(String),
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its place in the dead-letter topic: broker, queue, offset.
    pub place: String,
    /// The broker's id of the message that died.
    pub origin: String,
    /// How often that was delivered.
    pub attempt: u32,
    /// When it died, Unix milliseconds.
    pub died_at_ms: u64,
    /// What it asks for, where that can be read.
    pub event: Option<OrderCreateEvent>,
    /// What the inbox has of it; `None`: no outcome.
    pub settled: Option<String>,
    message: Outgoing,
}

/// Which messages are meant.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// These message ids; all if empty.
    pub message_ids: Vec<Uuid>,
    /// Of this activity.
    pub activity_id: Option<i64>,
    /// Of this SKU.
    pub sku_id: Option<i64>,
    /// Those that have an outcome too.
    pub settled: bool,
}

impl Filter {
    fn takes(&self, letter: &DeadLetter) -> bool {
        let event = letter.event.as_ref();
        let about = |wanted: Option<i64>, of: fn(&Sku) -> i64| {
            wanted.is_none_or(|wanted| event.is_some_and(|event| of(&event.sku) == wanted))
        };
        (self.settled || letter.settled.is_none())
            && (self.message_ids.is_empty() || event.is_some_and(|event| self.message_ids.contains(&event.message_id)))
            && about(self.activity_id, |sku| sku.activity.get())
            && about(self.sku_id, |sku| sku.sku.get())
    }
}

/// A message in quarantine.
#[derive(Debug, Clone)]
pub struct Quarantined {
    /// Its row.
    pub id: i64,
    /// OPEN, REPLAYED or DISCARDED.
    pub state: String,
    /// Why, as a code.
    pub reason: String,
    /// Why, in words.
    pub detail: String,
    /// The broker's id.
    pub broker_message_id: String,
    /// Deliveries so far.
    pub attempt: i32,
    /// Its own id, where it could be read.
    pub message_id: Option<Uuid>,
    /// The unit it holds, where it could be read.
    pub reservation_id: Option<Uuid>,
    /// When it came, Unix microseconds.
    pub created_at: i64,
    /// Its unit is going or has gone back: a replay is turned down.
    pub released: bool,
    /// The bytes.
    pub body: Vec<u8>,
    tag: String,
    key: String,
}

/// Both places, and the order topic for replays.
pub struct SetAside {
    client: Client,
    postgres: Pool,
    topic: String,
    group: String,
}

impl SetAside {
    /// Over a client and a pool.
    pub fn new(client: Client, postgres: Pool, settings: &Settings) -> Self {
        Self { client, postgres, topic: settings.topic.clone(), group: settings.group.clone() }
    }

    /// Dead letters that the filter takes, oldest first in each queue, at most `limit`.
    ///
    /// # Errors
    /// When a service cannot be asked.
    pub async fn dead_letters(&self, filter: &Filter, limit: usize) -> Result<Vec<DeadLetter>, SetAsideError> {
        let topic = format!("%DLQ%{}", self.group);
        let mut found = Vec::new();
        for queue in self.client.queues(&topic, deadline()).await? {
            let mut offset = 0;
            while found.len() < limit {
                let page = self.client.pull(&topic, &queue, offset, PULL, deadline()).await?;
                let name = |record: &Record| format!("{}/{}/{}", queue.broker, queue.queue, record.queue_offset);
                let mut letters: Vec<_> = page.records.iter().map(|record| letter(name(record), record)).collect();
                self.look_up(&mut letters).await?;
                found.extend(letters.into_iter().filter(|letter| filter.takes(letter)));
                let next = page.next.max(page.min);
                if next >= page.max || next <= offset {
                    break;
                }
                offset = next;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn look_up(&self, letters: &mut [DeadLetter]) -> Result<(), SetAsideError> {
        let ids = || letters.iter().filter_map(|letter| letter.event.as_ref().map(|event| event.message_id));
        let ids: Vec<Uuid> = ids().collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut params = Params::new();
        params.text(&self.group).uuid_array(ids.iter().map(|id| id.0));
        let rows = self.postgres.acquire(deadline()).await?.query(&SETTLED, &params, deadline()).await?;
        let mut settled = HashMap::with_capacity(rows.len());
        for row in rows.iter() {
            settled.insert(row.uuid(0)?, row.text(1)?.to_owned());
        }
        for letter in letters {
            letter.settled = letter.event.as_ref().and_then(|event| settled.get(&event.message_id.0).cloned());
        }
        Ok(())
    }

    /// Sends a dead letter to the order topic again.
    ///
    /// # Errors
    /// When the broker did not take it, or it is not known.
    pub async fn replay_dead_letter(&self, letter: &DeadLetter) -> Result<(), SetAsideError> {
        self.send(letter.message.clone(), &letter.place).await
    }

    /// Messages in quarantine, oldest first; empty `state`, `reason` and `ids` mean any.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn quarantined(
        &self,
        state: &str,
        reason: &str,
        ids: &[i64],
        limit: usize,
    ) -> Result<Vec<Quarantined>, SetAsideError> {
        let mut params = Params::new();
        params.text(state).text(reason).i64_array(ids.iter().copied()).i64(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.postgres.acquire(deadline()).await?.query(&LIST, &params, deadline()).await?;
        Ok(rows.iter().map(|row| quarantined(&row)).collect::<Result<_, _>>()?)
    }

    /// Sends a message in quarantine to the order topic again and notes it. In this order: a crash in between sends it twice,
    /// which the inbox answers, and never loses it.
    ///
    /// # Errors
    /// When the broker did not take it, or a service did not answer.
    pub async fn replay_quarantined(&self, message: &Quarantined) -> Result<(), SetAsideError> {
        let outgoing = Outgoing {
            body: Bytes::from(message.body.clone()),
            tag: message.tag.clone(),
            keys: message.key.clone(),
            properties: Vec::new(),
        };
        self.send(outgoing, &message.broker_message_id).await?;
        self.decide(message.id, "REPLAYED").await.map(drop)
    }

    /// Notes that nothing will be done about a message. `false`: that had been decided before.
    ///
    /// # Errors
    /// When PostgreSQL cannot be asked.
    pub async fn discard(&self, id: i64) -> Result<bool, SetAsideError> {
        self.decide(id, "DISCARDED").await
    }

    async fn decide(&self, id: i64, state: &str) -> Result<bool, SetAsideError> {
        let mut params = Params::new();
        params.i64(id).text(state);
        let rows = self.postgres.acquire(deadline()).await?.query(&DECIDE, &params, deadline()).await?;
        Ok(rows.affected() == 1)
    }

    async fn send(&self, message: Outgoing, name: &str) -> Result<(), SetAsideError> {
        match self.client.send(&self.topic, &[message], deadline()).await {
            SendOutcome::Stored { .. } => Ok(()),
            SendOutcome::NotStored(error) => Err(error.into()),
            SendOutcome::Unknown(_) => Err(SetAsideError::Unknown(name.to_owned())),
        }
    }
}

fn letter(place: String, record: &Record) -> DeadLetter {
    let property = |name: &str| record.property(name).unwrap_or_default().to_owned();
    let (tag, keys) = (property("TAGS"), property("KEYS"));
    DeadLetter {
        place,
        origin: property("ORIGIN_MESSAGE_ID"),
        attempt: property("DELIVERY_ATTEMPT").parse().unwrap_or(0),
        died_at_ms: record.born_ms,
        event: OrderCreateEvent::decode(&record.body, &tag, Some(&keys)).ok(),
        settled: None,
        message: Outgoing { body: record.body.clone(), tag, keys, properties: Vec::new() },
    }
}

fn quarantined(row: &Row<'_>) -> Result<Quarantined, DecodeError> {
    Ok(Quarantined {
        id: row.i64(0)?,
        state: row.text(1)?.to_owned(),
        reason: row.text(2)?.to_owned(),
        detail: row.text(3)?.to_owned(),
        broker_message_id: row.text(4)?.to_owned(),
        attempt: row.i32(5)?,
        message_id: row.opt_uuid(6)?.map(Uuid),
        reservation_id: row.opt_uuid(7)?.map(Uuid),
        created_at: row.timestamptz_micros(8)?,
        released: row.bool(9)?,
        body: row.bytea(10)?.to_vec(),
        tag: row.opt_text(11)?.unwrap_or_default().to_owned(),
        key: row.opt_text(12)?.unwrap_or_default().to_owned(),
    })
}

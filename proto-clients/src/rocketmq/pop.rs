//! POP: receiving with an invisible time and explicit acks.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use super::frame::{Frame, Request};
use super::record::{self, Record};
use super::{Handle, MqError, code};

/// The most messages of one pop.
pub const MESSAGES_MAX: u32 = 32;

/// A popped message.
#[derive(Debug, Clone)]
pub struct Popped {
    /// The body.
    pub body: Bytes,
    /// The topic that was popped.
    pub topic: Rc<str>,
    /// TAGS; empty = none.
    pub tag: String,
    /// KEYS.
    pub keys: Option<String>,
    /// All properties.
    pub properties: Vec<(String, String)>,
    /// The broker's id of this record; a redelivery is a new record.
    pub message_id: String,
    /// Which delivery this is, from 1.
    pub attempt: u32,
    /// When its producer made it, by the producer's clock.
    pub born_ms: u64,
    /// What acknowledges it.
    pub handle: Handle,
}

/// The request for up to `max` messages of any queue of one broker.
pub fn request(group: &str, topic: &str, max: u32, invisible: Duration, poll: Duration) -> Request {
    let ext = vec![
        ("consumerGroup", group.to_owned()),
        ("topic", topic.to_owned()),
        ("queueId", "-1".to_owned()),
        ("maxMsgNums", max.clamp(1, MESSAGES_MAX).to_string()),
        ("invisibleTime", invisible.as_millis().to_string()),
        ("pollTime", poll.as_millis().to_string()),
        // The broker stamps its own clock: a client whose clock differs would be sent away at once.
        ("bornTime", "0".to_owned()),
        ("initMode", "0".to_owned()),
        ("expType", "TAG".to_owned()),
        ("exp", "*".to_owned()),
        ("order", "false".to_owned()),
    ];
    Request::new(code::POP_MESSAGE, ext)
}

/// The messages in an answer; none when the poll ran out.
///
/// # Errors
/// [`MqError`]; the messages of an answer that cannot be read come back after their invisible time.
pub fn messages(answer: &Frame, topic: &Rc<str>, broker: &Rc<str>) -> Result<Vec<Popped>, MqError> {
    match answer.code {
        code::SUCCESS => {}
        code::POLLING_TIMEOUT | code::PULL_NOT_FOUND => return Ok(Vec::new()),
        code => return Err(MqError::Code { code, remark: answer.remark.clone() }),
    }
    let records = record::parse_all(answer.body.clone()).map_err(|_| MqError::Answer("its records cannot be read"))?;
    let number = |name: &str| answer.field(name).and_then(|text| text.parse::<u64>().ok());
    let missing = MqError::Answer("a pop without its time");
    let segments = Segments {
        topic: topic.clone(),
        broker: broker.clone(),
        pop_time: number("popTime").ok_or(missing.clone())?,
        invisible_ms: number("invisibleTime").ok_or(missing.clone())?,
        revive_queue: number("reviveQid").and_then(|id| u32::try_from(id).ok()).ok_or(missing)?,
        starts: starts(answer.field("startOffsetInfo").unwrap_or_default()),
    };
    records.into_iter().map(|record| segments.popped(record)).collect()
}

/// `"<mark> <queueId> <startOffset>"` joined by `;`
fn starts(text: &str) -> Vec<(u8, u32, u64)> {
    let entry = |text: &str| {
        let mut fields = text.split(' ');
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    text.split(';').filter_map(entry).collect()
}

/// What the messages of one answer have in common.
struct Segments {
    topic: Rc<str>,
    broker: Rc<str>,
    pop_time: u64,
    invisible_ms: u64,
    revive_queue: u32,
    starts: Vec<(u8, u32, u64)>,
}

impl Segments {
    fn popped(&self, record: Record) -> Result<Popped, MqError> {
        let handle = self.handle(&record).ok_or(MqError::Answer("a popped message without a handle"))?;
        Ok(Popped {
            tag: record.property("TAGS").unwrap_or_default().to_owned(),
            keys: record.property("KEYS").map(str::to_owned),
            topic: self.topic.clone(),
            attempt: record.reconsume_times.saturating_add(1),
            born_ms: record.born_ms,
            body: record.body,
            properties: record.properties,
            message_id: record.message_id,
            handle,
        })
    }

    fn handle(&self, record: &Record) -> Option<Handle> {
        // A redelivered message carries its whole handle; its topic has been written over.
        if let Some(text) = record.property("POP_CK") {
            return Handle::parse(text, &self.topic);
        }
        let mark = match record.topic.strip_prefix("%RETRY%") {
            Some(rest) if rest.contains('+') => 2,
            Some(_) => 1,
            None => 0,
        };
        let start = self.starts.iter().find(|start| (start.0, start.1) == (mark, record.queue))?;
        Some(Handle {
            topic: self.topic.clone(),
            broker: self.broker.clone(),
            start_offset: start.2,
            pop_time: self.pop_time,
            invisible_ms: self.invisible_ms,
            revive_queue: self.revive_queue,
            mark,
            queue: record.queue,
            offset: record.queue_offset,
        })
    }
}

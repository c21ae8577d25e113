//! Sends: one message, or a batch to one queue; and what the answer says about them.

use bytes::{BufMut, Bytes, BytesMut};

use super::frame::{Frame, Request};
use super::{MqError, code, properties};

/// The broker's `maxMessageSize`, also for a whole batch.
const BODY_BYTES_MAX: usize = 4 << 20;

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// At least one byte.
    pub body: Bytes,
    /// TAGS; empty = none.
    pub tag: String,
    /// KEYS, separated by spaces; empty = none.
    pub keys: String,
    /// More properties.
    pub properties: Vec<(String, String)>,
}

/// Stored, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendResult {
    /// The broker's ids of the records, in order.
    pub message_ids: Vec<String>,
    /// The queue.
    pub queue: u32,
    /// The offset of the first record in it.
    pub queue_offset: u64,
    /// The broker has it in memory, but could not flush or replicate it in time.
    pub durability_in_doubt: bool,
}

/// What became of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// The broker has all of it.
    Stored(SendResult),
    /// The broker has none of it.
    NotStored(MqError),
    /// The broker may have all of it.
    Unknown(MqError),
}

fn encode_properties(message: &Outgoing) -> Result<String, MqError> {
    let mut text = String::with_capacity(96);
    let named = message.properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all = [("TAGS", message.tag.as_str()), ("KEYS", message.keys.as_str()), ("WAIT", "true")].into_iter();
    for (name, value) in all.chain(named) {
        if !properties::is_clean(name) || !properties::is_clean(value) {
            return Err(MqError::Invalid("a property holds a separator (0x01 or 0x02)"));
        }
        properties::put(&mut text, name, value);
    }
    if properties::fits(&text) { Ok(text) } else { Err(MqError::Invalid("the properties are too long")) }
}

/// The request that stores `messages` in one queue: all or nothing.
///
/// # Errors
/// [`MqError::Invalid`] for what no broker takes.
pub fn request(group: &str, topic: &str, queue: u32, messages: &[Outgoing], now_ms: u64) -> Result<Request, MqError> {
    let (code, body, properties) = match messages {
        [] => return Err(MqError::Invalid("no message")),
        // A body without a byte is read as null there.
        [message] if message.body.is_empty() => return Err(MqError::Invalid("the body is empty")),
        [message] => (code::SEND_MESSAGE_V2, message.body.clone(), encode_properties(message)?),
        batch => {
            let mut properties = String::new();
            properties::put(&mut properties, "WAIT", "true");
            (code::SEND_BATCH_MESSAGE, batch_body(batch)?, properties)
        }
    };
    if body.len() > BODY_BYTES_MAX {
        return Err(MqError::Invalid("the body is too long"));
    }
    let mut ext = vec![
        ("a", group.to_owned()),
        ("b", topic.to_owned()),
        // The template for auto-created topics; where that is off it says nothing.
        ("c", "TBW102".to_owned()),
        ("d", "4".to_owned()),
        ("e", queue.to_string()),
        ("f", "0".to_owned()),
        ("g", now_ms.to_string()),
        ("h", "0".to_owned()),
        ("i", properties),
        ("j", "0".to_owned()),
        ("k", "false".to_owned()),
    ];
    if code == code::SEND_BATCH_MESSAGE {
        // Without it the whole batch is stored as one message, and answered with success.
        ext.push(("m", "true".to_owned()));
    }
    Ok(Request { body, ..Request::new(code, ext) })
}

fn batch_body(messages: &[Outgoing]) -> Result<Bytes, MqError> {
    let size: usize = messages.iter().map(|message| message.body.len() + 160).sum();
    let mut out = BytesMut::with_capacity(size.min(BODY_BYTES_MAX));
    for message in messages {
        let properties = encode_properties(message)?;
        let length = 22 + message.body.len() + properties.len();
        if out.len() + length > BODY_BYTES_MAX {
            return Err(MqError::Invalid("the batch is too long"));
        }
        out.put_u32(length as u32);
        out.put_u32(0);
        out.put_u32(0);
        out.put_u32(0);
        out.put_u32(message.body.len() as u32);
        out.put_slice(&message.body);
        out.put_u16(properties.len() as u16);
        out.put_slice(properties.as_bytes());
    }
    Ok(out.freeze())
}

/// What the broker's answer says.
pub fn outcome(answer: &Frame) -> SendOutcome {
    let durability_in_doubt = match answer.code {
        code::SUCCESS => false,
        // Stored on the master, but not flushed or not replicated in time.
        code::FLUSH_DISK_TIMEOUT | code::SLAVE_NOT_AVAILABLE | code::FLUSH_SLAVE_TIMEOUT => true,
        code => {
            let error = MqError::Code { code, remark: answer.remark.clone() };
            return if error.outcome_unknown() { SendOutcome::Unknown(error) } else { SendOutcome::NotStored(error) };
        }
    };
    let ids = answer.field("msgId").unwrap_or_default();
    SendOutcome::Stored(SendResult {
        message_ids: ids.split(',').map(str::to_owned).collect(),
        queue: answer.field("queueId").and_then(|text| text.parse().ok()).unwrap_or(0),
        queue_offset: answer.field("queueOffset").and_then(|text| text.parse().ok()).unwrap_or(0),
        durability_in_doubt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &'static str) -> Outgoing {
        Outgoing { body: body.into(), tag: String::new(), keys: "k".to_owned(), properties: Vec::new() }
    }

    #[test]
    fn a_batch_entry_has_the_layout_of_the_broker() {
        let body = batch_body(&[message("b0")]).unwrap();
        // u32 size, three zero words, body, properties.
        assert_eq!(&body[..22], b"\0\0\0\x29\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02b0");
        assert_eq!(&body[22..], b"\0\x11KEYS\x01k\x02WAIT\x01true\x02".as_slice());
    }

    #[test]
    fn what_no_broker_takes_is_not_sent() {
        let send = |messages: &[Outgoing]| request("g", "t", 0, messages, 0);
        assert!(matches!(send(&[]), Err(MqError::Invalid(_))));
        assert!(matches!(send(&[message("")]), Err(MqError::Invalid(_))));
        let dirty = Outgoing { tag: "a\u{2}b".to_owned(), ..message("x") };
        assert!(matches!(send(&[dirty]), Err(MqError::Invalid(_))));
        let long = Outgoing { keys: "k".repeat(40_000), ..message("x") };
        assert!(matches!(send(&[long]), Err(MqError::Invalid(_))));
        let big = Outgoing { body: vec![0; BODY_BYTES_MAX].into(), ..message("x") };
        assert!(matches!(send(&[big.clone(), big]), Err(MqError::Invalid(_))));
    }

    #[test]
    fn every_code_is_stored_or_not_or_unknown() {
        let answer = |code, remark: Option<&str>| {
            let remark = remark.map(str::to_owned);
            outcome(&Frame { code, flag: 1, opaque: 0, remark, ext: Vec::new(), body: Bytes::new() })
        };
        for code in [0, 10, 11, 12] {
            assert!(matches!(answer(code, None), SendOutcome::Stored(_)), "{code}");
        }
        for code in [2, 3, 13, 14, 16, 17, 26, 29, 204, 205, 501, 1500] {
            assert!(matches!(answer(code, None), SendOutcome::NotStored(_)), "{code}");
        }
        assert!(matches!(answer(1, Some("store putMessage return null")), SendOutcome::Unknown(_)));
        assert!(matches!(answer(1, Some("create mapped file failed")), SendOutcome::NotStored(_)));
    }
}

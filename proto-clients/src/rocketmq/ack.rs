//! Acks, in batches, and changes of the invisible time.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::frame::{Frame, Request};
use super::{Handle, MqError, code};

/// Offsets that one entry may span: a bit each.
const SPAN_MAX: usize = 4096;

/// One request that acks handles of one broker.
pub fn request(group: &str, broker: &str, handles: &[&Handle]) -> Request {
    let mut sorted = handles.to_vec();
    sorted.sort_by_key(|handle| segment(handle));
    let entries: Vec<serde_json::Value> =
        sorted.chunk_by(|left, right| segment(left) == segment(right)).filter_map(|same| entry(group, same)).collect();
    let body = serde_json::json!({ "brokerName": broker, "acks": entries });
    Request { body: body.to_string().into(), ..Request::new(code::BATCH_ACK, Vec::new()) }
}

/// What the handles of one entry must have in common.
fn segment(handle: &Handle) -> (&str, u8, u64, u32, u32, u64, u64) {
    let Handle { topic, mark, start_offset, queue, revive_queue, pop_time, invisible_ms, .. } = handle;
    (topic, *mark, *start_offset, *queue, *revive_queue, *pop_time, *invisible_ms)
}

fn entry(group: &str, handles: &[&Handle]) -> Option<serde_json::Value> {
    let first = handles.first()?;
    let mut bits = Vec::new();
    for place in handles.iter().filter_map(|handle| place(handle)) {
        bits.resize(bits.len().max(place / 8 + 1), 0u8);
        bits[place / 8] |= 1 << (place % 8);
    }
    Some(serde_json::json!({
        "c": group, "t": &*first.topic, "r": first.mark.to_string(), "so": first.start_offset, "q": first.queue,
        "rq": first.revive_queue, "pt": first.pop_time, "it": first.invisible_ms, "b": STANDARD.encode(bits),
    }))
}

/// The handle's bit in its entry. A pop hands out 32 messages at most, so one far from its start is none of ours.
pub(crate) fn place(handle: &Handle) -> Option<usize> {
    let place = handle.offset.checked_sub(handle.start_offset)?;
    usize::try_from(place).ok().filter(|place| *place < SPAN_MAX)
}

/// Hides a message for `for_time` from now.
pub fn change_invisible_request(group: &str, handle: &Handle, for_time: Duration) -> Request {
    let ext = vec![
        ("consumerGroup", group.to_owned()),
        ("topic", handle.real_topic(group)),
        ("queueId", handle.queue.to_string()),
        ("offset", handle.offset.to_string()),
        ("extraInfo", handle.to_string()),
        ("invisibleTime", for_time.as_millis().to_string()),
    ];
    Request::new(code::CHANGE_INVISIBLE, ext)
}

/// The handle that acks the message from now on; the old one is dead.
///
/// # Errors
/// [`MqError`]; the old handle stays valid when the broker refused.
pub fn changed_handle(answer: &Frame, old: &Handle) -> Result<Handle, MqError> {
    accepted(answer)?;
    let number = |name: &str| answer.field(name).and_then(|text| text.parse::<u64>().ok());
    let missing = MqError::Answer("a changed handle without its time");
    Ok(Handle {
        start_offset: old.offset,
        pop_time: number("popTime").ok_or(missing.clone())?,
        invisible_ms: number("invisibleTime").ok_or(missing.clone())?,
        revive_queue: number("reviveQid").and_then(|id| u32::try_from(id).ok()).ok_or(missing)?,
        ..old.clone()
    })
}

/// Success, or the code.
///
/// # Errors
/// [`MqError::Code`].
pub fn accepted(answer: &Frame) -> Result<(), MqError> {
    match answer.code {
        code::SUCCESS => Ok(()),
        code => Err(MqError::Code { code, remark: answer.remark.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn handle(start: u64, offset: u64, queue: u32) -> Handle {
        let topic: Rc<str> = "topic".into();
        Handle::parse(&format!("{start} 1796099740348 20000 1 0 broker-a {queue} {offset}"), &topic).unwrap()
    }

    #[test]
    fn handles_of_a_segment_become_one_bit_set() {
        let handles = [handle(0, 2, 2), handle(0, 0, 2), handle(0, 1, 2), handle(5, 14, 3), handle(5, 5, 3)];
        let refs: Vec<&Handle> = handles.iter().collect();
        let body: serde_json::Value = serde_json::from_slice(&request("group", "broker-a", &refs).body).unwrap();
        let entry = |start: u64, queue: u32, bits: &str| serde_json::json!({"c":"group","t":"topic","r":"0","so":start,"q":queue,"rq":1,"pt":1796099740348_u64,"it":20000,"b":bits});
        assert_eq!(
            body,
            serde_json::json!({"brokerName":"broker-a","acks":[entry(0, 2, "Bw=="), entry(5, 3, "AQI=")]})
        );
    }
}

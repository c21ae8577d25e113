//! Where a topic lives.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::code;
use super::frame::Request;

/// Bits of a queue's permissions.
const READ: u32 = 4;
const WRITE: u32 = 2;

/// A topic's brokers and queues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Route {
    /// Brokers by name.
    #[serde(rename = "brokerDatas", default)]
    pub brokers: Vec<Broker>,
    /// Queues by broker.
    #[serde(rename = "queueDatas", default)]
    pub queues: Vec<Queues>,
}

/// A broker set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Broker {
    /// Its name.
    #[serde(rename = "brokerName")]
    pub name: String,
    /// `host:port` by broker id; 0 is the master.
    #[serde(rename = "brokerAddrs", default)]
    pub addrs: BTreeMap<String, String>,
}

/// What a broker holds of the topic.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Queues {
    /// The broker.
    #[serde(rename = "brokerName")]
    pub broker: String,
    /// Queues to read, ids from 0.
    #[serde(rename = "readQueueNums")]
    pub read: u32,
    /// Queues to write, ids from 0.
    #[serde(rename = "writeQueueNums")]
    pub write: u32,
    /// Permission bits.
    pub perm: u32,
}

/// A queue of a broker that can be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The broker's name.
    pub broker: String,
    /// Its master's `host:port`.
    pub addr: String,
    /// The queue.
    pub queue: u32,
}

/// Asks a name server for a topic.
pub fn request(topic: &str) -> Request {
    let ext = vec![("topic", topic.to_owned()), ("acceptStandardJsonOnly", "true".to_owned())];
    Request::new(code::GET_ROUTE, ext)
}

impl Route {
    /// Reads the answer's body; older name servers leave the broker ids unquoted.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        serde_json::from_str(text).or_else(|_| serde_json::from_str(&quote_keys(text))).ok()
    }

    /// The master of a broker. A set without one takes nothing now.
    pub fn master(&self, broker: &str) -> Option<&str> {
        self.brokers.iter().find(|known| known.name == broker)?.addrs.get("0").map(String::as_str)
    }

    /// Every queue that takes messages.
    pub fn writable(&self) -> Vec<Place> {
        let usable = self.queues.iter().filter(|queues| queues.perm & WRITE != 0);
        usable.flat_map(|queues| self.places(&queues.broker, queues.write)).collect()
    }

    /// Every broker that gives messages, as one place with queue 0.
    pub fn readable(&self) -> Vec<Place> {
        let usable = self.queues.iter().filter(|queues| queues.perm & READ != 0 && queues.read > 0);
        usable.flat_map(|queues| self.places(&queues.broker, 1)).collect()
    }

    /// Every queue that gives messages.
    pub fn readable_queues(&self) -> Vec<Place> {
        let usable = self.queues.iter().filter(|queues| queues.perm & READ != 0);
        usable.flat_map(|queues| self.places(&queues.broker, queues.read)).collect()
    }

    fn places(&self, broker: &str, count: u32) -> Vec<Place> {
        let Some(addr) = self.master(broker) else { return Vec::new() };
        (0..count).map(|queue| Place { broker: broker.to_owned(), addr: addr.to_owned(), queue }).collect()
    }
}

/// Puts quotes around bare integer keys (`{0:"..."}`), outside strings.
fn quote_keys(text: &str) -> String {
    let (mut out, mut in_string, mut escaped) = (String::with_capacity(text.len() + 16), false, false);
    let mut rest = text;
    while let Some(at) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if !in_string && digits > 0 {
            let (number, after) = rest.split_at(digits);
            let is_key = after.starts_with(':') && out.ends_with(['{', ',']);
            out.push_str(&if is_key { format!("\"{number}\"") } else { number.to_owned() });
            rest = after;
            continue;
        }
        match at {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
        out.push(at);
        rest = &rest[at.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_keys_are_quoted_and_nothing_else() {
        assert_eq!(quote_keys(r#"{0:"a,1:\"{2:",12:{"k":3}}"#), r#"{"0":"a,1:\"{2:","12":{"k":3}}"#);
    }

    #[test]
    fn only_masters_and_permitted_queues_are_used() {
        let body = br#"{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"h:1","1":"h:2"}},{"brokerName":"b","brokerAddrs":{"1":"h:3"}}],
            "queueDatas":[{"brokerName":"a","perm":2,"readQueueNums":4,"writeQueueNums":2},{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1}]}"#;
        let route = Route::parse(body).unwrap();
        let queues: Vec<u32> = route.writable().iter().map(|place| place.queue).collect();
        assert_eq!(queues, [0, 1]);
        assert_eq!(route.readable(), []);
    }
}

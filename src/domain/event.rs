//! The order event: what travels through the topic (spec section 4, reference [8.3]).

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;

use super::{ORDER_ID_MAX, OrderId, Sku, UserId, Uuid, format_rfc3339_micros, parse_rfc3339_micros};

/// The version this build writes and reads. Older readers' unknown fields are ignored; a breaking change raises it.
pub const SCHEMA_VERSION: u32 = 1;
/// The tag of the only kind of message in the topic.
pub const EVENT_TAG: &str = "ORDER_CREATE_REQUESTED";
/// The largest event that is read, in bytes. Ours are below 1.3 KiB with the longest trace state.
pub const EVENT_BYTES_MAX: usize = 16 * 1024;
/// The longest `tracestate` that is carried on, in bytes (W3C Trace Context section 3.3.1.5).
const TRACESTATE_BYTES_MAX: usize = 512;

/// The W3C trace context of the request that caused an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceContext {
    /// `00-<trace id>-<parent id>-<flags>`, or empty.
    pub traceparent: String,
    /// Vendor state, or empty.
    pub tracestate: String,
}

/// A request to make one order out of one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderCreateEvent {
    /// The idempotency key of consumption, together with the consumer group. Kept on every resend.
    pub message_id: Uuid,
    /// The buyer's own idempotency key.
    pub request_id: Uuid,
    /// The reservation that holds the unit.
    pub reservation_id: Uuid,
    /// What is bought.
    pub sku: Sku,
    /// Who buys.
    pub user_id: UserId,
    /// The id the order will have.
    pub order_id: OrderId,
    /// When the reservation was made, Unix microseconds.
    pub created_at_micros: u64,
    /// How often the application sent it again. Not the broker's delivery attempt.
    pub retry_count: u32,
    /// The trace of the request.
    pub trace: TraceContext,
}

/// Why bytes from the topic are not an order event. The message goes to quarantine under [`EventError::reason`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Longer than [`EVENT_BYTES_MAX`].
    #[error("the event is {0} bytes long, more than the {EVENT_BYTES_MAX} allowed")]
    TooLarge(usize),
    /// Not one JSON object with the fields of the schema.
    #[error("the event is not valid JSON of the schema: {0}")]
    Malformed(String),
    /// A schema version this build does not read.
    #[error("schema_version {0} is not supported, only {SCHEMA_VERSION}")]
    UnsupportedVersion(i64),
    /// A field breaks its rule.
    #[error("the event's {0} is not valid")]
    InvalidField(&'static str),
    /// The message key is not `activity:sku:reservation_id` of the body.
    #[error("the message key does not belong to the body")]
    KeyMismatch,
    /// The broker tag is not [`EVENT_TAG`].
    #[error("the message tag is not {EVENT_TAG}")]
    TagMismatch,
}

impl EventError {
    /// The reason code in the quarantine table and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "TOO_LARGE",
            Self::Malformed(_) => "MALFORMED",
            Self::UnsupportedVersion(_) => "UNSUPPORTED_SCHEMA_VERSION",
            Self::InvalidField(_) => "INVALID_FIELD",
            Self::KeyMismatch => "KEY_MISMATCH",
            Self::TagMismatch => "TAG_MISMATCH",
        }
    }
}

/// The event as JSON names it; every field optional so that a missing one is reported by name.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    request_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reservation_id: Option<Cow<'a, str>>,
    activity_id: Option<i64>,
    sku_id: Option<i64>,
    user_id: Option<i64>,
    order_id: Option<i64>,
    schema_version: Option<i64>,
    #[serde(borrow)]
    created_at: Option<Cow<'a, str>>,
    retry_count: Option<u32>,
    trace: Option<WireTrace>,
}

#[derive(Deserialize, Default)]
struct WireTrace {
    traceparent: Option<String>,
    tracestate: Option<String>,
}

fn uuid_field(text: Option<&Cow<'_, str>>, name: &'static str) -> Result<Uuid, EventError> {
    text.and_then(|text| Uuid::parse(text.as_bytes())).ok_or(EventError::InvalidField(name))
}

impl OrderCreateEvent {
    /// The message key, `activity:sku:reservation_id`.
    pub fn message_key(&self) -> String {
        format!("{}:{}", self.sku, self.reservation_id)
    }

    /// Appends the JSON form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let created_at = format_rfc3339_micros(self.created_at_micros);
        let created_at = std::str::from_utf8(&created_at).unwrap_or_default();
        // Writing to a Vec cannot fail.
        let _ = write!(
            out,
            concat!(
                r#"{{"message_id":"{}","message_key":"{}:{}","request_id":"{}","reservation_id":"{}","#,
                r#""activity_id":{},"sku_id":{},"user_id":{},"order_id":{},"schema_version":{},"#,
                r#""created_at":"{}","retry_count":{},"trace":{{"traceparent":"#,
            ),
            self.message_id,
            self.sku,
            self.reservation_id,
            self.request_id,
            self.reservation_id,
            self.sku.activity,
            self.sku.sku,
            self.user_id,
            self.order_id,
            SCHEMA_VERSION,
            created_at,
            self.retry_count,
        );
        // The trace comes from outside: it is the only part that needs escaping.
        let _ = serde_json::to_writer(&mut *out, &self.trace.traceparent);
        out.extend_from_slice(br#","tracestate":"#);
        let _ = serde_json::to_writer(&mut *out, &self.trace.tracestate);
        out.extend_from_slice(b"}}");
    }

    /// Reads and checks an event. `tag` and `key` are what the broker carries beside the body; a broker that gives
    /// no key is taken at the body's word.
    ///
    /// # Errors
    /// [`EventError`] says which rule is broken; [`UnitHolder::salvage`] finds the unit such a message may hold.
    pub fn decode(body: &[u8], tag: &str, key: Option<&str>) -> Result<Self, EventError> {
        let wire = parse_wire(body)?;
        match wire.schema_version {
            Some(version) if version == i64::from(SCHEMA_VERSION) => {}
            Some(version) => return Err(EventError::UnsupportedVersion(version)),
            None => return Err(EventError::InvalidField("schema_version")),
        }
        if tag != EVENT_TAG {
            return Err(EventError::TagMismatch);
        }
        let event = wire.to_event()?;
        let expected = event.message_key();
        if wire.message_key.as_deref() != Some(expected.as_str()) || key.is_some_and(|key| key != expected) {
            return Err(EventError::KeyMismatch);
        }
        Ok(event)
    }
}

fn parse_wire(body: &[u8]) -> Result<Wire<'_>, EventError> {
    if body.len() > EVENT_BYTES_MAX {
        return Err(EventError::TooLarge(body.len()));
    }
    serde_json::from_slice(body).map_err(|error| EventError::Malformed(error.to_string()))
}

impl Wire<'_> {
    fn sku(&self) -> Result<Sku, EventError> {
        Sku::new(self.activity_id.unwrap_or(0), self.sku_id.unwrap_or(0))
            .ok_or(EventError::InvalidField("activity_id or sku_id"))
    }

    fn user_id(&self) -> Result<UserId, EventError> {
        self.user_id.and_then(UserId::new).ok_or(EventError::InvalidField("user_id"))
    }

    fn to_event(&self) -> Result<OrderCreateEvent, EventError> {
        let order_id = self.order_id.filter(|&id| id <= ORDER_ID_MAX).and_then(OrderId::new);
        let created_at = self.created_at.as_ref().and_then(|text| parse_rfc3339_micros(text.as_bytes()));
        let trace = self.trace.as_ref();
        let tracestate = trace.and_then(|trace| trace.tracestate.clone()).unwrap_or_default();
        Ok(OrderCreateEvent {
            message_id: uuid_field(self.message_id.as_ref(), "message_id")?,
            request_id: uuid_field(self.request_id.as_ref(), "request_id")?,
            reservation_id: uuid_field(self.reservation_id.as_ref(), "reservation_id")?,
            sku: self.sku()?,
            user_id: self.user_id()?,
            order_id: order_id.ok_or(EventError::InvalidField("order_id"))?,
            created_at_micros: created_at.ok_or(EventError::InvalidField("created_at"))?,
            retry_count: self.retry_count.unwrap_or(0),
            trace: TraceContext {
                traceparent: trace.and_then(|trace| trace.traceparent.clone()).unwrap_or_default(),
                tracestate: if tracestate.len() > TRACESTATE_BYTES_MAX { String::new() } else { tracestate },
            },
        })
    }
}

/// The unit that a message holds, as far as its bytes tell: enough to give the unit back when the message cannot be
/// ordered (spec section 12: quarantine of a message that holds a unit writes its release in the same transaction).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitHolder {
    /// Whose stock the unit came from.
    pub sku: Sku,
    /// The reservation that holds it.
    pub reservation_id: Uuid,
    /// The buyer's key.
    pub request_id: Uuid,
    /// The message, where it is known.
    pub message_id: Uuid,
    /// The buyer.
    pub user_id: UserId,
}

impl From<&OrderCreateEvent> for UnitHolder {
    fn from(event: &OrderCreateEvent) -> Self {
        Self {
            sku: event.sku,
            reservation_id: event.reservation_id,
            request_id: event.request_id,
            message_id: event.message_id,
            user_id: event.user_id,
        }
    }
}

impl UnitHolder {
    /// What an event that was refused still tells. `None` when any of the ids cannot be read, which the quarantine
    /// row then leaves to a person.
    pub fn salvage(body: &[u8]) -> Option<Self> {
        let wire = parse_wire(body).ok()?;
        Some(Self {
            sku: wire.sku().ok()?,
            reservation_id: uuid_field(wire.reservation_id.as_ref(), "reservation_id").ok()?,
            request_id: uuid_field(wire.request_id.as_ref(), "request_id").ok()?,
            message_id: uuid_field(wire.message_id.as_ref(), "message_id").ok()?,
            user_id: wire.user_id().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> OrderCreateEvent {
        OrderCreateEvent {
            message_id: Uuid::parse(b"019f2db9-8af0-7a21-88e1-2df337730001").unwrap(),
            request_id: Uuid::parse(b"019f2db9-8af0-7a21-88e1-2df337730003").unwrap(),
            reservation_id: Uuid::parse(b"019f2db9-8af0-7a21-88e1-2df337730002").unwrap(),
            sku: Sku::new(1001, 2001).unwrap(),
            user_id: UserId::new(3001).unwrap(),
            order_id: OrderId::new(900_000_000_000_001).unwrap(),
            created_at_micros: 1_782_388_800_123_456,
            retry_count: 0,
            trace: TraceContext {
                traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
                tracestate: String::new(),
            },
        }
    }

    const KEY: &str = "1001:2001:019f2db9-8af0-7a21-88e1-2df337730002";

    fn encoded(event: &OrderCreateEvent) -> Vec<u8> {
        let mut body = Vec::new();
        event.encode(&mut body);
        body
    }

    #[test]
    fn the_json_is_the_one_of_the_reference() {
        let expected = concat!(
            r#"{"message_id":"019f2db9-8af0-7a21-88e1-2df337730001","#,
            r#""message_key":"1001:2001:019f2db9-8af0-7a21-88e1-2df337730002","#,
            r#""request_id":"019f2db9-8af0-7a21-88e1-2df337730003","#,
            r#""reservation_id":"019f2db9-8af0-7a21-88e1-2df337730002","#,
            r#""activity_id":1001,"sku_id":2001,"user_id":3001,"order_id":900000000000001,"#,
            r#""schema_version":1,"created_at":"2026-06-25T12:00:00.123456Z","retry_count":0,"#,
            r#""trace":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","#,
            r#""tracestate":""}}"#,
        );
        assert_eq!(String::from_utf8(encoded(&event())).unwrap(), expected);
        assert_eq!(OrderCreateEvent::decode(expected.as_bytes(), EVENT_TAG, Some(KEY)), Ok(event()));
    }

    fn change(from: &str, to: &str) -> Vec<u8> {
        let text = String::from_utf8(encoded(&event())).unwrap();
        assert!(text.contains(from));
        text.replacen(from, to, 1).into_bytes()
    }

    #[test]
    fn older_and_newer_writers_of_version_1_are_read() {
        let without_trace = change(
            r#","trace":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":""}"#,
            "",
        );
        assert_eq!(OrderCreateEvent::decode(&without_trace, EVENT_TAG, None).unwrap().trace, TraceContext::default());
        let with_more = change(r#"{"message_id""#, r#"{"channel":{"a":[1,2]},"message_id""#);
        assert_eq!(OrderCreateEvent::decode(&with_more, EVENT_TAG, Some(KEY)), Ok(event()));
    }

    #[test]
    fn each_broken_rule_has_its_reason_and_the_unit_is_still_found() {
        let cases = [
            (change(r#""schema_version":1"#, r#""schema_version":2"#), "UNSUPPORTED_SCHEMA_VERSION", true),
            (change(r#""schema_version":1,"#, ""), "INVALID_FIELD", true),
            (change(r#""order_id":900000000000001"#, r#""order_id":9007199254740992"#), "INVALID_FIELD", true),
            (change(r#""order_id":900000000000001"#, r#""order_id":0"#), "INVALID_FIELD", true),
            (change(r#""user_id":3001"#, r#""user_id":-1"#), "INVALID_FIELD", false),
            (change(r#""created_at":"2026"#, r#""created_at":"yesterday 2026"#), "INVALID_FIELD", true),
            (change(r#""message_key":"1001"#, r#""message_key":"1002"#), "KEY_MISMATCH", true),
            (change(r#""user_id":3001"#, r#""user_id":"3001""#), "MALFORMED", false),
            (b"not json".to_vec(), "MALFORMED", false),
            (vec![b' '; EVENT_BYTES_MAX + 1], "TOO_LARGE", false),
        ];
        for (body, reason, holds_unit) in cases {
            let error = OrderCreateEvent::decode(&body, EVENT_TAG, Some(KEY)).unwrap_err();
            assert_eq!(error.reason(), reason, "{error}");
            assert_eq!(UnitHolder::salvage(&body).is_some(), holds_unit, "{error}");
        }
        let body = encoded(&event());
        assert_eq!(OrderCreateEvent::decode(&body, "OTHER", Some(KEY)), Err(EventError::TagMismatch));
        assert_eq!(OrderCreateEvent::decode(&body, EVENT_TAG, Some("1:2:x")), Err(EventError::KeyMismatch));
    }

    proptest! {
        #[test]
        fn round_trips(
            ids in any::<[[u8; 16]; 3]>(), numbers in (1i64.., 1i64.., 1i64.., 1..=ORDER_ID_MAX),
            created_at_micros in 0u64..253_402_300_799_999_999, retry_count in any::<u32>(),
            traceparent in ".{0,60}", tracestate in "[ -~]{0,200}",
        ) {
            let event = OrderCreateEvent {
                message_id: Uuid(ids[0]), request_id: Uuid(ids[1]), reservation_id: Uuid(ids[2]),
                sku: Sku::new(numbers.0, numbers.1).unwrap(), user_id: UserId::new(numbers.2).unwrap(),
                order_id: OrderId::new(numbers.3).unwrap(), created_at_micros, retry_count,
                trace: TraceContext { traceparent, tracestate },
            };
            let body = encoded(&event);
            prop_assert_eq!(OrderCreateEvent::decode(&body, EVENT_TAG, Some(&event.message_key())), Ok(event));
        }

        #[test]
        fn garbage_is_refused_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(OrderCreateEvent::decode(&body, EVENT_TAG, None).is_err());
        }
    }
}

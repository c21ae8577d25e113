//! One event as one line of JSON.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::domain::format_rfc3339_micros;

/// The fields of an event, by name.
#[derive(Default)]
pub(super) struct Fields(pub(super) Map<String, Value>);

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Writes events with the fields that every line has.
pub(super) struct JsonLine {
    service: &'static str,
    instance: String,
}

impl JsonLine {
    pub(super) fn new(service: &'static str, instance: &str) -> Self {
        Self { service, instance: instance.to_owned() }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Fields::default();
        let at = format_rfc3339_micros(shards::unix_micros());
        let mut put = |name: &str, value: &str| line.0.insert(name.to_owned(), value.into());
        put("timestamp", &String::from_utf8_lossy(&at));
        put("level", event.metadata().level().as_str());
        put("service", self.service);
        put("instance", &self.instance);
        put("target", event.metadata().target());
        event.record(&mut line);
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

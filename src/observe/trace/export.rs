//! The thread that sends spans to an OpenTelemetry collector (OTLP over HTTP, protobuf), by the crates of the OpenTelemetry project.
//!
//! Ids, sampling and limits are ours and were decided by the shards; the crates know the protocol, its retries and `OTEL_EXPORTER_OTLP_HEADERS`.
//! A collector that is down costs spans, never an order: the channel fills, and shards count what they drop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime};

use futures_executor::block_on;
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};

use super::{Kind, SpanRecord, TracerSeed, Value};
use crate::config::Trace as Settings;
use crate::trace_context::TraceContext;

/// Spans that may wait for the thread.
const WAITING_MAX: usize = 8_192;
/// Spans in one request.
const BATCH_MAX: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// Longest request, and longest time for one batch with its retries.
const EXPORT: Duration = Duration::from_secs(3);
/// How long a stop waits for what is still to be sent.
const STOP: Duration = Duration::from_secs(5);
/// Most of a collector's answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Spans that no collector took, since the start of the process.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Spans that no collector took, since the start of the process.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The running export; ends by itself when the last tracer is gone.
#[derive(Debug)]
pub struct Export(Option<Receiver<()>>);

impl Export {
    /// Waits until everything is sent, for five seconds at most. To be called when no tracer is left.
    pub fn finish(self) {
        if let Some(ended) = self.0
            && ended.recv_timeout(STOP) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!("spans were left behind: the collector did not take them in time");
        }
    }
}

/// Starts the export to `settings.otlp`; with none named, nothing is recorded.
///
/// # Errors
/// What is wrong with the address, or that there is no thread.
pub fn start(settings: &Settings, role: &'static str, instance: &str) -> Result<(TracerSeed, Export), String> {
    if settings.otlp.is_empty() {
        return Ok((TracerSeed::default(), Export(None)));
    }
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new())
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(traces_url(&settings.otlp))
        .with_timeout(EXPORT)
        .build()
        .map_err(|error| format!("trace.otlp = {}: {error}", settings.otlp))?;
    let resource = Resource::builder_empty().with_attributes([
        KeyValue::new("service.name", "seckill"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance.to_owned()),
        KeyValue::new("seckill.role", role),
    ]);
    exporter.set_resource(&resource.build());
    let (sender, spans) = sync_channel(WAITING_MAX);
    let (end, ended) = sync_channel(1);
    let work = move || {
        run(&exporter, &spans);
        // Whoever stops the process may not wait any more.
        let _ = end.try_send(());
    };
    let thread = std::thread::Builder::new().name("spans".to_owned()).spawn(work);
    thread.map_err(|error| format!("no thread for spans: {error}"))?;
    Ok((TracerSeed { settings: Some(settings.clone()), sender: Some(sender) }, Export(Some(ended))))
}

/// The address of traces below the collector's (OTLP/HTTP, "endpoint URLs"): one that names a path is taken as it is.
fn traces_url(otlp: &str) -> String {
    let has_path = otlp.split_once("://").is_some_and(|(_, rest)| rest.trim_end_matches('/').contains('/'));
    if has_path { otlp.to_owned() } else { format!("{}/v1/traces", otlp.trim_end_matches('/')) }
}

fn run(exporter: &SpanExporter, spans: &Receiver<SpanRecord>) {
    let scope = InstrumentationScope::builder("seckill").with_version(env!("CARGO_PKG_VERSION")).build();
    let mut failing = false;
    while let Some(batch) = next_batch(spans) {
        let count = batch.len();
        let batch = batch.into_iter().map(|record| span_data(record, &scope)).collect();
        match block_on(exporter.export(batch)) {
            Ok(()) if failing => {
                tracing::info!(lost = lost(), "the collector takes spans again");
                failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                LOST.fetch_add(count as u64, Ordering::Relaxed);
                // Said once: the counter says how many.
                if !failing {
                    tracing::warn!(%error, "the collector does not take spans");
                }
                failing = true;
            }
        }
    }
}

/// Waits for a span and gathers what comes soon after it. `None` when no more will come.
fn next_batch(spans: &Receiver<SpanRecord>) -> Option<Vec<SpanRecord>> {
    let mut batch = vec![spans.recv().ok()?];
    let end = shards::now() + GATHER;
    while batch.len() < BATCH_MAX {
        match spans.recv_timeout(end.saturating_duration_since(shards::now())) {
            Ok(span) => batch.push(span),
            Err(_) => break,
        }
    }
    Some(batch)
}

fn span_context(context: &TraceContext, remote: bool) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.flags),
        remote,
        TraceState::NONE,
    )
}

fn span_data(record: SpanRecord, scope: &InstrumentationScope) -> SpanData {
    let mut links = SpanLinks::default();
    links.links.extend(record.link.map(|from| Link::with_context(span_context(&from, true))));
    let attributes = record.attributes.into_iter().map(|(name, value)| KeyValue::new(name, attribute(value)));
    SpanData {
        span_context: span_context(&record.context, false),
        parent_span_id: SpanId::from_bytes(record.parent.unwrap_or_default()),
        parent_span_is_remote: record.remote_parent,
        span_kind: match record.step.kind() {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
            Kind::Producer => SpanKind::Producer,
            Kind::Consumer => SpanKind::Consumer,
            Kind::Internal => SpanKind::Internal,
        },
        name: record.step.name().into(),
        start_time: SystemTime::UNIX_EPOCH + Duration::from_nanos(record.start_ns),
        end_time: SystemTime::UNIX_EPOCH + Duration::from_nanos(record.end_ns),
        attributes: attributes.collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status: record.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope.clone(),
    }
}

fn attribute(value: Value) -> opentelemetry::Value {
    match value {
        Value::Word(word) => word.into(),
        Value::Text(text) => text.into(),
        Value::Number(number) => number.into(),
        Value::Id(id) => id.to_string().into(),
    }
}

/// HTTP for the exporter: blocking, as it runs on a thread of its own.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Self {
        // A status is the exporter's to judge; a collector is no website, so nothing is followed elsewhere.
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(EXPORT))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Self(config.into())
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let (parts, mut body) = self.0.run(Request::from_parts(parts, &body[..]))?.into_parts();
        let answer = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, answer.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_path_gets_that_of_traces() {
        for otlp in ["http://c:4318", "http://c:4318/"] {
            assert_eq!(traces_url(otlp), "http://c:4318/v1/traces");
        }
        assert_eq!(traces_url("https://c/otlp/v1/traces"), "https://c/otlp/v1/traces");
    }

    #[test]
    fn no_address_no_thread() {
        let settings = Settings { otlp: String::new(), sample: 1.0, limit_per_s: 1 };
        let (seed, export) = start(&settings, "api", "here").unwrap();
        assert!(seed.sender.is_none() && export.0.is_none());
        export.finish();
    }
}

//! The admin listener: health, readiness, metrics, the dashboard; in embedded mode also the sales. Loopback by default, never the
//! public listener.
//!
//! ```text
//! GET /                  the dashboard; its page holds no figures and is shown to anybody, its figures ask for the token
//! GET /healthz /readyz   for probes, without a token
//! GET /metrics           OpenMetrics
//! GET /debug/overview    what the dashboard shows, as JSON
//! GET /debug/shards      each shard at this moment
//! GET /debug/heap        what the allocator holds, and what each shard has asked of it
//! GET /debug/profile     where the CPU time goes: ?seconds=10&hz=99&format=svg|pprof
//! ```

mod activities;
mod profile;
mod sales;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use shards::mailbox;
use shards::net::TcpListener;
use shards::sync::Gate;

use super::control::Overview;
use crate::embedded::lane::Message;
use crate::embedded::operator;
use crate::http::{Answered, ClientGone, ErrorIds, Handler, HttpConfig, Method, Observer, Phase, Request, Responder};
use crate::observe::text::{openmetrics, process_rows};
use crate::observe::{allocator, log, summary};
use crate::sale::Sales;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

pub(super) use sales::sales;

/// The way to the book of an embedded process, until the stop.
#[derive(Clone)]
pub(super) struct Desk(Rc<RefCell<Option<mailbox::Sender<Message>>>>);

impl Desk {
    pub(super) fn new(owner: Option<mailbox::Sender<Message>>) -> Self {
        Self(Rc::new(RefCell::new(owner)))
    }

    pub(super) fn close(&self) {
        drop(self.0.take());
    }
}

struct Admin {
    overview: Overview,
    desk: Desk,
    sales: Option<Sales>,
    /// Asked for everywhere but for health and readiness; empty: nobody is asked.
    token: String,
}

impl Admin {
    /// What the dashboard shows.
    async fn figures(&self) -> serde_json::Value {
        let at_ms = shards::unix_micros() / 1_000;
        let metrics = self.overview.metrics().await;
        let mut figures = summary::summary(&metrics);
        let owner = self.desk.0.borrow().clone();
        let sales = sales::shown(self.sales.as_ref(), owner).await;
        let head = serde_json::json!({
            "at_ms": at_ms, "role": self.overview.role().name(), "instance": self.overview.instance(),
            "version": env!("CARGO_PKG_VERSION"), "embedded": self.sales.is_none(),
            "not_ready": self.overview.why_not(&metrics), "sales": sales, "anomalies": log::recent(),
        });
        if let (Some(figures), serde_json::Value::Object(head)) = (figures.as_object_mut(), head) {
            figures.extend(head);
        }
        figures
    }

    /// What the allocator holds, and what each shard has asked of it so far.
    async fn heap(&self) -> serde_json::Value {
        let shards: Vec<_> = self.overview.metrics().await.iter().map(summary::allocated).collect();
        serde_json::json!({ "heap": allocator::heap(), "shards": shards })
    }

    async fn profile(&self, request: &Request<'_>, responder: Responder<'_>) -> Answered {
        let wish = match profile::Wish::parse(request.query()) {
            Ok(wish) => wish,
            Err(reason) => return responder.text(400, TEXT, format!("{reason}\n").as_bytes()),
        };
        match profile::take(wish).await {
            Ok(profile) => responder.text(200, wish.media_type(), &profile),
            Err(error @ profile::ProfileError::Busy) => responder.text(409, TEXT, format!("{error}\n").as_bytes()),
            Err(error) => responder.text(503, TEXT, format!("{error}\n").as_bytes()),
        }
    }

    fn lets_in(&self, request: &Request<'_>) -> bool {
        let given = request.authorization().one().and_then(|value| value.strip_prefix(b"Bearer "));
        self.token.is_empty() || given.is_some_and(|given| same(given, self.token.as_bytes()))
    }
}

/// Compares in a time that does not tell where the difference is.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other)) == 0
}

impl Handler for Admin {
    async fn handle(&self, request: &Request<'_>, _client: &ClientGone, responder: Responder<'_>) -> Answered {
        let ids = ErrorIds { request_id: None, trace_id: [0; 16] };
        let responder = responder.no_store();
        let path = request.path();
        if !matches!(path, "/" | "/healthz" | "/readyz") && !self.lets_in(request) {
            return responder.error(401, "UNAUTHENTICATED", &ids);
        }
        if let Some(rest) = path.strip_prefix(operator::PATH) {
            let owner = self.desk.0.borrow().clone();
            return match owner {
                Some(owner) => activities::handle(request, rest, &owner, responder, &ids).await,
                // With services, sales are made in PostgreSQL and Redis by the commands.
                None => responder.not_found(&ids),
            };
        }
        const PATHS: [&str; 8] = [
            "/",
            "/healthz",
            "/readyz",
            "/metrics",
            "/debug/overview",
            "/debug/shards",
            "/debug/heap",
            "/debug/profile",
        ];
        if !PATHS.contains(&path) {
            return responder.not_found(&ids);
        }
        if request.method() != Method::Get {
            return responder.method_not_allowed("GET", &ids);
        }
        match path {
            "/metrics" => {
                let text = openmetrics(&self.overview.metrics().await, &process_rows());
                responder.text(200, OPENMETRICS, text.as_bytes())
            }
            "/readyz" => match self.overview.why_not_ready().await {
                reasons if reasons.is_empty() => responder.text(200, TEXT, b"ready\n"),
                reasons => responder.text(503, TEXT, format!("not ready\n{}\n", reasons.join("\n")).as_bytes()),
            },
            "/debug/shards" => {
                let shards: Vec<_> = self.overview.metrics().await.iter().map(summary::shard).collect();
                responder.json(200, serde_json::json!({ "shards": shards }).to_string().as_bytes())
            }
            "/debug/heap" => responder.json(200, self.heap().await.to_string().as_bytes()),
            "/debug/profile" => self.profile(request, responder).await,
            "/debug/overview" => responder.json(200, self.figures().await.to_string().as_bytes()),
            "/" => responder.text(200, HTML, include_bytes!("admin/dashboard.html")),
            _ => responder.text(200, TEXT, b"ok\n"),
        }
    }
}

/// The admin port is not part of the sale's HTTP metrics.
struct Quiet;

impl Observer for Quiet {
    fn answered(&self, _route: usize, _status: u16, _elapsed: Duration) {}
    fn refused(&self, _status: u16, _elapsed: Duration) {}
    fn timed_out(&self, _phase: Phase) {}
    fn handler_panicked(&self) {
        tracing::error!("a handler of the admin listener panicked");
    }
    fn connection_opened(&self) {}
    fn connection_closed(&self) {}
    fn turned_away(&self) {}
    fn accept_failed(&self, error: &std::io::Error) {
        tracing::warn!(%error, "accept failed on the admin listener");
    }
}

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    overview: Overview,
    desk: Desk,
    sales: Option<Sales>,
    token: String,
    stop: Gate,
) {
    let mut config = HttpConfig { connections_max: 64, ..HttpConfig::default() };
    config.timeouts.idle = Duration::from_secs(30);
    crate::http::serve(listener, Rc::new(Admin { overview, desk, sales, token }), Rc::new(Quiet), config, stop).await;
}

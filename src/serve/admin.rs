//! The admin listener: health, readiness, metrics; in embedded mode also the sales. Loopback by default, never the public listener.

mod activities;

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

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

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
}

impl Handler for Admin {
    async fn handle(&self, request: &Request<'_>, _client: &ClientGone, responder: Responder<'_>) -> Answered {
        let ids = ErrorIds { request_id: None, trace_id: [0; 16] };
        let responder = responder.no_store();
        let path = request.path();
        if let Some(rest) = path.strip_prefix(operator::PATH) {
            let owner = self.desk.0.borrow().clone();
            return match owner {
                Some(owner) => activities::handle(request, rest, &owner, responder, &ids).await,
                // With services, sales are made in PostgreSQL and Redis by the commands.
                None => responder.not_found(&ids),
            };
        }
        if !matches!(path, "/healthz" | "/readyz" | "/metrics") {
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
            "/readyz" if self.overview.is_ready() => responder.text(200, TEXT, b"ready\n"),
            "/readyz" => responder.text(503, TEXT, b"not ready\n"),
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
pub(super) async fn serve(listener: TcpListener, overview: Overview, desk: Desk, stop: Gate) {
    let mut config = HttpConfig { connections_max: 64, ..HttpConfig::default() };
    config.timeouts.idle = Duration::from_secs(30);
    crate::http::serve(listener, Rc::new(Admin { overview, desk }), Rc::new(Quiet), config, stop).await;
}

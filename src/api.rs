//! The HTTP API: requests in, answers out; everything in between is `submit` and `query` (spec sections 1 and 6).

mod answers;
mod path;

use std::time::{Duration, Instant};

use shards::Admission;

use crate::config::Config;
use crate::domain::{Sku, UserId, Uuid};
use crate::http::{Answered, ClientGone, ErrorIds, Handler, Header, Method, Request, Responder};
use crate::identity::{HeaderValue, Identity};
use crate::observe::metrics::{Admitted, Metrics, Refusal as RefusedAdmission, Route};
use crate::observe::trace::{Span, Step, Tracer};
use crate::order_body::{self, BodyError};
use crate::ports::{EventBus, Reservations, ResultLookup};
use crate::query::{QueryCommand, QueryService};
use crate::submit::{Refusal, SubmitCommand, SubmitService};
use crate::trace_context::{Incoming, TraceContext, from_headers};
use path::Target;

/// Where orders are submitted.
pub const ORDERS_PATH: &str = "/v1/seckill/orders";

/// The handler of one shard. A role that it does not play has no service; its paths are unknown then.
pub struct Api<R, B, L> {
    identity: Identity,
    submit: Option<std::rc::Rc<SubmitService<R, B>>>,
    submit_admission: Admission,
    submit_deadline: Duration,
    query: Option<std::rc::Rc<QueryService<L>>>,
    query_admission: Admission,
    metrics: std::rc::Rc<Metrics>,
    tracer: Tracer,
}

impl<R, B, L> Api<R, B, L> {
    /// A handler over the services of the roles that this process plays.
    pub fn new(
        config: &Config,
        identity: Identity,
        submit: Option<std::rc::Rc<SubmitService<R, B>>>,
        query: Option<std::rc::Rc<QueryService<L>>>,
        metrics: std::rc::Rc<Metrics>,
    ) -> Self {
        let limit = |route: Admitted, plays: bool, most: usize| {
            metrics.admission_limit[route as usize].set(if plays {
                i64::try_from(most).unwrap_or(i64::MAX)
            } else {
                0
            });
        };
        limit(Admitted::Submit, submit.is_some(), config.submit.admission_max);
        limit(Admitted::Query, query.is_some(), config.query.admission_max);
        Self {
            identity,
            submit,
            submit_admission: Admission::new(config.submit.admission_max),
            submit_deadline: config.submit.deadline(),
            query,
            query_admission: Admission::new(config.query.admission_max),
            metrics,
            tracer: Tracer::off(),
        }
    }

    /// Records spans by `tracer`.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    /// The caller's trace where it is valid, else a new one; this request's own span in it.
    fn trace<'a>(&self, request: &Request<'a>) -> Incoming<'a> {
        let random: [u64; 3] = std::array::from_fn(|_| shards::random_u64());
        // Whether a caller's trace is recorded was its starter's decision.
        let sampled = self.tracer.samples(random[1]);
        from_headers(request.traceparent().one(), request.tracestate().one(), random, sampled)
    }
}

/// A header as identity sees it.
fn value(header: Header<'_>) -> HeaderValue<'_> {
    match header {
        Header::Missing => HeaderValue::Missing,
        Header::One(value) => HeaderValue::One(value),
        Header::Repeated => HeaderValue::Repeated,
    }
}

/// Notes what the caller was told.
fn ended(span: &Span, answered: Answered) -> Answered {
    span.note("http.response.status_code", || i64::from(answered.status()));
    if answered.status() >= 500 {
        span.fail("the answer is a server error");
    }
    answered
}

/// The buyer's key: one UUID in any case.
fn idempotency_key(request: &Request<'_>) -> Option<Uuid> {
    Uuid::parse(request.idempotency_key().one()?)
}

impl<R, B, L> Api<R, B, L>
where
    R: Reservations + 'static,
    B: EventBus + 'static,
    L: ResultLookup + 'static,
{
    fn user(&self, request: &Request<'_>) -> Result<UserId, Refusal> {
        self.identity.user(value(request.authorization()), value(request.user())).map_err(|_| Refusal::Unauthenticated)
    }

    /// Everything about a submit that needs no service.
    fn command(&self, request: &Request<'_>, trace: TraceContext, tracestate: &str) -> Result<SubmitCommand, Refusal> {
        let user_id = self.user(request)?;
        if !request.is_json() {
            return Err(Refusal::UnsupportedMediaType);
        }
        let body = order_body::decode(request.body()).map_err(|error| match error {
            BodyError::InvalidJson(_) => Refusal::InvalidJson,
            BodyError::InvalidArgument(_) => Refusal::InvalidArgument,
        })?;
        let sku = Sku::new(body.activity_id, body.sku_id).ok_or(Refusal::InvalidArgument)?;
        let request_id = idempotency_key(request).ok_or(Refusal::InvalidArgument)?;
        Ok(SubmitCommand { request_id, sku, user_id, trace, tracestate: tracestate.to_owned() })
    }

    async fn submit(
        &self,
        service: &SubmitService<R, B>,
        request: &Request<'_>,
        client: &ClientGone,
        responder: Responder<'_>,
    ) -> Answered {
        let responder = responder.route(Route::Submit as usize);
        let Incoming { context: trace, parent, tracestate } = self.trace(request);
        let ids = ErrorIds { request_id: idempotency_key(request).map(|id| id.0), trace_id: trace.trace_id };
        if request.method() != Method::Post {
            return responder.method_not_allowed("POST", &ids);
        }
        let span = self.tracer.span(Step::HttpSubmit, trace, parent).remote();
        let admission = span.child(Step::Admission);
        let Some(_permit) = self.submit_admission.try_acquire() else {
            self.metrics.admission_rejected[RefusedAdmission::Submit as usize].inc();
            admission.fail("no slot");
            return ended(&span, answers::refused(responder, Refusal::Overloaded, &ids));
        };
        let _in_hand = InHand::new(&self.metrics, Admitted::Submit);
        let deadline: Instant = shards::now() + self.submit_deadline;
        let command = match self.command(request, trace, tracestate) {
            Ok(command) => command,
            Err(refusal) => {
                admission.fail(refusal.status_and_code().1);
                return ended(&span, answers::refused(responder, refusal, &ids));
            }
        };
        drop(admission);
        let request_id = command.request_id;
        span.note("seckill.request_id", || request_id);
        let answer = service.submit(command, client.gate(), deadline).await;
        ended(&span, answers::submit(responder, request_id, answer, &ids))
    }

    async fn query(
        &self,
        service: &QueryService<L>,
        target: Target,
        request: &Request<'_>,
        client: &ClientGone,
        responder: Responder<'_>,
    ) -> Answered {
        let responder = responder.route(Route::Query as usize);
        let Incoming { context: trace, parent, .. } = self.trace(request);
        let ids = ErrorIds { request_id: Some(target.request_id.0), trace_id: trace.trace_id };
        if request.method() != Method::Get {
            return responder.method_not_allowed("GET", &ids);
        }
        let Some(_permit) = self.query_admission.try_acquire() else {
            self.metrics.admission_rejected[RefusedAdmission::Query as usize].inc();
            return answers::refused(responder, Refusal::Overloaded, &ids);
        };
        let _in_hand = InHand::new(&self.metrics, Admitted::Query);
        let span = self.tracer.span(Step::HttpQuery, trace, parent).remote();
        span.note("seckill.request_id", || target.request_id);
        let user_id = match self.user(request) {
            Ok(user_id) => user_id,
            Err(refusal) => return ended(&span, answers::refused(responder, refusal, &ids)),
        };
        let Some(wait) = path::wait(request.query()) else {
            return ended(&span, answers::refused(responder, Refusal::InvalidArgument, &ids));
        };
        let Target { sku, request_id } = target;
        let answer = service.query(QueryCommand { sku, request_id, user_id, wait }, client.gate()).await;
        ended(&span, answers::query(responder, request_id, answer, &ids))
    }
}

impl<R, B, L> Handler for Api<R, B, L>
where
    R: Reservations + 'static,
    B: EventBus + 'static,
    L: ResultLookup + 'static,
{
    async fn handle(&self, request: &Request<'_>, client: &ClientGone, responder: Responder<'_>) -> Answered {
        let path = request.path();
        if let (ORDERS_PATH, Some(service)) = (path, &self.submit) {
            return self.submit(service, request, client, responder).await;
        }
        if let (Some(target), Some(service)) = (path::target(path), &self.query) {
            return self.query(service, target, request, client, responder).await;
        }
        let responder = responder.route(Route::Unmatched as usize);
        let ids = ErrorIds { request_id: None, trace_id: self.trace(request).context.trace_id };
        responder.not_found(&ids)
    }
}

/// Counts a request as in hand until dropped.
struct InHand<'a>(&'a Metrics, Admitted);

impl<'a> InHand<'a> {
    fn new(metrics: &'a Metrics, route: Admitted) -> Self {
        metrics.http_inflight.add(1);
        metrics.admission_in_use[route as usize].add(1);
        Self(metrics, route)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.http_inflight.add(-1);
        self.0.admission_in_use[self.1 as usize].add(-1);
    }
}

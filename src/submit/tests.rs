//! The submit path over ports that tests script: the answer table, and what is left behind by those who stop waiting.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::*;
use crate::domain::OrderId;

/// A reservation book and a topic whose answers are scripted, with what they saw.
#[derive(Default)]
struct World {
    outcomes: RefCell<VecDeque<Result<ReserveOutcome, PortError>>>,
    reserve_time: Cell<Duration>,
    reserved: RefCell<Vec<ReserveRequest>>,
    publishes: RefCell<VecDeque<Result<(), PublishError>>>,
    published: RefCell<Vec<OrderCreateEvent>>,
    sent: RefCell<Vec<Uuid>>,
    pending: RefCell<Vec<Uuid>>,
    released: RefCell<Vec<Uuid>>,
    releasable: Cell<bool>,
    release_error: Cell<Option<PortError>>,
    arrived: Cell<bool>,
    order_ids: Cell<i64>,
}

#[derive(Clone, Default)]
struct Ports(Rc<World>);

impl Reservations for Ports {
    async fn reserve(&self, request: ReserveRequest, _deadline: Instant) -> Result<ReserveOutcome, PortError> {
        self.0.reserved.borrow_mut().push(request);
        shards::sleep(self.0.reserve_time.get()).await;
        self.0.outcomes.borrow_mut().pop_front().unwrap_or(Ok(ReserveOutcome::Created))
    }

    async fn next_order_id(&self, _deadline: Instant) -> Result<OrderId, PortError> {
        self.0.order_ids.set(self.0.order_ids.get() + 1);
        OrderId::new(self.0.order_ids.get()).ok_or(PortError::Internal)
    }

    fn mark_sent(&self, _sku: Sku, reservation_id: Uuid) {
        self.0.sent.borrow_mut().push(reservation_id);
    }

    async fn mark_pending(&self, _sku: Sku, reservation_id: Uuid, _deadline: Instant) -> Result<bool, PortError> {
        self.0.pending.borrow_mut().push(reservation_id);
        Ok(!self.0.arrived.get())
    }

    async fn release(
        &self,
        _sku: Sku,
        _user_id: UserId,
        reservation_id: Uuid,
        _deadline: Instant,
    ) -> Result<bool, PortError> {
        self.0.released.borrow_mut().push(reservation_id);
        self.0.release_error.get().map_or(Ok(self.0.releasable.get()), Err)
    }
}

impl EventBus for Ports {
    async fn publish(&self, event: OrderCreateEvent, _deadline: Instant) -> Result<(), PublishError> {
        self.0.published.borrow_mut().push(event);
        self.0.publishes.borrow_mut().pop_front().unwrap_or(Ok(()))
    }
}

fn command() -> SubmitCommand {
    SubmitCommand {
        request_id: Uuid([9; 16]),
        sku: Sku::new(1001, 2001).unwrap(),
        user_id: UserId::new(3001).unwrap(),
        trace: crate::trace_context::TraceContext { trace_id: [7; 16], span_id: [8; 8], flags: 1 },
        tracestate: "a=b".into(),
    }
}

fn service(ports: &Ports, on_send_failure: OnSendFailure) -> Rc<SubmitService<Ports, Ports>> {
    let mut settings = crate::config::load(&crate::config::Sources::default()).unwrap().submit;
    settings.on_send_failure = on_send_failure;
    let ports = Rc::new(ports.clone());
    Rc::new(SubmitService::new(ports.clone(), ports, settings, Rc::default(), Rc::new(Queue::new(8))))
}

async fn submit(service: &SubmitService<Ports, Ports>, command: SubmitCommand) -> SubmitAnswer {
    service.submit(command, &Gate::new(), shards::now() + Duration::from_millis(90)).await
}

fn answer_to(outcome: Result<ReserveOutcome, PortError>) -> (SubmitAnswer, Ports) {
    let ports = Ports::default();
    ports.0.outcomes.borrow_mut().push_back(outcome);
    let answer = shards::run(async { submit(&service(&ports, OnSendFailure::Recovery), command()).await });
    (answer, ports)
}

#[test]
fn a_win_is_published_marked_sent_and_answered_queued() {
    let (answer, ports) = answer_to(Ok(ReserveOutcome::Created));
    let reserved = ports.0.reserved.borrow()[0];
    let SubmitAnswer::Accepted { reservation_id, order_id, state } = answer else { panic!("{answer:?}") };
    assert_eq!((reservation_id, order_id, state), (reserved.reservation_id, reserved.order_id, "QUEUED"));
    let event = ports.0.published.borrow()[0].clone();
    assert_eq!((event.message_id, event.trace), (reserved.message_id, command().event_trace()));
    assert_eq!(ports.0.sent.take(), [reservation_id]);
}

#[test]
fn every_refusal_of_the_book_has_its_answer_and_publishes_nothing() {
    let own = Uuid([5; 16]);
    for (outcome, refusal) in [
        (Ok(ReserveOutcome::SoldOut), Refusal::SoldOut),
        (Ok(ReserveOutcome::SameUser { reservation_id: own }), Refusal::DuplicateOrder { reservation_id: own }),
        (Ok(ReserveOutcome::Unavailable), Refusal::ActivityUnavailable),
        (Ok(ReserveOutcome::Closed), Refusal::ActivityUnavailable),
        (Ok(ReserveOutcome::NotStarted), Refusal::NotStarted),
        (Ok(ReserveOutcome::Ended), Refusal::Ended),
        (Ok(ReserveOutcome::KeyReused), Refusal::KeyReused),
        (Err(PortError::Timeout), Refusal::Timeout),
        (Err(PortError::Unknown), Refusal::Timeout),
        (Err(PortError::Unavailable), Refusal::DependencyUnavailable),
        (Err(PortError::Overloaded), Refusal::Overloaded),
        (Err(PortError::Internal), Refusal::Internal),
    ] {
        let (answer, ports) = answer_to(outcome);
        assert_eq!(answer, SubmitAnswer::Refused(refusal), "{outcome:?}");
        assert!(ports.0.published.borrow().is_empty());
    }
}

fn repeated(state: ReservationState, age_ms: u64) -> ReserveOutcome {
    ReserveOutcome::SameRequest {
        reservation_id: Uuid([5; 16]),
        message_id: Uuid([6; 16]),
        order_id: OrderId::new(42).unwrap(),
        state,
        created_at_ms: shards::unix_micros() / 1_000 - age_ms,
    }
}

#[test]
fn a_repeated_request_gets_its_original_outcome_and_has_no_second_effect() {
    for (state, shown) in [
        (ReservationState::Reserved, "QUEUED"),
        (ReservationState::MqSent, "QUEUED"),
        (ReservationState::MqPending, "MQ_PENDING"),
        (ReservationState::Created, "CREATED"),
        (ReservationState::Rejected, "REJECTED"),
        (ReservationState::Released, "RELEASED"),
    ] {
        let (answer, ports) = answer_to(Ok(repeated(state, 10)));
        let expected =
            SubmitAnswer::Accepted { reservation_id: Uuid([5; 16]), order_id: OrderId::new(42).unwrap(), state: shown };
        assert_eq!(answer, expected);
        assert!(ports.0.published.borrow().is_empty(), "{state}");
    }
}

#[test]
fn a_repeated_request_heals_a_reservation_whose_message_never_left() {
    let ports = Ports::default();
    ports.0.outcomes.borrow_mut().push_back(Ok(repeated(ReservationState::Reserved, 60_000)));
    shards::run(async {
        let service = service(&ports, OnSendFailure::Recovery);
        submit(&service, command()).await;
        service.orphans.close();
        Rc::clone(&service).run_orphans().await;
    });
    let event = ports.0.published.borrow()[0].clone();
    assert_eq!((event.message_id, event.reservation_id), (Uuid([6; 16]), Uuid([5; 16])), "the original ids");
    assert_eq!(ports.0.sent.take(), [Uuid([5; 16])]);
}

#[test]
fn a_message_that_is_only_late_is_not_sent_twice_however_often_the_buyer_asks() {
    let ports = Ports::default();
    ports.0.arrived.set(true);
    shards::run(async {
        let service = service(&ports, OnSendFailure::Recovery);
        for _ in 0..20 {
            ports.0.outcomes.borrow_mut().push_back(Ok(repeated(ReservationState::Reserved, 10)));
            submit(&service, command()).await;
        }
        assert_eq!(service.orphans.len(), 1);
        service.orphans.close();
        Rc::clone(&service).run_orphans().await;
        assert!(service.suspects.borrow().is_empty());
    });
    assert_eq!(ports.0.pending.take(), [Uuid([5; 16])]);
    assert!(ports.0.published.borrow().is_empty());
}

#[test]
fn the_same_key_for_another_sku_is_refused_before_it_reserves() {
    let ports = Ports::default();
    shards::run(async {
        let service = service(&ports, OnSendFailure::Recovery);
        submit(&service, command()).await;
        let other = SubmitCommand { sku: Sku::new(1001, 2002).unwrap(), ..command() };
        assert_eq!(submit(&service, other).await, SubmitAnswer::Refused(Refusal::KeyReused));
    });
    assert_eq!(ports.0.reserved.borrow().len(), 1);
}

#[test]
fn a_send_that_fails_leaves_the_reservation_pending_and_is_sent_again_with_the_same_ids() {
    for error in [PublishError::Unknown, PublishError::NotStored] {
        let ports = Ports::default();
        ports.0.publishes.borrow_mut().push_back(Err(error));
        shards::run(async {
            let service = service(&ports, OnSendFailure::Recovery);
            let answer = submit(&service, command()).await;
            assert!(matches!(answer, SubmitAnswer::Accepted { state: "MQ_PENDING", .. }), "{answer:?}");
            service.orphans.close();
            Rc::clone(&service).run_orphans().await;
        });
        let published = ports.0.published.borrow();
        assert_eq!(published.len(), 2);
        assert_eq!(published[0], published[1]);
        assert_eq!(ports.0.pending.borrow().len(), 1);
    }
}

#[test]
fn strict_mode_releases_only_what_was_certainly_not_stored() {
    for (error, releases) in [(PublishError::NotStored, 1), (PublishError::Unknown, 0)] {
        let ports = Ports::default();
        ports.0.releasable.set(true);
        ports.0.publishes.borrow_mut().push_back(Err(error));
        let answer = shards::run(async { submit(&service(&ports, OnSendFailure::Strict), command()).await });
        assert_eq!(answer, SubmitAnswer::Refused(Refusal::DependencyUnavailable));
        assert_eq!((ports.0.released.borrow().len(), ports.0.pending.borrow().len()), (releases, 1 - releases));
    }
}

#[test]
fn a_message_is_not_sent_for_a_unit_that_may_have_been_released() {
    for (released, sends) in [(true, 1), (false, 2)] {
        let ports = Ports::default();
        ports.0.publishes.borrow_mut().push_back(Err(PublishError::NotStored));
        ports.0.release_error.set(Some(PortError::Unknown));
        // What `mark_pending` says of a reservation that is RELEASED: it is not open any more.
        ports.0.arrived.set(released);
        shards::run(async {
            let service = service(&ports, OnSendFailure::Strict);
            assert_eq!(submit(&service, command()).await, SubmitAnswer::Refused(Refusal::DependencyUnavailable));
            service.orphans.close();
            Rc::clone(&service).run_orphans().await;
        });
        assert_eq!(ports.0.published.borrow().len(), sends, "released: {released}");
    }
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let ports = Ports::default();
    ports.0.reserve_time.set(Duration::from_secs(5));
    let started = shards::now();
    shards::run(async {
        let service = service(&ports, OnSendFailure::Recovery);
        let client = Gate::new();
        client.close();
        let answer = service.submit(command(), &client, shards::now() + Duration::from_secs(9)).await;
        assert_eq!(answer, SubmitAnswer::Refused(Refusal::Timeout));
        assert_eq!(service.metrics.client_canceled.get(), 1);
    });
    assert!(shards::now() - started < Duration::from_secs(2));
}

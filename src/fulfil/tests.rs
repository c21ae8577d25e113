//! Fulfilment over ports that tests script: bounds, panics, what is acked and what is not.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::domain::{
    EVENT_TAG, OrderCreateEvent, OrderId, OrderOutcome, RejectReason, Sku, TraceContext, UserId, Uuid,
};
use crate::ports::{Delivery, FinalResult, OrderError, OrderMessage, PortError, QuarantineRow, ResultRow};

type Behaviour = Box<dyn Fn(&OrderCreateEvent) -> Result<OrderOutcome, OrderError>>;

/// A topic, an order store and a result board in memory, with what they saw.
#[derive(Default)]
struct World {
    topic: RefCell<VecDeque<Delivery<u64>>>,
    acked: RefCell<Vec<u64>>,
    ack_failures: Cell<u32>,
    overrun: Cell<usize>,
    batches: RefCell<Vec<usize>>,
    in_settle: Cell<usize>,
    in_settle_peak: Cell<usize>,
    quarantined: RefCell<Vec<QuarantineRow>>,
    quarantine_down: Cell<bool>,
    dead: RefCell<Vec<u64>>,
    projected: RefCell<HashMap<Uuid, FinalResult>>,
    attempts: RefCell<Vec<AttemptRow>>,
    extended: Cell<u32>,
    settle_time: Cell<Duration>,
    receives: Cell<usize>,
    probes: Cell<usize>,
    store_down: Cell<bool>,
}

#[derive(Clone)]
struct Ports(Rc<World>, Rc<Behaviour>);

impl MessageSource for Ports {
    type Handle = u64;

    async fn receive(&self, max: usize, _puller: usize) -> Result<Vec<Delivery<u64>>, PortError> {
        self.0.receives.set(self.0.receives.get() + 1);
        let more = max + self.0.overrun.get();
        let batch: Vec<_> = (0..more).map_while(|_| self.0.topic.borrow_mut().pop_front()).collect();
        let pause = if batch.is_empty() { 5 } else { 0 };
        shards::sleep(Duration::from_millis(pause)).await;
        Ok(batch)
    }

    async fn ack(&self, handles: &[u64], _deadline: Instant) -> Vec<Result<(), PortError>> {
        if self.0.ack_failures.get() > 0 {
            self.0.ack_failures.set(self.0.ack_failures.get() - 1);
            return handles.iter().map(|_| Err(PortError::Unavailable)).collect();
        }
        self.0.acked.borrow_mut().extend(handles);
        handles.iter().map(|_| Ok(())).collect()
    }

    async fn extend(&self, handle: &u64, _for_time: Duration) -> Result<u64, PortError> {
        self.0.extended.set(self.0.extended.get() + 1);
        Ok(handle + 1_000_000)
    }

    async fn dead_letter(&self, delivery: &Delivery<u64>, _deadline: Instant) -> Result<(), PortError> {
        self.0.dead.borrow_mut().push(delivery.handle);
        Ok(())
    }

    async fn lag(&self, _deadline: Instant) -> Result<u64, PortError> {
        Ok(self.0.topic.borrow().len() as u64)
    }
}

impl Orders for Ports {
    async fn settle(&self, events: &[OrderMessage<'_>], _: Instant) -> Vec<Result<OrderOutcome, OrderError>> {
        let world = &self.0;
        world.batches.borrow_mut().push(events.len());
        world.in_settle.set(world.in_settle.get() + events.len());
        world.in_settle_peak.set(world.in_settle_peak.get().max(world.in_settle.get()));
        shards::sleep(world.settle_time.get()).await;
        world.in_settle.set(world.in_settle.get() - events.len());
        events.iter().map(|message| (self.1)(message.event)).collect()
    }

    async fn probe(&self, _deadline: Instant) -> bool {
        self.0.probes.set(self.0.probes.get() + 1);
        !self.0.store_down.get()
    }

    async fn quarantine(&self, row: &QuarantineRow, _deadline: Instant) -> Result<(), PortError> {
        if self.0.quarantine_down.get() {
            return Err(PortError::Unavailable);
        }
        self.0.quarantined.borrow_mut().push(row.clone());
        Ok(())
    }

    async fn log_attempts(&self, rows: &[AttemptRow], _deadline: Instant) -> Result<(), PortError> {
        assert!(rows.len() <= 100, "spec section 5");
        self.0.attempts.borrow_mut().extend_from_slice(rows);
        Ok(())
    }
}

impl ResultBoard for Ports {
    fn project(&self, row: ResultRow) {
        self.0.projected.borrow_mut().insert(row.request_id, row.result);
    }
}

fn event(number: u64) -> OrderCreateEvent {
    let id = |kind: u8| {
        let mut bytes = [kind; 16];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Uuid(bytes)
    };
    OrderCreateEvent {
        message_id: id(1),
        request_id: id(2),
        reservation_id: id(3),
        sku: Sku::new(1, 1 + (number % 3) as i64).unwrap(),
        user_id: UserId::new(number as i64 + 1).unwrap(),
        order_id: OrderId::new(number as i64 + 1).unwrap(),
        created_at_micros: 1_000_000,
        retry_count: 0,
        trace: TraceContext::default(),
    }
}

fn delivery(number: u64, attempt: u32) -> Delivery<u64> {
    let event = event(number);
    let mut body = Vec::new();
    event.encode(&mut body);
    Delivery {
        body: body.into(),
        tag: EVENT_TAG.into(),
        key: Some(event.message_key()),
        broker_message_id: format!("broker-{number}"),
        attempt,
        handle: number,
    }
}

fn settings(workers: usize, queue_capacity: usize) -> Settings {
    let mut settings = crate::config::load(&crate::config::Sources::default()).unwrap().worker;
    settings.workers = workers;
    settings.queue_capacity = queue_capacity;
    settings
}

const LIMITS: FulfilLimits = FulfilLimits {
    invisible: Duration::from_secs(30),
    transaction: Duration::from_secs(5),
    deliveries_max: 8,
    drain: Duration::from_secs(5),
};

/// Runs a worker over `world` until `until` holds, then stops it. Returns its metrics and what it let go.
fn work(
    world: &Rc<World>,
    settings: Settings,
    limits: FulfilLimits,
    behaviour: impl Fn(&OrderCreateEvent) -> Result<OrderOutcome, OrderError> + 'static,
    until: impl Fn(&World) -> bool,
) -> (Rc<Metrics>, usize) {
    let metrics = Rc::new(Metrics::default());
    let ports = Ports(world.clone(), Rc::new(Box::new(behaviour)));
    let unfinished = shards::run(async {
        let fulfil = Fulfil::new(ports.clone(), ports.clone(), ports, settings, limits, metrics.clone(), Tracer::off());
        let running = shards::spawn(fulfil.clone().run());
        let give_up = shards::now() + Duration::from_secs(10);
        while !until(world) {
            assert!(shards::now() < give_up, "the condition never held");
            shards::sleep(Duration::from_millis(1)).await;
        }
        fulfil.stop();
        running.await.expect("no panic in the worker itself")
    });
    (metrics, unfinished)
}

fn fill(world: &World, count: u64) {
    world.topic.borrow_mut().extend((0..count).map(|number| delivery(number, 1)));
}

#[test]
fn every_message_is_settled_acked_shown_and_logged_once() {
    let world = Rc::new(World::default());
    fill(&world, 500);
    let (metrics, unfinished) =
        work(&world, settings(32, 64), LIMITS, |_| Ok(OrderOutcome::Created), |w| w.acked.borrow().len() == 500);
    let mut acked = world.acked.take();
    acked.sort_unstable();
    assert_eq!(acked, (0..500).collect::<Vec<_>>());
    assert_eq!(world.projected.borrow().len(), 500);
    assert_eq!(world.attempts.borrow().len(), 500);
    assert_eq!((metrics.order_created.get(), unfinished), (500, 0));
    assert!(world.batches.borrow().len() < 500, "messages that wait together go together");
}

#[test]
fn in_hand_never_exceeds_workers_plus_queue() {
    let world = Rc::new(World::default());
    world.settle_time.set(Duration::from_millis(2));
    fill(&world, 400);
    let (metrics, _) =
        work(&world, settings(8, 16), LIMITS, |_| Ok(OrderOutcome::Created), |w| w.acked.borrow().len() == 400);
    assert!(metrics.mq_inflight_peak.get() <= 24, "{}", metrics.mq_inflight_peak.get());
    assert!(world.in_settle_peak.get() <= 8, "{}", world.in_settle_peak.get());
}

#[test]
fn what_the_broker_hands_over_beyond_the_slots_is_left_to_redelivery() {
    let world = Rc::new(World::default());
    world.overrun.set(5);
    fill(&world, 40);
    let (metrics, _) =
        work(&world, settings(4, 0), LIMITS, |_| Ok(OrderOutcome::Created), |w| w.topic.borrow().is_empty());
    assert!(metrics.mq_receive_overrun.get() > 0);
    assert!(metrics.mq_inflight_peak.get() <= 4);
    assert_eq!(world.acked.borrow().len() as u64 + metrics.mq_receive_overrun.get(), 40);
}

#[test]
fn a_panic_acks_nothing_frees_its_slots_and_the_worker_lives_on() {
    let world = Rc::new(World::default());
    fill(&world, 60);
    let poison = event(7).message_id;
    let behaviour = move |event: &OrderCreateEvent| {
        assert_ne!(event.message_id, poison, "a bug");
        Ok(OrderOutcome::Created)
    };
    // One message a batch, so that only the poisoned one is lost to the panic.
    let (metrics, unfinished) = work(&world, settings(1, 3), LIMITS, behaviour, |w| w.acked.borrow().len() == 59);
    assert!(!world.acked.borrow().contains(&7));
    assert_eq!((metrics.task_panics.get(), unfinished), (1, 0));
}

#[test]
fn a_bad_message_is_quarantined_then_acked_and_without_its_row_it_is_not() {
    for down in [false, true] {
        let world = Rc::new(World::default());
        world.quarantine_down.set(down);
        let mut bad = delivery(1, 3);
        bad.tag = "OTHER".into();
        world.topic.borrow_mut().extend([bad, delivery(2, 1)]);
        let (_, unfinished) = work(
            &world,
            settings(4, 4),
            LIMITS,
            |_| Ok(OrderOutcome::Created),
            |w| w.acked.borrow().contains(&2) && (w.quarantine_down.get() || w.acked.borrow().contains(&1)),
        );
        assert_eq!(unfinished, 0);
        assert_eq!(world.acked.borrow().contains(&1), !down);
        if !down {
            let rows = world.quarantined.borrow();
            assert_eq!((rows[0].reason, rows[0].attempt), ("TAG_MISMATCH", 3));
            assert_eq!(rows[0].holder.map(|holder| holder.reservation_id), Some(event(1).reservation_id));
        }
    }
}

#[test]
fn the_ninth_delivery_goes_to_the_dead_letter_topic_and_is_acked() {
    let world = Rc::new(World::default());
    world.topic.borrow_mut().extend([delivery(1, 8), delivery(2, 9)]);
    let (metrics, _) =
        work(&world, settings(4, 4), LIMITS, |_| Ok(OrderOutcome::Created), |w| w.acked.borrow().len() == 2);
    assert_eq!(world.dead.take(), [2]);
    assert_eq!((metrics.mq_dlq.get(), metrics.order_created.get()), (1, 1));
}

#[test]
fn a_passing_fault_is_tried_again_three_times_and_then_left_to_redelivery() {
    let world = Rc::new(World::default());
    fill(&world, 2);
    let (stubborn, tries) = (event(0).message_id, Rc::new(Cell::new(0)));
    let counter = tries.clone();
    let behaviour = move |event: &OrderCreateEvent| {
        if event.message_id != stubborn {
            return Ok(OrderOutcome::Created);
        }
        counter.set(counter.get() + 1);
        Err(OrderError::Transient("40P01".into()))
    };
    let seen = tries.clone();
    let (metrics, unfinished) =
        work(&world, settings(4, 4), LIMITS, behaviour, move |w| seen.get() == 3 && w.acked.borrow().len() == 1);
    assert_eq!((world.acked.take(), unfinished), (vec![1], 0));
    assert_eq!(metrics.mq_process_duration.len(), Processed::TEXTS.len());
}

#[test]
fn nothing_is_pulled_while_the_order_store_is_down_and_a_probe_starts_it_again() {
    let world = Rc::new(World::default());
    fill(&world, 1_000);
    world.store_down.set(true);
    let (seen, started) = (world.clone(), shards::now());
    let down = world.clone();
    work(
        &world,
        settings(4, 0),
        LIMITS,
        move |_| match down.store_down.get() {
            true => Err(OrderError::Unavailable("down".into())),
            false => Ok(OrderOutcome::Created),
        },
        move |world| {
            if shards::now() - started < Duration::from_millis(900) {
                return false;
            }
            if world.store_down.replace(false) {
                // Two pullers may each have had a pop under way; from then on the store is asked, not the broker.
                assert!(world.receives.get() <= 2, "{}", world.receives.get());
                assert!((2..=10).contains(&world.probes.get()), "{}", world.probes.get());
            }
            world.acked.borrow().len() > 900
        },
    );
    assert!(seen.receives.get() > 2);
}

#[test]
fn a_failed_ack_is_tried_again() {
    let world = Rc::new(World::default());
    world.ack_failures.set(2);
    fill(&world, 1);
    let (metrics, _) =
        work(&world, settings(4, 4), LIMITS, |_| Ok(OrderOutcome::Created), |w| !w.acked.borrow().is_empty());
    assert_eq!((metrics.mq_acks.get(), metrics.mq_ack_failures.get()), (1, 0));
}

#[test]
fn outcomes_are_shown_as_they_were_committed() {
    let world = Rc::new(World::default());
    fill(&world, 4);
    let behaviour = |event: &OrderCreateEvent| {
        Ok(match event.user_id.get() {
            1 => OrderOutcome::Rejected(RejectReason::StockExhausted),
            2 => OrderOutcome::DuplicateCreated { order_id: OrderId::new(77).unwrap() },
            3 => OrderOutcome::MessageIdReused,
            _ => OrderOutcome::Created,
        })
    };
    work(&world, settings(4, 4), LIMITS, behaviour, |w| w.acked.borrow().len() == 4);
    let shown = world.projected.borrow();
    assert_eq!(shown[&event(0).request_id], FinalResult::Rejected { reason: RejectReason::StockExhausted });
    assert_eq!(shown[&event(1).request_id], FinalResult::Created { order_id: OrderId::new(77).unwrap() });
    assert!(!shown.contains_key(&event(2).request_id));
    assert_eq!(world.quarantined.borrow()[0].reason, "MESSAGE_ID_REUSED");
}

#[test]
fn work_that_outlasts_the_drain_time_is_let_go_without_an_ack() {
    let world = Rc::new(World::default());
    world.settle_time.set(Duration::from_secs(3));
    fill(&world, 2);
    let limits = FulfilLimits { drain: Duration::from_millis(50), ..LIMITS };
    let (_, unfinished) =
        work(&world, settings(4, 4), limits, |_| Ok(OrderOutcome::Created), |w| w.in_settle.get() == 2);
    assert_eq!((unfinished, world.acked.borrow().len()), (2, 0));
}

#[test]
fn long_work_keeps_its_message_hidden_and_is_acked_with_the_new_handle() {
    let world = Rc::new(World::default());
    world.settle_time.set(Duration::from_millis(4_500));
    fill(&world, 1);
    let limits = FulfilLimits { invisible: Duration::from_secs(7), ..LIMITS };
    work(&world, settings(4, 4), limits, |_| Ok(OrderOutcome::Created), |w| !w.acked.borrow().is_empty());
    assert!(world.extended.get() > 0);
    assert!(world.acked.borrow()[0] >= 1_000_000);
}

//! The scanner over ports that remember what was asked of them.

use std::cell::Cell;
use std::collections::VecDeque;

use super::*;
use crate::domain::{OrderId, ReserveOutcome, TraceContext, UserId, Uuid};
use crate::ports::{PortError, PublishError, ReserveRequest};

fn sku(id: i64) -> Sku {
    Sku::new(1001, id).unwrap()
}

fn event(sku: Sku, n: u8) -> OrderCreateEvent {
    OrderCreateEvent {
        message_id: Uuid([n; 16]),
        request_id: Uuid([n; 16]),
        reservation_id: Uuid([n; 16]),
        sku,
        user_id: UserId::new(1).unwrap(),
        order_id: OrderId::new(1).unwrap(),
        created_at_micros: 1,
        retry_count: 1,
        trace: TraceContext::default(),
    }
}

struct Index {
    sales: RefCell<VecDeque<Result<Vec<Sku>, PortError>>>,
    pending: RefCell<Vec<OrderCreateEvent>>,
}

impl PendingIndex for &Index {
    async fn live_sales(&self, _deadline: Instant) -> Result<Vec<Sku>, PortError> {
        self.sales.borrow_mut().pop_front().unwrap_or(Err(PortError::Unavailable))
    }

    async fn claim(
        &self,
        sku: Sku,
        _age: Duration,
        _lease: Duration,
        max: usize,
        _deadline: Instant,
    ) -> Result<Vec<OrderCreateEvent>, PortError> {
        let mut pending = self.pending.borrow_mut();
        let (mut claimed, rest): (Vec<_>, Vec<_>) = pending.drain(..).partition(|event| event.sku == sku);
        *pending = rest;
        let left = claimed.split_off(max.min(claimed.len()));
        pending.extend(left);
        Ok(claimed)
    }
}

#[derive(Default)]
struct Book {
    sent: RefCell<Vec<Uuid>>,
}

impl Reservations for Book {
    async fn reserve(&self, _request: ReserveRequest, _deadline: Instant) -> Result<ReserveOutcome, PortError> {
        Err(PortError::Internal)
    }

    async fn next_order_id(&self, _deadline: Instant) -> Result<OrderId, PortError> {
        Err(PortError::Internal)
    }

    fn mark_sent(&self, _sku: Sku, reservation_id: Uuid) {
        self.sent.borrow_mut().push(reservation_id);
    }

    async fn mark_pending(&self, _sku: Sku, _reservation_id: Uuid, _deadline: Instant) -> Result<bool, PortError> {
        Err(PortError::Internal)
    }

    async fn release(
        &self,
        _sku: Sku,
        _user_id: UserId,
        _reservation_id: Uuid,
        _deadline: Instant,
    ) -> Result<bool, PortError> {
        Err(PortError::Internal)
    }
}

#[derive(Default)]
struct Bus {
    refuses: Cell<bool>,
    sent: RefCell<Vec<OrderCreateEvent>>,
}

impl EventBus for Bus {
    async fn publish(&self, event: OrderCreateEvent, _deadline: Instant) -> Result<(), PublishError> {
        if self.refuses.get() {
            return Err(PublishError::NotStored);
        }
        self.sent.borrow_mut().push(event);
        Ok(())
    }
}

fn settings() -> Settings {
    Settings { scan_ms: 10, pending_age_ms: 1, lease_ms: 1_000, batch_max: 2, reconcile_ms: 1_000 }
}

#[test]
fn what_was_never_confirmed_is_sent_and_marked() {
    shards::run(async {
        let pending = vec![event(sku(1), 1), event(sku(2), 2), event(sku(1), 3), event(sku(1), 4), event(sku(9), 5)];
        // Leaked: the port is used by reference, and the scanner runs in a task of its own.
        let index: &'static Index = Box::leak(Box::new(Index {
            sales: RefCell::new(VecDeque::from([Ok(vec![sku(1), sku(2)])])),
            pending: RefCell::new(pending),
        }));
        let (book, bus, metrics) = (Rc::new(Book::default()), Rc::new(Bus::default()), Rc::new(Metrics::default()));
        bus.refuses.set(true);
        let scanner = PendingScanner::new(index, book.clone(), bus.clone(), settings(), metrics.clone());
        scanner.sales.replace(vec![sku(2)]);
        assert!(!scanner.scan().await);
        assert_eq!((metrics.recovery_failed.get(), book.sent.borrow().len()), (1, 0), "not sent, so not marked");
        bus.refuses.set(false);
        let stopping = Gate::new();
        let running = shards::spawn(scanner.run(stopping.clone()));
        shards::sleep(Duration::from_millis(60)).await;
        stopping.close();
        running.await.unwrap();
        let sent: Vec<_> = bus.sent.borrow().iter().map(|event| event.message_id.0[0]).collect();
        assert_eq!(sent, [1, 3, 4], "all of the sales that are listed, and none of another");
        assert_eq!(book.sent.borrow().len(), 3);
        assert_eq!(metrics.recovery_resent.get(), 3);
    });
}

/// An outbox whose rows are given back as its table says.
struct Outbox {
    due: RefCell<Vec<crate::ports::Release>>,
    answers: RefCell<Vec<(i64, Option<crate::ports::Returned>)>>,
    applied: RefCell<Vec<i64>>,
}

impl crate::ports::ReleaseOutbox for &Outbox {
    async fn claim(&self, _max: usize, _deadline: Instant) -> Result<Vec<crate::ports::Release>, PortError> {
        Ok(self.due.take())
    }

    async fn give_back(
        &self,
        _sku: Sku,
        rows: &[crate::ports::Release],
        _deadline: Instant,
    ) -> Result<Vec<crate::ports::Returned>, PortError> {
        let answers = self.answers.borrow();
        let answer = |id: i64| answers.iter().find(|(known, _)| *known == id).and_then(|(_, answer)| *answer);
        rows.iter().map(|row| answer(row.id).ok_or(PortError::Unavailable)).collect()
    }

    async fn applied(&self, ids: &[i64], _deadline: Instant) -> Result<(), PortError> {
        self.applied.borrow_mut().extend(ids);
        Ok(())
    }
}

#[test]
fn only_units_that_are_back_leave_the_outbox() {
    use crate::ports::{Release, Returned};
    shards::run(async {
        let release = |id: i64, sku: Sku| Release {
            id,
            sku,
            reservation_id: Uuid([1; 16]),
            request_id: Uuid([2; 16]),
            user_id: UserId::new(1).unwrap(),
            order_id: None,
            reason: "PG_STOCK_EXHAUSTED".to_owned(),
        };
        let outbox = Outbox {
            // The second SKU's Redis does not answer.
            due: RefCell::new(vec![release(1, sku(1)), release(2, sku(2)), release(3, sku(1)), release(4, sku(1))]),
            answers: RefCell::new(vec![
                (1, Some(Returned::Done)),
                (2, None),
                (3, Some(Returned::Refused)),
                (4, Some(Returned::Done)),
            ]),
            applied: RefCell::default(),
        };
        let metrics = Rc::new(Metrics::default());
        let task = ReleaseTask::new(&outbox, Duration::from_millis(1), metrics.clone());
        assert_eq!(task.work().await, Ok(4));
        assert_eq!(*outbox.applied.borrow(), [1, 4]);
        assert_eq!((metrics.release_applied.get(), metrics.release_refused.get()), (2, 1));
        assert_eq!(task.work().await, Ok(0));
    });
}

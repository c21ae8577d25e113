//! The order store: every outcome, and the assertions of PostgreSQL on it.

use super::*;
use crate::domain::TraceContext;

fn id(kind: u8, n: i64) -> Uuid {
    let mut bytes = [kind; 16];
    bytes[8..].copy_from_slice(&n.to_be_bytes());
    Uuid(bytes)
}

fn opening(total: i64) -> Opening {
    let sku = Sku::new(1001, 2001).unwrap();
    Opening { sku, start_ms: 1_000, end_ms: 2_000, expire_at_ms: 3_000, total }
}

fn message(n: i64, user: i64) -> StoredMessage {
    let event = OrderCreateEvent {
        message_id: id(3, n),
        request_id: id(1, n),
        reservation_id: id(2, n),
        sku: opening(0).sku,
        user_id: UserId::new(user).unwrap(),
        order_id: OrderId::new(n).unwrap(),
        created_at_micros: 1,
        retry_count: 0,
        trace: TraceContext::default(),
    };
    StoredMessage { event, body: b"{}".to_vec(), broker_message_id: format!("{n}"), attempt: 1 }
}

fn memory(total: i64) -> Opened {
    let opened = open(Path::new(":memory:"), "group").unwrap();
    opened.sale(&opening(total), false).unwrap();
    opened
}

fn settle(opened: &mut Opened, messages: &[StoredMessage]) -> Vec<OrderOutcome> {
    settle::batch(opened, messages).into_iter().map(Result::unwrap).collect()
}

/// The assertions that hold on PostgreSQL, run as they are.
fn assert_sound(opened: &Opened) {
    for entry in std::fs::read_dir("sql/assertions").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut statement = opened.connection.prepare(&text).unwrap();
        let mut rows = statement.query([]).unwrap();
        assert!(rows.next().unwrap().is_none(), "{}", path.display());
    }
}

#[test]
fn messages_become_orders_once() {
    let mut opened = memory(10);
    let batch = [message(1, 7), message(2, 8)];
    assert_eq!(settle(&mut opened, &batch), [OrderOutcome::Created; 2]);
    let again: Vec<_> = [1, 2].map(|n| OrderOutcome::DuplicateCreated { order_id: OrderId::new(n).unwrap() }).into();
    assert_eq!(settle(&mut opened, &batch), again);
    let mut seen = Vec::new();
    opened.settled(|request_id, outcome| seen.push((request_id, outcome))).unwrap();
    assert_eq!(opened.order_id_max().unwrap(), 2);
    assert_eq!(seen, [(id(1, 1), again[0]), (id(1, 2), again[1])]);
    assert_sound(&opened);
}

#[test]
fn what_cannot_be_an_order_is_rejected_and_given_back() {
    let mut opened = memory(2);
    assert_eq!(settle(&mut opened, &[message(1, 7)]), [OrderOutcome::Created]);
    let reused =
        StoredMessage { event: OrderCreateEvent { request_id: id(9, 9), ..message(1, 7).event }, ..message(1, 7) };
    let collides =
        StoredMessage { event: OrderCreateEvent { request_id: id(1, 1), ..message(5, 50).event }, ..message(5, 50) };
    let batch = [reused, message(2, 7), collides, message(3, 30), message(4, 40)];
    assert_eq!(
        settle(&mut opened, &batch),
        [
            OrderOutcome::MessageIdReused,
            OrderOutcome::Rejected(RejectReason::OneUserOneOrder),
            OrderOutcome::Rejected(RejectReason::IdentifierCollision),
            OrderOutcome::Created,
            OrderOutcome::Rejected(RejectReason::StockExhausted),
        ]
    );
    let kept: i64 = opened.connection.query_row("SELECT count(*) FROM quarantine", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, 1);
    assert_sound(&opened);
}

#[test]
fn a_released_reservation_gets_no_order() {
    let mut opened = memory(2);
    let first = message(1, 7);
    let row = QuarantineRow {
        body: bytes::Bytes::from_static(b"not JSON"),
        reason: "MALFORMED",
        detail: "x".to_owned(),
        broker_message_id: "b".to_owned(),
        tag: "t".to_owned(),
        key: None,
        attempt: 1,
        holder: Some(crate::domain::UnitHolder {
            sku: first.event.sku,
            reservation_id: first.event.reservation_id,
            request_id: first.event.request_id,
            message_id: first.event.message_id,
            user_id: first.event.user_id,
        }),
    };
    settle::quarantine_row(&mut opened, &row).unwrap();
    settle::quarantine_row(&mut opened, &row).unwrap();
    let outcome = OrderOutcome::Rejected(RejectReason::ReservationReleased);
    assert_eq!(settle(&mut opened, &[first]), [outcome]);
    assert_sound(&opened);
}

#[test]
fn a_thread_answers_and_ends() {
    shards::run(async {
        let (store, thread) = memory(5).start().unwrap();
        assert_eq!(store.settle(vec![message(1, 7)]).await, [Ok(OrderOutcome::Created)]);
        let standing = store.stored(opening(0).sku, id(1, 1), UserId::new(7).unwrap()).await.unwrap();
        let result = FinalResult::Created { order_id: OrderId::new(1).unwrap() };
        assert_eq!(standing, Standing::Final { reservation_id: id(2, 1), result });
        let other = store.stored(opening(0).sku, id(1, 1), UserId::new(8).unwrap()).await.unwrap();
        assert_eq!(other, Standing::Missing);
        store.sale(opening(5), true).await.unwrap();
        let row = AttemptRow {
            message_id: id(3, 1),
            broker_message_id: "1".to_owned(),
            attempt: 1,
            outcome: "CREATED",
            error_code: "",
            duration: std::time::Duration::from_micros(5),
            occurred_at_micros: 1,
        };
        store.attempts(vec![row]).await.unwrap();
        drop(store);
        thread.join();
    });
}

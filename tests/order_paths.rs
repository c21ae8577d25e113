//! The two ways to settle messages, the batch and the message by itself, give the same rows, states and outcomes (spec
//! section 5): the same random messages go through both on a real PostgreSQL, and everything is compared.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as ProptestConfig, TestRunner};
use proto_clients::postgres::{Pool, PoolConfig};
use seckill::domain::{OrderCreateEvent, OrderId, OrderOutcome, Sku, TraceContext, UserId, Uuid};
use seckill::observe::metrics::Metrics;
use seckill::observe::trace::Span;
use seckill::ports::{OrderError, OrderMessage, Orders};
use seckill::services::{PostgresOrders, Shared};

const GROUP: &str = "seckill-order-create-v1";
const TOPIC: &str = "seckill-order-events";

fn deadline() -> Instant {
    shards::now() + Duration::from_secs(20)
}

/// A message in small numbers, so that collisions of every kind are common.
#[derive(Debug, Clone, Copy)]
struct Draft {
    message: u8,
    request: u8,
    reservation: u8,
    order: u8,
    user: u8,
}

fn draft() -> impl Strategy<Value = Draft> {
    prop_oneof![
        // A message as it should be: every id of its own.
        6 => (0u8..40).prop_map(|n| Draft { message: n, request: n, reservation: n, order: n, user: n }),
        // Its user has another one.
        2 => (0u8..40, 0u8..40).prop_map(|(n, user)| Draft { message: n, request: n, reservation: n, order: n, user }),
        // Anything.
        1 => (0u8..40, 0u8..40, 0u8..40, 0u8..40, 0u8..40)
            .prop_map(|(message, request, reservation, order, user)| Draft { message, request, reservation, order, user }),
    ]
}

/// A world of its own in the database: ids that no other run uses.
struct World {
    salt: u64,
    sku: Sku,
}

impl World {
    fn new(salt: u64) -> Self {
        let id = i64::try_from(salt >> 2).unwrap_or(i64::MAX).max(1);
        Self { salt, sku: Sku::new(id, 1).unwrap() }
    }

    fn uuid(&self, kind: u8, n: u8) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.salt.to_be_bytes());
        (bytes[8], bytes[15]) = (kind, n);
        Uuid(bytes)
    }

    fn event(&self, draft: Draft) -> OrderCreateEvent {
        OrderCreateEvent {
            message_id: self.uuid(1, draft.message),
            request_id: self.uuid(2, draft.request),
            reservation_id: self.uuid(3, draft.reservation),
            sku: self.sku,
            user_id: UserId::new(i64::from(draft.user) + 1).unwrap(),
            order_id: OrderId::new((self.salt >> 12) as i64 + i64::from(draft.order) + 1).unwrap(),
            created_at_micros: 1_782_388_800_123_456,
            retry_count: 0,
            trace: TraceContext::default(),
        }
    }
}

/// What a run has left behind: outcomes, and rows without the world's salt and without times.
#[derive(Debug, PartialEq)]
struct Left {
    outcomes: Vec<Result<OrderOutcome, OrderError>>,
    rows: BTreeMap<&'static str, Vec<String>>,
}

const TABLES: [(&str, &str); 5] = [
    ("inventory", "SELECT sold_stock, total_stock FROM seckill_inventory WHERE activity_id = {A}"),
    (
        "orders",
        "SELECT right(request_id::text, 2), right(reservation_id::text, 2), order_id - {O}, user_id, status \
         FROM orders WHERE activity_id = {A} ORDER BY 1, 2, 3",
    ),
    (
        "inbox",
        "SELECT right(message_id::text, 2), right(request_id::text, 2), right(reservation_id::text, 2), order_id - {O}, \
         status, last_error_code, processed_at IS NOT NULL FROM consumer_inbox WHERE message_id::text LIKE '{U}%' ORDER BY 1",
    ),
    (
        "outbox",
        "SELECT right(reservation_id::text, 2), right(message_id::text, 2), user_id, order_id - {O}, reason \
         FROM release_outbox WHERE activity_id = {A} ORDER BY 1",
    ),
    (
        "quarantine",
        "SELECT right(message_id::text, 2), reason FROM quarantine WHERE message_id::text LIKE '{U}%' ORDER BY 1, 2",
    ),
];

async fn rows(pool: &Pool, world: &World) -> BTreeMap<&'static str, Vec<String>> {
    let mut client = pool.acquire(deadline()).await.unwrap();
    let mut all = BTreeMap::new();
    let hex: String = world.salt.to_be_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let prefix = format!("{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16]);
    for (name, sql) in TABLES {
        let sql = sql
            .replace("{A}", &world.sku.activity.to_string())
            .replace("{O}", &((world.salt >> 12) as i64).to_string())
            .replace("{U}", &prefix);
        let result = client.simple(&sql, deadline()).await.unwrap().remove(0);
        let text = |row: proto_clients::postgres::Row<'_>| {
            let columns = (0..result.columns().len()).map(|column| row.opt_text(column).unwrap().unwrap_or("NULL"));
            columns.collect::<Vec<_>>().join("|")
        };
        all.insert(name, result.iter().map(text).collect());
    }
    all
}

async fn run(pool: &Pool, store: &PostgresOrders, drafts: &[Draft], total: i32, batch: Option<usize>) -> Left {
    let world = World::new(shards::random_u64());
    let inventory = format!(
        "INSERT INTO seckill_inventory (activity_id, sku_id, total_stock) VALUES ({}, 1, {total})",
        world.sku.activity
    );
    pool.acquire(deadline()).await.unwrap().simple(&inventory, deadline()).await.unwrap();
    let events: Vec<OrderCreateEvent> = drafts.iter().map(|draft| world.event(*draft)).collect();
    let bodies: Vec<Bytes> = events
        .iter()
        .map(|event| {
            let mut body = Vec::new();
            event.encode(&mut body);
            body.into()
        })
        .collect();
    let ids: Vec<String> = (0..events.len()).map(|index| format!("{:016X}{index:04X}", world.salt)).collect();
    let none = Span::none();
    let messages: Vec<OrderMessage<'_>> = events
        .iter()
        .zip(&bodies)
        .zip(&ids)
        .map(|((event, body), id)| OrderMessage { event, body, broker_message_id: id, attempt: 1, span: &none })
        .collect();
    let mut outcomes = Vec::new();
    for chunk in messages.chunks(batch.unwrap_or(1)) {
        let mut settled = match batch {
            Some(_) => store.settle(chunk, deadline()).await,
            None => store.settle_each(chunk, deadline()).await,
        };
        // Order ids are the world's own: compare what is left of them.
        for outcome in settled.iter_mut().flatten() {
            if let OrderOutcome::DuplicateCreated { order_id } = outcome {
                let rest = order_id.get() - (world.salt >> 12) as i64;
                *outcome = OrderOutcome::DuplicateCreated { order_id: OrderId::new(rest).unwrap() };
            }
        }
        outcomes.append(&mut settled);
    }
    Left { outcomes, rows: rows(pool, &world).await }
}

#[test]
#[ignore = "needs tests/stack"]
fn the_batch_and_the_single_path_give_the_same() {
    let url = std::env::var("SECKILL_PG_URL")
        .expect("SECKILL_PG_URL is not set: run `tests/run services`, or eval \"$(tests/stack env)\"");
    let mut config = PoolConfig::from_url(&url).unwrap();
    config.connections_max = 2;
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    shards::run(async {
        let pool = Pool::new(config);
        seckill::migrate::migrate(&pool).await.unwrap();
        let metrics = Rc::new(Metrics::default());
        let settings = seckill::config::load(&seckill::config::Sources::default()).unwrap().resilience;
        let shared = Shared::new(&settings, &metrics);
        let store = PostgresOrders::new(
            pool.clone(),
            pool.clone(),
            TOPIC.to_owned(),
            GROUP.to_owned(),
            "test".to_owned(),
            &shared,
        );
        let mut runner = TestRunner::new(ProptestConfig::default());
        let strategy = (proptest::collection::vec(draft(), 1..40), 0i32..45, 2usize..40);
        for case in 0..cases {
            let (drafts, total, batch): (Vec<Draft>, i32, usize) = strategy.new_tree(&mut runner).unwrap().current();
            let single = run(&pool, &store, &drafts, total, None).await;
            let batched = run(&pool, &store, &drafts, total, Some(batch)).await;
            assert_eq!(single, batched, "case {case}: {total} units, batches of {batch}, {drafts:?}");
        }
        // Both ways of the batch path were taken: the fast one, and the one that falls back.
        assert!(metrics.pg_tx_fallback.get() > 0);
        pool.close().await;
    });
}

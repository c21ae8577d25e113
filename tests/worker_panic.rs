//! A worker that panics, before its transaction and after its commit, on the real services: nothing acked that is not committed,
//! nothing lost, nothing twice, and the process lives (spec sections 5 and 10).

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use proto_clients::postgres::{Pool, PoolConfig};
use proto_clients::rocketmq::{Client, ClientConfig, SendOutcome};
use seckill::config::{Config, Sources};
use seckill::domain::{OrderCreateEvent, OrderId, OrderOutcome, Sku, TraceContext, UserId, Uuid};
use seckill::fulfil::{Fulfil, FulfilLimits};
use seckill::observe::metrics::Metrics;
use seckill::observe::trace::Tracer;
use seckill::ports::{AttemptRow, OrderError, OrderMessage, Orders, PortError, QuarantineRow, ResultBoard, ResultRow};
use seckill::services::{PostgresOrders, RocketMqSource, Shared, order_message};

const MESSAGES: u64 = 120;
const BESIDE: &str = "seckill-order-events";

fn soon() -> Instant {
    shards::now() + Duration::from_secs(10)
}

/// Panics before every fourth settlement and after every fifth.
struct Panicking {
    orders: PostgresOrders,
    calls: Rc<Cell<u32>>,
}

impl Orders for Panicking {
    async fn settle(&self, messages: &[OrderMessage<'_>], deadline: Instant) -> Vec<Result<OrderOutcome, OrderError>> {
        let call = self.calls.get() + 1;
        self.calls.set(call);
        assert!(call % 4 != 1, "before the transaction");
        let outcomes = self.orders.settle(messages, deadline).await;
        assert!(call % 5 != 2, "after the commit");
        outcomes
    }

    async fn probe(&self, deadline: Instant) -> bool {
        self.orders.probe(deadline).await
    }

    async fn quarantine(&self, row: &QuarantineRow, deadline: Instant) -> Result<(), PortError> {
        self.orders.quarantine(row, deadline).await
    }

    async fn log_attempts(&self, rows: &[AttemptRow], deadline: Instant) -> Result<(), PortError> {
        self.orders.log_attempts(rows, deadline).await
    }
}

struct NoBoard;

impl ResultBoard for NoBoard {
    fn project(&self, _row: ResultRow) {}
}

fn event(salt: u64, sku: Sku, number: u64) -> OrderCreateEvent {
    let id = |kind: u8| {
        let mut bytes = [kind; 16];
        bytes[..8].copy_from_slice(&salt.to_be_bytes());
        bytes[8..15].copy_from_slice(&number.to_be_bytes()[1..]);
        Uuid(bytes)
    };
    let number = i64::try_from(number).unwrap();
    OrderCreateEvent {
        message_id: id(1),
        request_id: id(2),
        reservation_id: id(3),
        sku,
        user_id: UserId::new(number).unwrap(),
        order_id: OrderId::new(sku.activity.get() * 1_000 + number).unwrap(),
        created_at_micros: shards::unix_micros(),
        retry_count: 0,
        trace: TraceContext::default(),
    }
}

async fn count(pool: &Pool, sql: &str) -> i64 {
    let rows = pool.acquire(soon()).await.unwrap().simple(sql, soon()).await.unwrap();
    rows.last().unwrap().row(0).text(0).unwrap().parse().unwrap()
}

fn settings() -> Config {
    let environment = ["SECKILL_REDIS", "SECKILL_PG_URL", "SECKILL_NAMESRV"].map(|name| {
        let value = std::env::var(name);
        (name.to_owned(), value.unwrap_or_else(|_| panic!("{name} is not set: run `tests/run services`")))
    });
    seckill::config::load(&Sources { environment: environment.to_vec(), ..Sources::default() }).unwrap()
}

#[test]
#[ignore = "needs tests/stack"]
fn a_panic_acks_nothing_and_loses_nothing() {
    let config = settings();
    shards::run(async {
        let mut pool = PoolConfig::from_url(&config.postgres.url).unwrap();
        pool.connections_max = 3;
        let pool = Pool::new(pool);
        seckill::migrate::migrate(&pool).await.unwrap();
        let salt = shards::random_u64();
        let activity = i64::try_from(salt % (1 << 40)).unwrap() + 1;
        let (sku, topic) = (Sku::new(activity, 1).unwrap(), format!("seckill-panic-{salt:x}"));
        let insert = format!(
            "INSERT INTO seckill_inventory (activity_id, sku_id, total_stock) VALUES ({activity}, 1, {MESSAGES})"
        );
        pool.acquire(soon()).await.unwrap().simple(&insert, soon()).await.unwrap();
        let client = Client::new(ClientConfig {
            name_servers: config.rocketmq.name_servers.clone(),
            group: config.rocketmq.group.clone(),
            client_id: format!("panic-{salt:x}"),
            ..ClientConfig::default()
        });
        client.create_topic(&topic, 1, BESIDE, soon()).await.unwrap();
        for number in 1..=MESSAGES {
            let sent = client.send(&topic, &[order_message(&event(salt, sku, number))], soon()).await;
            assert!(matches!(sent, SendOutcome::Stored { .. }), "{sent:?}");
        }

        let metrics = Rc::new(Metrics::default());
        let shared = Shared::new(&config.resilience, &metrics);
        let group = config.rocketmq.group.clone();
        let (invisible, poll) = (Duration::from_secs(10), Duration::from_millis(200));
        let source =
            RocketMqSource::new(client.clone(), topic.clone(), &group, invisible, poll, shared.guards.rocketmq.clone());
        let orders = PostgresOrders::new(pool.clone(), pool.clone(), topic, group, "panic".to_owned(), &shared);
        let limits = FulfilLimits {
            invisible,
            transaction: Duration::from_secs(5),
            deliveries_max: 8,
            drain: Duration::from_secs(5),
        };
        let calls = Rc::new(Cell::new(0));
        let orders = Panicking { orders, calls: calls.clone() };
        let worker =
            Fulfil::new(source, orders, NoBoard, config.worker.clone(), limits, metrics.clone(), Tracer::off());
        let working = shards::spawn(worker.clone().run());
        let give_up = shards::now() + Duration::from_secs(90);
        while metrics.mq_acks.get() < MESSAGES {
            let orders = count(&pool, &format!("SELECT count(*) FROM orders WHERE activity_id = {activity}")).await;
            assert!(metrics.mq_acks.get() <= u64::try_from(orders).unwrap(), "acked more than is committed");
            assert!(shards::now() < give_up, "{} of {MESSAGES} acked, {} calls", metrics.mq_acks.get(), calls.get());
            shards::sleep(Duration::from_millis(50)).await;
        }
        assert!(metrics.task_panics.get() >= 2, "{} panics in {} calls", metrics.task_panics.get(), calls.get());
        worker.stop();
        assert_eq!((working.await.unwrap(), worker.in_flight()), (0, 0), "every slot is free again");
        let select = format!("SELECT count(DISTINCT user_id) FROM orders WHERE activity_id = {activity}");
        assert_eq!(count(&pool, &select).await, i64::try_from(MESSAGES).unwrap());
        let sold =
            count(&pool, &format!("SELECT sold_stock FROM seckill_inventory WHERE activity_id = {activity}")).await;
        assert_eq!(sold, i64::try_from(MESSAGES).unwrap());
        println!("{} panics in {} calls, {MESSAGES} orders", metrics.task_panics.get(), calls.get());
        client.close().await;
        pool.close().await;
    });
}

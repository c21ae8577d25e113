//! Order ids, leased in blocks from Redis before they are needed (spec section 2).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use proto_clients::redis::Reply;
use shards::sync::Notify;

use super::redis_call::Redis;
use crate::domain::{OrderId, OrderIdBlock};
use crate::observe::metrics::RedisOperation;
use crate::ports::PortError;

const KEY: &[u8] = b"sec:order_id:block";
/// Blocks in one lease: 32,768 ids. What a process does not use is thrown away.
const LEASE: i64 = 8;
/// The next lease is fetched when no more ids than this are left.
const LOW_WATER: i64 = 4 * OrderIdBlock::SIZE;
/// Longest lease call. Nobody waits for it but a shard that has just started.
const LEASE_TIME: Duration = Duration::from_millis(500);

/// The ids of one shard.
pub(super) struct OrderIds {
    redis: Redis,
    current: RefCell<OrderIdBlock>,
    next: RefCell<Option<OrderIdBlock>>,
    leasing: Cell<bool>,
    leased: Notify,
    /// How the last lease went, for those who wait for it.
    failure: Cell<Option<PortError>>,
}

impl OrderIds {
    pub(super) fn new(redis: Redis) -> Rc<Self> {
        Rc::new(Self {
            redis,
            current: RefCell::new(OrderIdBlock::empty()),
            next: RefCell::new(None),
            leasing: Cell::new(false),
            leased: Notify::new(),
            failure: Cell::new(None),
        })
    }

    /// The next id; at once unless this shard has used up what it leased.
    pub(super) async fn next(self: &Rc<Self>, deadline: Instant) -> Result<OrderId, PortError> {
        loop {
            if let Some(id) = self.take() {
                return Ok(id);
            }
            if shards::timeout_at(deadline, self.leased.notified()).await.is_err() {
                return Err(PortError::Timeout);
            }
            if let (Some(error), None) = (self.failure.get(), self.next.borrow().as_ref()) {
                return Err(error);
            }
        }
    }

    fn take(self: &Rc<Self>) -> Option<OrderId> {
        let mut current = self.current.borrow_mut();
        let mut id = current.take();
        if id.is_none()
            && let Some(next) = self.next.take()
        {
            *current = next;
            id = current.take();
        }
        if current.remaining() <= LOW_WATER && self.next.borrow().is_none() && !self.leasing.replace(true) {
            let ids = self.clone();
            shards::spawn(async move { ids.lease().await });
        }
        id
    }

    async fn lease(&self) {
        let script = &self.redis.scripts.lease_order_ids;
        let mut command = script.command(1, 3);
        command.arg(KEY);
        command.arg_i64(LEASE);
        command.arg_u64(OrderIdBlock::EPOCH_UNIX_MS);
        let deadline = shards::now() + LEASE_TIME;
        let reply = self.redis.eval(RedisOperation::OrderIds, script, command, deadline).await;
        let block = reply.and_then(|reply: Reply| {
            reply.as_i64().and_then(|first| OrderIdBlock::new(first, LEASE)).ok_or(PortError::Internal)
        });
        match block {
            Ok(block) => {
                self.failure.set(None);
                *self.next.borrow_mut() = Some(block);
            }
            Err(error) => {
                tracing::warn!(%error, "no order ids leased");
                self.failure.set(Some(error));
            }
        }
        self.leasing.set(false);
        self.leased.notify_all();
    }
}

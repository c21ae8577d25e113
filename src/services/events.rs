//! Order events through RocketMQ (spec section 4).

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto_clients::rocketmq::{Client, Handle, MqError, Outgoing, Popped, SendOutcome};
use shards::sync::{Queue, oneshot};

use super::Shared;
use crate::domain::{EVENT_TAG, OrderCreateEvent, Sku, Uuid};
use crate::group_commit::{self, Limits};
use crate::observe::metrics::Metrics;
use crate::ports::{Delivery, EventBus, MessageSource, PortError, PublishError, Reservations};
use crate::resilience::{Blame, Guard, Open};

/// Sends in flight, per shard: while one travels the next one fills. A second one halves the batches, and a send costs the
/// broker much more than a message in it.
const SENDS_IN_FLIGHT: usize = 1;
/// What a pop may take beyond its long poll.
const POP_GRACE: Duration = Duration::from_secs(3);
/// Longest change of an invisible time.
const EXTEND: Duration = Duration::from_secs(2);

struct Publishing {
    sku: Sku,
    reservation_id: Uuid,
    message: Outgoing,
    deadline: Instant,
    answer: oneshot::Sender<Result<(), PublishError>>,
}

/// [`EventBus`] of one shard.
pub struct RocketMqBus<R> {
    client: Client,
    topic: String,
    waiting: Rc<Queue<Publishing>>,
    batch_max: usize,
    /// Told of messages stored after their publisher stopped waiting.
    reservations: Rc<R>,
    metrics: Rc<Metrics>,
    guard: Rc<Guard>,
}

impl<R: Reservations + 'static> RocketMqBus<R> {
    /// A bus to `topic`; at most `waiting_max` events wait for the next send of at most `batch_max`.
    pub fn new(
        client: Client,
        topic: String,
        waiting_max: usize,
        batch_max: usize,
        reservations: Rc<R>,
        shared: &Shared,
    ) -> Rc<Self> {
        let (metrics, guard) = (shared.metrics.clone(), shared.guards.rocketmq.clone());
        Rc::new(Self {
            client,
            topic,
            waiting: Rc::new(Queue::new(waiting_max)),
            batch_max,
            reservations,
            metrics,
            guard,
        })
    }

    /// Sends until [`close`](Self::close) and until what waits is sent.
    pub async fn run(self: Rc<Self>) {
        let (bus, counter) = (self.clone(), self.metrics.clone());
        let send = move |batch| {
            let bus = bus.clone();
            async move { bus.send(batch).await }
        };
        let limits = Limits { batch_max: self.batch_max, in_flight_max: SENDS_IN_FLIGHT };
        group_commit::run(self.waiting.clone(), limits, send, move || counter.task_panics.inc()).await;
    }

    /// Takes no more events.
    pub fn close(&self) {
        self.waiting.close();
    }

    async fn send(&self, mut batch: Vec<Publishing>) {
        // Whoever stopped waiting has noted the reservation as MQ_PENDING and sends it again: not twice at once.
        batch.retain(|publishing| !publishing.answer.is_closed());
        let Some(deadline) = batch.iter().map(|publishing| publishing.deadline).max() else { return };
        self.metrics.mq_send_batch.observe(batch.len() as f64);
        let messages: Vec<Outgoing> = batch.iter().map(|publishing| publishing.message.clone()).collect();
        let started = shards::now();
        let send = async {
            match self.client.send(&self.topic, &messages, deadline).await {
                SendOutcome::Stored { .. } => Ok(()),
                SendOutcome::NotStored(error) => Err((PublishError::NotStored, error)),
                SendOutcome::Unknown(error) => Err((PublishError::Unknown, error)),
            }
        };
        let sent = self.guard.call(send, |(_, error)| blame(error)).await;
        self.metrics.mq_send_duration.observe_duration(shards::now() - started);
        if let Ok(Ok(())) = sent {
            self.metrics.mq_sent.add(messages.len() as u64);
        }
        let result = match sent {
            Ok(sent) => sent.map_err(|(why, error)| {
                tracing::warn!(%error, messages = messages.len(), "{why}");
                why
            }),
            // Said once, when it opened.
            Err(Open) => Err(PublishError::NotStored),
        };
        for publishing in batch {
            if publishing.answer.send(result).is_err() && result.is_ok() {
                self.reservations.mark_sent(publishing.sku, publishing.reservation_id);
            }
        }
    }
}

fn blame(error: &MqError) -> Blame {
    match error {
        MqError::Overloaded | MqError::Invalid(_) | MqError::Closed => Blame::Nobody,
        _ => Blame::Dependency,
    }
}

/// An order's message as the topic has it.
pub fn order_message(event: &OrderCreateEvent) -> Outgoing {
    let mut body = Vec::with_capacity(512);
    event.encode(&mut body);
    Outgoing { body: Bytes::from(body), tag: EVENT_TAG.to_owned(), keys: event.message_key(), properties: Vec::new() }
}

impl<R: Reservations + 'static> EventBus for RocketMqBus<R> {
    fn is_available(&self) -> bool {
        !self.guard.is_open()
    }

    async fn publish(&self, event: OrderCreateEvent, deadline: Instant) -> Result<(), PublishError> {
        let (answer, answered) = oneshot::channel();
        let (sku, reservation_id, message) = (event.sku, event.reservation_id, order_message(&event));
        let publishing = Publishing { sku, reservation_id, message, deadline, answer };
        self.waiting.try_push(publishing).map_err(|_| PublishError::NotStored)?;
        match shards::timeout_at(deadline, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(PublishError::Unknown),
        }
    }
}

/// [`MessageSource`] of one shard.
pub struct RocketMqSource {
    client: Client,
    topic: String,
    dead_letter_topic: String,
    invisible: Duration,
    poll: Duration,
    guard: Rc<Guard>,
}

impl RocketMqSource {
    /// Pops `topic` as `group`.
    pub fn new(
        client: Client,
        topic: String,
        group: &str,
        invisible: Duration,
        poll: Duration,
        guard: Rc<Guard>,
    ) -> Self {
        Self { client, topic, dead_letter_topic: format!("%DLQ%{group}"), invisible, poll, guard }
    }
}

fn port_error(error: &MqError) -> PortError {
    tracing::debug!(%error, "RocketMQ call failed");
    if error.outcome_unknown() { PortError::Unknown } else { PortError::Unavailable }
}

fn delivery(popped: Popped) -> Delivery<Handle> {
    Delivery {
        body: popped.body,
        tag: popped.tag,
        key: popped.keys,
        broker_message_id: popped.message_id,
        attempt: popped.attempt,
        handle: popped.handle,
    }
}

impl MessageSource for RocketMqSource {
    type Handle = Handle;

    async fn receive(&self, max: usize, _puller: usize) -> Result<Vec<Delivery<Handle>>, PortError> {
        let max = u32::try_from(max).unwrap_or(u32::MAX).min(32);
        let deadline = shards::now() + self.poll + POP_GRACE;
        let pop = self.client.pop(&self.topic, max, self.invisible, self.poll, deadline);
        let popped = self.guard.call(pop, blame).await.map_err(|Open| PortError::Unavailable)?;
        popped.map(|messages| messages.into_iter().map(delivery).collect()).map_err(|error| port_error(&error))
    }

    async fn ack(&self, handles: &[Handle], deadline: Instant) -> Vec<Result<(), PortError>> {
        let acked = self.client.ack(handles, deadline).await;
        acked.into_iter().map(|result| result.map_err(|error| port_error(&error))).collect()
    }

    fn may_retry(&self) -> bool {
        self.guard.may_retry()
    }

    async fn extend(&self, handle: &Handle, for_time: Duration) -> Result<Handle, PortError> {
        let deadline = shards::now() + EXTEND;
        self.client.change_invisible(handle, for_time, deadline).await.map_err(|error| port_error(&error))
    }

    async fn dead_letter(&self, delivery: &Delivery<Handle>, deadline: Instant) -> Result<(), PortError> {
        let message = Outgoing {
            body: delivery.body.clone(),
            tag: delivery.tag.clone(),
            keys: delivery.key.clone().unwrap_or_default(),
            properties: vec![
                ("ORIGIN_MESSAGE_ID".to_owned(), delivery.broker_message_id.clone()),
                ("ORIGIN_TOPIC".to_owned(), self.topic.clone()),
                ("DELIVERY_ATTEMPT".to_owned(), delivery.attempt.to_string()),
            ],
        };
        match self.client.send(&self.dead_letter_topic, &[message], deadline).await {
            SendOutcome::Stored { .. } => Ok(()),
            SendOutcome::NotStored(error) | SendOutcome::Unknown(error) => {
                tracing::warn!(%error, topic = self.dead_letter_topic, "dead letter not stored");
                Err(port_error(&error))
            }
        }
    }

    async fn lag(&self, deadline: Instant) -> Result<u64, PortError> {
        self.client.lag(&self.topic, deadline).await.map_err(|error| port_error(&error))
    }
}

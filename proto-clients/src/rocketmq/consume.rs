//! Receiving: pop, ack, change of the invisible time, backlog.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Client, Lane};
use super::frame::Request;
use super::pop::{self, Popped};
use super::pull::{self, Page};
use super::route::Place;
use super::{Handle, MqError, ack, code};

impl Client {
    /// Up to `max` (32) messages of `topic`, hidden from others for `invisible`; waits up to `poll` for one. Brokers take
    /// turns from call to call. None when the poll ran out.
    ///
    /// # Errors
    /// [`MqError`]. Messages of a lost answer come back after their invisible time.
    pub async fn pop(
        &self,
        topic: &str,
        max: u32,
        invisible: Duration,
        poll: Duration,
        deadline: Instant,
    ) -> Result<Vec<Popped>, MqError> {
        let places = self.route(topic, deadline).await?.readable();
        let Some(place) = places.get(self.next_turn() % places.len().max(1)) else {
            return Err(MqError::NoRoute(topic.to_owned()));
        };
        let request = pop::request(&self.0.config.group, topic, max, invisible, poll);
        let answer = self.call(&place.addr, Lane::Receive, request, deadline).await;
        let messages =
            answer.and_then(|answer| pop::messages(&answer, &Rc::from(topic), &Rc::from(place.broker.as_str())));
        if let Err(error) = &messages
            && error.route_is_stale()
        {
            self.route_is_stale(topic);
        }
        messages
    }

    /// Acknowledges; one result a handle, in order. One request a broker, however many handles. Safe to repeat.
    pub async fn ack(&self, handles: &[Handle], deadline: Instant) -> Vec<Result<(), MqError>> {
        let mut results = vec![Ok(()); handles.len()];
        let sound = |index: &usize| ack::place(&handles[*index]).is_some();
        let (mut rest, unsound): (Vec<usize>, Vec<usize>) = (0..handles.len()).partition(sound);
        unsound.into_iter().for_each(|index| results[index] = Err(MqError::Invalid("a handle that no pop gave out")));
        while let Some(&first) = rest.first() {
            let broker = handles[first].broker.clone();
            let (these, others): (Vec<usize>, Vec<usize>) =
                rest.into_iter().partition(|index| handles[*index].broker == broker);
            rest = others;
            let batch: Vec<&Handle> = these.iter().map(|index| &handles[*index]).collect();
            let request = ack::request(&self.0.config.group, &broker, &batch);
            let acked = self.call_broker(&handles[first], request, deadline).await;
            let acked = acked.and_then(|answer| ack::accepted(&answer));
            for index in these {
                results[index] = acked.clone();
            }
        }
        results
    }

    /// Hides a message for `for_time` from now. The handle that comes back acks it from then on; the old one is dead.
    /// Leave it alone within 3 s of the end: an expired handle yields one more redelivery.
    ///
    /// # Errors
    /// [`MqError`].
    pub async fn change_invisible(
        &self,
        handle: &Handle,
        for_time: Duration,
        deadline: Instant,
    ) -> Result<Handle, MqError> {
        let request = ack::change_invisible_request(&self.0.config.group, handle, for_time);
        ack::changed_handle(&self.call_broker(handle, request, deadline).await?, handle)
    }

    async fn call_broker(
        &self,
        handle: &Handle,
        request: Request,
        deadline: Instant,
    ) -> Result<super::frame::Frame, MqError> {
        let route = self.route(&handle.topic, deadline).await?;
        let addr = route.master(&handle.broker).ok_or_else(|| MqError::NoRoute(handle.topic.to_string()))?;
        self.call(addr, Lane::Receive, request, deadline).await
    }

    /// Every queue of `topic` that can be read.
    ///
    /// # Errors
    /// [`MqError`].
    pub async fn queues(&self, topic: &str, deadline: Instant) -> Result<Vec<Place>, MqError> {
        Ok(self.route(topic, deadline).await?.readable_queues())
    }

    /// Reads up to `max` (32) messages of a queue from `offset` on. Nothing is consumed, nothing is hidden from anybody.
    ///
    /// # Errors
    /// [`MqError`].
    pub async fn pull(
        &self,
        topic: &str,
        queue: &Place,
        offset: u64,
        max: u32,
        deadline: Instant,
    ) -> Result<Page, MqError> {
        let request = pull::request(&self.0.config.group, topic, queue.queue, offset, max);
        pull::page(&self.call(&queue.addr, Lane::Receive, request, deadline).await?)
    }

    /// Messages of `topic` that no consumer of the group has popped yet. What is popped and not acked does not count.
    ///
    /// # Errors
    /// [`MqError`]; a group that never popped counts as none waiting only when every broker says so.
    pub async fn lag(&self, topic: &str, deadline: Instant) -> Result<u64, MqError> {
        let places = self.route(topic, deadline).await?.readable();
        let mut lag = 0;
        for place in places {
            let ext = vec![("consumerGroup", self.0.config.group.clone()), ("topic", topic.to_owned())];
            let request = Request::new(code::GET_CONSUME_STATS, ext);
            let answer = self.call(&place.addr, Lane::Receive, request, deadline).await?;
            ack::accepted(&answer)?;
            lag += waiting(&answer.body).ok_or(MqError::Answer("consume statistics that cannot be read"))?;
        }
        Ok(lag)
    }
}

/// The sum of `brokerOffset - consumerOffset`. The table has objects as keys, which is no JSON: only the values are read.
fn waiting(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?;
    let numbers = |name: &str| {
        let name = format!("\"{name}\":");
        let parts: Vec<i64> = text
            .split(name.as_str())
            .skip(1)
            .map(|rest| rest.split([',', '}']).next().unwrap_or_default().parse().unwrap_or(-1))
            .collect();
        parts
    };
    let (stored, consumed) = (numbers("brokerOffset"), numbers("consumerOffset"));
    if stored.len() != consumed.len() {
        return None;
    }
    let behind = stored.iter().zip(&consumed).map(|(stored, consumed)| u64::try_from(stored - consumed).unwrap_or(0));
    Some(behind.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_is_read_from_a_table_with_objects_as_keys() {
        let body = br#"{"consumeTps":0.0,"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:{"brokerOffset":3,"consumerOffset":1,"lastTimestamp":5,"pullOffset":3},{"brokerName":"a","queueId":1,"topic":"t"}:{"brokerOffset":7,"consumerOffset":7,"lastTimestamp":0,"pullOffset":7}}}"#;
        assert_eq!(waiting(body), Some(2));
        assert_eq!(waiting(br#"{"consumeTps":0.0,"offsetTable":{}}"#), Some(0));
        assert_eq!(waiting(br#"{"brokerOffset":3}"#), None);
    }
}

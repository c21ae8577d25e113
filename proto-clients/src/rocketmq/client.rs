//! The client of one shard: routes, connections, sends.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use shards::sync::Notify;

use super::frame::{Frame, Request};
use super::link::Link;
use super::route::{self, Place, Route};
use super::send::{self, Outgoing, SendOutcome};
use super::{AccessKey, MqError, ack, code};
use crate::dial::spread;

/// Queues tried for one send before it is given up as not stored.
const SEND_TRIES: u32 = 3;
/// Pause before the second try of a send; doubled for the third.
const SEND_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a dial that failed.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// A route that was found stale is not asked for again sooner than this.
const ROUTE_PAUSE: Duration = Duration::from_millis(500);
/// Longest question to a name server.
const ROUTE_CALL: Duration = Duration::from_secs(3);

/// How a client is set up.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `host:port` of each name server; they are asked in turn.
    pub name_servers: Vec<String>,
    /// Producer and consumer group.
    pub group: String,
    /// Tells this client from others of the group.
    pub client_id: String,
    /// Credentials, where the brokers check them.
    pub access: Option<AccessKey>,
    /// Requests without an answer on one connection.
    pub in_flight_max: usize,
    /// Longest dial.
    pub dial_timeout: Duration,
    /// How long a route is believed.
    pub route_refresh: Duration,
    /// How often an idle connection says something; the server closes it after 120 s of silence.
    pub heartbeat_every: Duration,
    /// Longest frame taken.
    pub frame_bytes_max: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            name_servers: Vec::new(),
            group: String::new(),
            client_id: String::new(),
            access: None,
            in_flight_max: 512,
            dial_timeout: Duration::from_secs(3),
            route_refresh: Duration::from_secs(30),
            heartbeat_every: Duration::from_secs(30),
            frame_bytes_max: 16 << 20,
        }
    }
}

/// What a client is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Open connections.
    pub connections: usize,
    /// Requests without an answer.
    pub in_flight: usize,
    /// Connections ever opened.
    pub opened_total: u64,
    /// Answers that came after their caller had left.
    pub late_total: u64,
}

/// Connections are kept apart by what travels on them: a pop's large answer must not hold up a send's small one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Send,
    Receive,
    NameServer,
}

/// A client of one shard. Cloning shares it.
#[derive(Clone)]
pub struct Client(pub(super) Rc<Inner>);

pub(super) struct Inner {
    pub(super) config: ClientConfig,
    links: RefCell<HashMap<(String, Lane), Rc<Slot>>>,
    routes: RefCell<HashMap<String, Rc<Known>>>,
    turn: Cell<usize>,
    closed: Cell<bool>,
    opened: Cell<u64>,
}

/// The connection to one server for one lane.
struct Slot {
    link: RefCell<Option<Rc<Link>>>,
    dialling: Cell<bool>,
    changed: Notify,
    failure: RefCell<Option<(Instant, MqError)>>,
}

/// What is known of a topic.
struct Known {
    route: RefCell<Rc<Route>>,
    asked_at: Cell<Option<Instant>>,
    asking: Cell<bool>,
    changed: Notify,
    stale: Cell<bool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("group", &self.0.config.group).field("stats", &self.stats()).finish()
    }
}

impl Drop for Inner {
    /// A client that is let go without [`Client::close`] leaves no connection behind.
    fn drop(&mut self) {
        self.end_links();
    }
}

impl Inner {
    fn end_links(&self) {
        for slot in self.links.take().into_values() {
            if let Some(link) = slot.link.take() {
                link.end(&MqError::ConnectionLost);
            }
        }
    }
}

impl Client {
    /// A client; it connects when the first call comes.
    pub fn new(config: ClientConfig) -> Self {
        Self(Rc::new(Inner {
            config,
            links: RefCell::default(),
            routes: RefCell::default(),
            turn: Cell::new(usize::try_from(shards::random_u64() >> 32).unwrap_or(0)),
            closed: Cell::new(false),
            opened: Cell::new(0),
        }))
    }

    /// Asks for the route of `topic` and connects to its brokers, so that the first call need not.
    ///
    /// # Errors
    /// [`MqError`] of what could not be reached; calls try again by themselves.
    pub async fn warm_up(&self, topic: &str, deadline: Instant) -> Result<(), MqError> {
        for place in self.route(topic, deadline).await?.readable() {
            for lane in [Lane::Send, Lane::Receive] {
                self.link(&place.addr, lane, deadline).await?;
            }
        }
        Ok(())
    }

    /// Stores messages in one queue of `topic`, all or none. Another queue, and another broker, is tried while it is certain
    /// that nothing was stored.
    pub async fn send(&self, topic: &str, messages: &[Outgoing], deadline: Instant) -> SendOutcome {
        let (mut failure, mut pause) = (MqError::NotSent, SEND_PAUSE);
        let mut avoid: Option<String> = None;
        for attempt in 0..SEND_TRIES {
            if attempt > 0 {
                if shards::now() + pause >= deadline {
                    break;
                }
                shards::sleep(spread(pause, 2)).await;
                pause *= 2;
            }
            let place = match self.writable(topic, avoid.as_deref(), deadline).await {
                Ok(place) => place,
                Err(error) => return SendOutcome::NotStored(error),
            };
            match self.send_to(&place, topic, messages, deadline).await {
                SendOutcome::NotStored(error) if error.retryable() => failure = error,
                outcome => return outcome,
            }
            avoid = Some(place.broker);
        }
        SendOutcome::NotStored(failure)
    }

    async fn send_to(&self, place: &Place, topic: &str, messages: &[Outgoing], deadline: Instant) -> SendOutcome {
        let now_ms = shards::unix_micros() / 1_000;
        let request = match send::request(&self.0.config.group, topic, place.queue, messages, now_ms) {
            Ok(request) => request,
            Err(error) => return SendOutcome::NotStored(error),
        };
        match self.call(&place.addr, Lane::Send, request, deadline).await {
            Ok(answer) => {
                let outcome = send::outcome(&answer);
                if let SendOutcome::NotStored(error) = &outcome
                    && error.route_is_stale()
                {
                    self.route_is_stale(topic);
                }
                outcome
            }
            Err(error) => {
                if error.route_is_stale() {
                    self.route_is_stale(topic);
                }
                if error.outcome_unknown() { SendOutcome::Unknown(error) } else { SendOutcome::NotStored(error) }
            }
        }
    }

    /// Makes a topic on every master that has topic `beside`, or changes it to this.
    ///
    /// # Errors
    /// [`MqError`] of the first broker that refuses.
    pub async fn create_topic(&self, topic: &str, queues: u32, beside: &str, deadline: Instant) -> Result<(), MqError> {
        let brokers = self.route(beside, deadline).await?;
        let mut made = false;
        for place in brokers.readable() {
            let ext = vec![
                ("topic", topic.to_owned()),
                ("defaultTopic", "TBW102".to_owned()),
                ("readQueueNums", queues.to_string()),
                ("writeQueueNums", queues.to_string()),
                ("perm", "6".to_owned()),
                ("topicFilterType", "SINGLE_TAG".to_owned()),
                ("topicSysFlag", "0".to_owned()),
                ("order", "false".to_owned()),
            ];
            let request = Request::new(code::CREATE_TOPIC, ext);
            ack::accepted(&self.call(&place.addr, Lane::Send, request, deadline).await?)?;
            made = true;
        }
        self.route_is_stale(topic);
        if made { Ok(()) } else { Err(MqError::NoRoute(topic.to_owned())) }
    }

    /// The next queue to write to, not on broker `avoid` where there is a choice.
    async fn writable(&self, topic: &str, avoid: Option<&str>, deadline: Instant) -> Result<Place, MqError> {
        let places = self.route(topic, deadline).await?.writable();
        let others: Vec<&Place> = places.iter().filter(|place| Some(place.broker.as_str()) != avoid).collect();
        let all: Vec<&Place> = places.iter().collect();
        let choice = if others.is_empty() { all } else { others };
        let turn = self.next_turn();
        choice
            .get(turn % choice.len().max(1))
            .map(|place| (*place).clone())
            .ok_or_else(|| MqError::NoRoute(topic.to_owned()))
    }

    pub(super) fn next_turn(&self) -> usize {
        let turn = self.0.turn.get();
        self.0.turn.set(turn.wrapping_add(1));
        turn
    }

    /// A request to a server, signed where credentials are set.
    pub(super) async fn call(
        &self,
        addr: &str,
        lane: Lane,
        mut request: Request,
        deadline: Instant,
    ) -> Result<Frame, MqError> {
        if let (Some(access), Lane::Send | Lane::Receive) = (&self.0.config.access, lane) {
            access.sign(&mut request);
        }
        let mut again = true;
        loop {
            let link = self.link(addr, lane, deadline).await?;
            let answer = link.call(&request, deadline).await?;
            if answer.code == code::GO_AWAY && std::mem::take(&mut again) {
                // Refused before it was looked at: the server shuts down, or wants its connections spread anew.
                self.forget(addr, lane, &link);
                continue;
            }
            return Ok(answer);
        }
    }

    /// Takes a connection out of use; what is in flight on it may finish.
    fn forget(&self, addr: &str, lane: Lane, link: &Rc<Link>) {
        let slot = self.0.links.borrow().get(&(addr.to_owned(), lane)).cloned();
        if let Some(slot) = slot {
            slot.link.borrow_mut().take_if(|known| Rc::ptr_eq(known, link));
        }
        let link = link.clone();
        shards::spawn(async move {
            shards::sleep(Duration::from_secs(3)).await;
            link.end(&MqError::ConnectionLost);
        });
    }

    async fn link(&self, addr: &str, lane: Lane, deadline: Instant) -> Result<Rc<Link>, MqError> {
        let slot = self.slot(addr, lane);
        loop {
            if self.0.closed.get() {
                return Err(MqError::Closed);
            }
            if let Some(link) = slot.link.borrow().as_ref().filter(|link| !link.has_ended()) {
                return Ok(link.clone());
            }
            if shards::now() >= deadline {
                return Err(MqError::NotSent);
            }
            if !slot.dialling.get() {
                if let Some((until, failure)) = slot.failure.borrow().as_ref()
                    && shards::now() < *until
                {
                    return Err(failure.clone());
                }
                slot.dialling.set(true);
                let (client, slot, addr) = (self.clone(), slot.clone(), addr.to_owned());
                shards::spawn(async move { client.dial(&slot, &addr, lane).await });
            }
            // A deadline that strikes here is seen at the top of the loop.
            let _ = shards::timeout_at(deadline, slot.changed.notified()).await;
        }
    }

    fn slot(&self, addr: &str, lane: Lane) -> Rc<Slot> {
        let mut links = self.0.links.borrow_mut();
        let slot = links.entry((addr.to_owned(), lane)).or_insert_with(|| {
            Rc::new(Slot {
                link: RefCell::default(),
                dialling: Cell::new(false),
                changed: Notify::new(),
                failure: RefCell::default(),
            })
        });
        slot.clone()
    }

    async fn dial(&self, slot: &Slot, addr: &str, lane: Lane) {
        let config = &self.0.config;
        let deadline = shards::now() + config.dial_timeout;
        let opened = Link::open(addr, config.in_flight_max, config.frame_bytes_max, deadline).await;
        slot.dialling.set(false);
        match opened {
            Ok(link) if self.0.closed.get() => link.end(&MqError::ConnectionLost),
            Ok(link) => {
                self.0.opened.set(self.0.opened.get() + 1);
                *slot.failure.borrow_mut() = None;
                if lane != Lane::NameServer {
                    shards::spawn(link.clone().keep_alive(config.heartbeat_every, self.heartbeat()));
                }
                *slot.link.borrow_mut() = Some(link);
            }
            Err(error) => *slot.failure.borrow_mut() = Some((shards::now() + spread(DIAL_PAUSE, 2), error)),
        }
        slot.changed.notify_all();
    }

    fn heartbeat(&self) -> Request {
        let config = &self.0.config;
        let body = serde_json::json!({
            "clientID": config.client_id, "producerDataSet": [{ "groupName": config.group }], "consumerDataSet": [],
        });
        let mut request = Request { body: body.to_string().into(), ..Request::new(code::HEART_BEAT, Vec::new()) };
        if let Some(access) = &config.access {
            access.sign(&mut request);
        }
        request
    }

    /// Where a topic lives. A route that was known stays in use while the name servers cannot be asked.
    pub(super) async fn route(&self, topic: &str, deadline: Instant) -> Result<Rc<Route>, MqError> {
        let known = self.known(topic);
        loop {
            let age = known.asked_at.get().map(|at| shards::now() - at);
            let old = age.is_none_or(|age| age > self.0.config.route_refresh);
            let doubted = known.stale.get() && age.is_none_or(|age| age > ROUTE_PAUSE);
            if (old || doubted) && !known.asking.get() {
                known.asking.set(true);
                let (client, known, topic) = (self.clone(), known.clone(), topic.to_owned());
                shards::spawn(async move { client.ask(&known, &topic).await });
            }
            if !known.route.borrow().queues.is_empty() {
                return Ok(known.route.borrow().clone());
            }
            if !known.asking.get() {
                return Err(MqError::NoRoute(topic.to_owned()));
            }
            if shards::timeout_at(deadline, known.changed.notified()).await.is_err() {
                return Err(MqError::NotSent);
            }
        }
    }

    fn known(&self, topic: &str) -> Rc<Known> {
        let mut routes = self.0.routes.borrow_mut();
        let known = routes.entry(topic.to_owned()).or_insert_with(|| {
            Rc::new(Known {
                route: RefCell::default(),
                asked_at: Cell::new(None),
                asking: Cell::new(false),
                changed: Notify::new(),
                stale: Cell::new(false),
            })
        });
        known.clone()
    }

    pub(super) fn route_is_stale(&self, topic: &str) {
        self.known(topic).stale.set(true);
    }

    /// Asks the name servers in turn until one knows the topic.
    async fn ask(&self, known: &Known, topic: &str) {
        for server in &self.0.config.name_servers {
            let deadline = shards::now() + ROUTE_CALL;
            let answer = self.call(server, Lane::NameServer, route::request(topic), deadline).await;
            let found = answer.ok().filter(|answer| answer.code == code::SUCCESS);
            let found = found.and_then(|answer| Route::parse(&answer.body)).filter(|route| !route.queues.is_empty());
            if let Some(found) = found {
                *known.route.borrow_mut() = Rc::new(found);
                known.stale.set(false);
                break;
            }
        }
        known.asked_at.set(Some(shards::now()));
        known.asking.set(false);
        known.changed.notify_all();
    }

    /// Takes no more calls and closes the connections. What is in flight is lost, so end its callers first.
    pub async fn close(&self) {
        self.0.closed.set(true);
        self.0.end_links();
    }

    /// What it is doing.
    pub fn stats(&self) -> ClientStats {
        let mut stats = ClientStats { opened_total: self.0.opened.get(), ..ClientStats::default() };
        for slot in self.0.links.borrow().values() {
            if let Some(link) = slot.link.borrow().as_ref() {
                stats.connections += usize::from(!link.has_ended());
                stats.in_flight += link.in_flight();
                stats.late_total += link.late();
            }
        }
        stats
    }
}

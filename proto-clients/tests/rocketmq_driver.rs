//! The RocketMQ driver against a broker that misbehaves on purpose.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

mod ports;

use bytes::{Bytes, BytesMut};
use proto_clients::rocketmq::frame::{self, Frame};
use proto_clients::rocketmq::{Client, ClientConfig, MqError, Outgoing, SendOutcome, code};
use serde_json::json;
use shards::net::{ListenOptions, TcpListener, WriteHalf};

/// What the broker does with a send.
#[derive(Clone, Copy)]
enum Act {
    Store,
    /// Answers this code.
    Refuse(i32),
    /// Says nothing.
    Silence,
    /// Answers after the caller has given up.
    Late(Duration),
    /// Closes without a word.
    Cut,
    /// Sends bytes that are no frame.
    Garbage,
    /// Asks the client something first.
    AskFirst,
}

struct Broker {
    port: Cell<u16>,
    acts: RefCell<VecDeque<Act>>,
    sends: Cell<usize>,
    connections: Cell<usize>,
    answered_us: RefCell<Vec<i32>>,
}

fn encode(code: i32, flag: i32, opaque: i32, ext: serde_json::Value, body: &[u8]) -> BytesMut {
    let header = json!({ "code": code, "flag": flag, "opaque": opaque, "extFields": ext }).to_string();
    let mut out = BytesMut::new();
    out.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body);
    out
}

impl Broker {
    /// Name server and broker on one port.
    fn start(acts: &[Act]) -> Rc<Self> {
        let listener = TcpListener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
        let broker = Rc::new(Self {
            port: Cell::new(listener.local_addr().unwrap().port()),
            acts: RefCell::new(acts.iter().copied().collect()),
            sends: Cell::new(0),
            connections: Cell::new(0),
            answered_us: RefCell::default(),
        });
        let accepting = broker.clone();
        shards::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepting.connections.set(accepting.connections.get() + 1);
                let (mut read, mut write) = stream.into_split();
                let broker = accepting.clone();
                shards::spawn(async move {
                    let mut buffer = BytesMut::with_capacity(4096);
                    loop {
                        while let Some(frame) = frame::next(&mut buffer, 1 << 20).unwrap() {
                            if !broker.on(frame, &mut write).await {
                                return;
                            }
                        }
                        buffer.reserve(4096);
                        let (result, back) = read.read(buffer).await;
                        buffer = back;
                        if !matches!(result, Ok(1..)) {
                            return;
                        }
                    }
                });
            }
        });
        broker
    }

    fn route(&self) -> Bytes {
        json!({
            "brokerDatas": [{ "brokerName": "b", "brokerAddrs": { "0": format!("127.0.0.1:{}", self.port.get()) } }],
            "queueDatas": [{ "brokerName": "b", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2 }],
        })
        .to_string()
        .into()
    }

    async fn on(&self, frame: Frame, write: &mut WriteHalf) -> bool {
        if frame.is_response() {
            self.answered_us.borrow_mut().push(frame.code);
            return true;
        }
        let stored = || encode(0, 1, frame.opaque, json!({ "msgId": "A", "queueId": "0", "queueOffset": "7" }), b"");
        let answers = match frame.code {
            code::GET_ROUTE => vec![encode(0, 1, frame.opaque, json!({}), &self.route())],
            code::SEND_MESSAGE_V2 => {
                self.sends.set(self.sends.get() + 1);
                let act = self.acts.borrow_mut().pop_front().unwrap_or(Act::Store);
                match act {
                    Act::Store => vec![stored()],
                    Act::Refuse(code) => vec![encode(code, 1, frame.opaque, json!({}), b"")],
                    Act::Silence => vec![],
                    Act::Late(after) => {
                        shards::sleep(after).await;
                        vec![stored()]
                    }
                    Act::Cut => return false,
                    Act::Garbage => vec![BytesMut::from(&[0xff; 16][..])],
                    Act::AskFirst => vec![
                        encode(40, 2, 900, json!({ "consumerGroup": "g" }), b""),
                        encode(307, 0, 901, json!({}), b""),
                        stored(),
                    ],
                }
            }
            _ => vec![encode(0, 1, frame.opaque, json!({}), b"")],
        };
        for answer in answers {
            let (written, _) = write.write_all(answer).await;
            if written.is_err() {
                return false;
            }
        }
        true
    }
}

fn client(broker: &Broker) -> Client {
    Client::new(ClientConfig {
        name_servers: vec![format!("127.0.0.1:{}", broker.port.get())],
        group: "g".to_owned(),
        ..ClientConfig::default()
    })
}

fn within(millis: u64) -> Instant {
    shards::now() + Duration::from_millis(millis)
}

async fn send(client: &Client, deadline: Instant) -> SendOutcome {
    let message = Outgoing { body: "x".into(), tag: String::new(), keys: String::new(), properties: Vec::new() };
    client.send("t", &[message], deadline).await
}

#[test]
fn a_refusal_is_tried_again_and_an_unknown_outcome_never_is() {
    shards::run(async {
        let broker = Broker::start(&[Act::Refuse(2), Act::Refuse(14), Act::Store]);
        let stored = send(&client(&broker), within(2_000)).await;
        assert!(matches!(stored, SendOutcome::Stored(_)), "{stored:?}");
        assert_eq!(broker.sends.get(), 3);

        for (act, error) in [(Act::Silence, MqError::Timeout), (Act::Cut, MqError::ConnectionLost)] {
            let broker = Broker::start(&[act]);
            let unknown = send(&client(&broker), within(300)).await;
            assert_eq!(unknown, SendOutcome::Unknown(error));
            assert_eq!(broker.sends.get(), 1);
        }
        let broker = Broker::start(&[Act::Garbage]);
        let unknown = send(&client(&broker), within(300)).await;
        assert!(matches!(unknown, SendOutcome::Unknown(MqError::Protocol(_))), "{unknown:?}");

        let broker = Broker::start(&[Act::Refuse(13)]);
        let refused = send(&client(&broker), within(300)).await;
        assert!(matches!(refused, SendOutcome::NotStored(MqError::Code { code: 13, .. })), "{refused:?}");
        assert_eq!(broker.sends.get(), 1, "what is wrong stays wrong");
    });
}

#[test]
fn a_late_answer_reaches_nobody_and_the_connection_lives_on() {
    shards::run(async {
        let broker = Broker::start(&[Act::Late(Duration::from_millis(120)), Act::Store]);
        let client = client(&broker);
        assert_eq!(send(&client, within(60)).await, SendOutcome::Unknown(MqError::Timeout));
        let stored = send(&client, within(2_000)).await;
        assert!(matches!(stored, SendOutcome::Stored(_)), "{stored:?}");
        assert_eq!((client.stats().late_total, client.stats().opened_total), (1, 2));
    });
}

#[test]
fn go_away_is_followed_by_a_new_connection_and_the_same_request() {
    shards::run(async {
        let broker = Broker::start(&[Act::Refuse(code::GO_AWAY), Act::Store]);
        let client = client(&broker);
        let stored = send(&client, within(2_000)).await;
        assert!(matches!(stored, SendOutcome::Stored(_)), "{stored:?}");
        assert_eq!(client.stats().opened_total, 3);
    });
}

#[test]
fn questions_of_the_broker_are_answered_and_disturb_nothing() {
    shards::run(async {
        let broker = Broker::start(&[Act::AskFirst]);
        let client = client(&broker);
        let stored = send(&client, within(2_000)).await;
        assert!(matches!(stored, SendOutcome::Stored(_)), "{stored:?}");
        shards::sleep(Duration::from_millis(50)).await;
        assert_eq!(*broker.answered_us.borrow(), [code::NOT_SUPPORTED]);
    });
}

#[test]
fn callers_that_leave_free_their_place() {
    shards::run(async {
        let acts = vec![Act::Silence; 20];
        let broker = Broker::start(&acts);
        let client = client(&broker);
        for _ in 0..20 {
            let gone = shards::timeout(Duration::from_millis(10), send(&client, within(5_000))).await;
            assert!(gone.is_err());
        }
        assert_eq!(client.stats().in_flight, 0);
        assert!(matches!(send(&client, within(2_000)).await, SendOutcome::Stored(_)));
    });
}

#[test]
fn a_broker_that_is_down_is_not_stored_and_is_found_again() {
    shards::run(async {
        let broker = Broker::start(&[]);
        let dead = ports::unused();
        let client = client(&broker);
        let alive = broker.port.replace(dead);
        let down = send(&client, within(400)).await;
        assert!(matches!(down, SendOutcome::NotStored(_)), "{down:?}");
        broker.port.set(alive);
        let end = within(5_000);
        while !matches!(send(&client, within(400)).await, SendOutcome::Stored(_)) {
            assert!(shards::now() < end, "the new route is not found");
            shards::sleep(Duration::from_millis(50)).await;
        }
    });
}

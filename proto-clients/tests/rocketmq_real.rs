//! The RocketMQ client on the real name server and broker of `tests/stack`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto_clients::rocketmq::{Client, ClientConfig, MqError, Outgoing, Popped, SendOutcome, SendResult};

const GROUP: &str = "seckill-order-create-v1";
const BESIDE: &str = "seckill-order-events";
const POLL: Duration = Duration::from_millis(1_000);

fn soon() -> Instant {
    shards::now() + Duration::from_secs(10)
}

fn client() -> Client {
    let name_server = std::env::var("SECKILL_TEST_NAMESRV")
        .expect("SECKILL_TEST_NAMESRV is not set: run `tests/run services`, or eval \"$(tests/stack env)\"");
    Client::new(ClientConfig {
        name_servers: vec!["127.0.0.1:1".to_owned(), name_server],
        group: GROUP.to_owned(),
        client_id: format!("test@{}", std::process::id()),
        ..ClientConfig::default()
    })
}

/// A topic that no other test uses.
async fn topic(client: &Client, queues: u32) -> String {
    let topic = format!("client-test-{:x}", shards::random_u64());
    client.create_topic(&topic, queues, BESIDE, soon()).await.unwrap();
    topic
}

fn message(body: impl Into<Bytes>) -> Outgoing {
    Outgoing {
        body: body.into(),
        tag: "TAG".to_owned(),
        keys: "key".to_owned(),
        properties: vec![("own".to_owned(), "value".to_owned())],
    }
}

async fn stored(client: &Client, topic: &str, messages: &[Outgoing]) -> SendResult {
    match client.send(topic, messages, soon()).await {
        SendOutcome::Stored(result) => result,
        other => panic!("{other:?}"),
    }
}

async fn pop(client: &Client, topic: &str, invisible: Duration) -> Vec<Popped> {
    client.pop(topic, 32, invisible, POLL, shards::now() + POLL + Duration::from_secs(5)).await.unwrap()
}

/// Pops until `count` messages have come.
async fn pop_all(client: &Client, topic: &str, count: usize, invisible: Duration) -> Vec<Popped> {
    let (mut all, end) = (Vec::new(), shards::now() + Duration::from_secs(40));
    while all.len() < count {
        assert!(shards::now() < end, "only {} of {count} messages came", all.len());
        all.extend(pop(client, topic, invisible).await);
    }
    all
}

#[test]
#[ignore = "needs tests/stack"]
fn what_is_sent_is_popped_whole_and_acked() {
    shards::run(async {
        let client = client();
        let topic = topic(&client, 4).await;
        let single = stored(&client, &topic, &[message("one")]).await;
        assert_eq!((single.message_ids.len(), single.durability_in_doubt), (1, false));
        let batch: Vec<Outgoing> = (0..64).map(|index| message(format!("batch {index}"))).collect();
        assert_eq!(stored(&client, &topic, &batch).await.message_ids.len(), 64);
        let large = Bytes::from(vec![b'x'; 1 << 20]);
        stored(&client, &topic, &[message(large.clone())]).await;

        let popped = pop_all(&client, &topic, 66, Duration::from_secs(60)).await;
        let bodies: HashSet<&[u8]> = popped.iter().map(|message| message.body.as_ref()).collect();
        assert_eq!(bodies.len(), 66);
        assert!(bodies.contains(b"batch 63".as_slice()) && bodies.contains(large.as_ref()));
        for message in &popped {
            assert_eq!((message.attempt, message.tag.as_str(), message.keys.as_deref()), (1, "TAG", Some("key")));
            assert!(message.properties.contains(&("own".to_owned(), "value".to_owned())));
        }
        let handles: Vec<_> = popped.iter().map(|message| message.handle.clone()).collect();
        for _ in 0..2 {
            let acked = client.ack(&handles, soon()).await;
            assert!(acked.iter().all(Result::is_ok), "{acked:?}");
        }
        assert!(pop(&client, &topic, Duration::from_secs(60)).await.is_empty());
        client.close().await;
    });
}

#[test]
#[ignore = "needs tests/stack"]
fn what_is_not_acked_comes_again_and_what_is_hidden_stays_away() {
    shards::run(async {
        let client = client();
        let topic = topic(&client, 1).await;
        let batch: Vec<Outgoing> = ["acked", "dropped", "hidden"].into_iter().map(message).collect();
        stored(&client, &topic, &batch).await;
        let popped = pop_all(&client, &topic, 3, Duration::from_secs(5)).await;
        let handle = |body: &str| popped.iter().find(|message| message.body == body).unwrap().handle.clone();
        assert_eq!(client.ack(&[handle("acked")], soon()).await, [Ok(())]);
        let hidden = client.change_invisible(&handle("hidden"), Duration::from_secs(60), soon()).await.unwrap();
        assert_ne!(hidden, handle("hidden"));

        let again = pop_all(&client, &topic, 1, Duration::from_secs(60)).await;
        assert_eq!((again[0].body.as_ref(), again[0].attempt), (b"dropped".as_slice(), 2));
        assert_eq!(again[0].topic.as_ref(), topic.as_str());
        let acked = client.ack(&[again[0].handle.clone(), hidden], soon()).await;
        assert_eq!(acked, [Ok(()), Ok(())]);
        client.close().await;
    });
}

#[test]
#[ignore = "needs tests/stack"]
fn a_queue_is_read_by_offset_and_nothing_is_consumed() {
    shards::run(async {
        let client = client();
        let topic = topic(&client, 1).await;
        for number in 0..40u8 {
            stored(&client, &topic, &[message(vec![number])]).await;
        }
        let queues = client.queues(&topic, soon()).await.unwrap();
        assert_eq!(queues.len(), 1);
        let (mut read, mut offset) = (Vec::new(), 0);
        loop {
            let page = client.pull(&topic, &queues[0], offset, 32, soon()).await.unwrap();
            read.extend(page.records.iter().map(|record| record.body[0]));
            if page.next >= page.max {
                break;
            }
            offset = page.next;
        }
        assert_eq!(read, (0..40).collect::<Vec<u8>>());
        let beyond = client.pull(&topic, &queues[0], 1_000, 32, soon()).await.unwrap();
        assert!(beyond.records.is_empty() && beyond.max == 40, "{beyond:?}");
        // All of it is still there for a consumer.
        let popped = pop_all(&client, &topic, 40, Duration::from_secs(20)).await;
        assert_eq!(popped.len(), 40);
        client.close().await;
    });
}

#[test]
#[ignore = "needs tests/stack"]
fn the_backlog_is_counted() {
    shards::run(async {
        let client = client();
        let topic = topic(&client, 2).await;
        stored(&client, &topic, &[message("first")]).await;
        let first = pop_all(&client, &topic, 1, Duration::from_secs(60)).await;
        assert_eq!(client.ack(&[first[0].handle.clone()], soon()).await, [Ok(())]);
        for _ in 0..3 {
            stored(&client, &topic, &[message("x"), message("y")]).await;
        }
        let end = soon();
        while client.lag(&topic, soon()).await.unwrap() != 6 {
            assert!(shards::now() < end, "{:?}", client.lag(&topic, soon()).await);
            shards::sleep(Duration::from_millis(50)).await;
        }
        client.close().await;
    });
}

#[test]
#[ignore = "needs tests/stack"]
fn what_cannot_be_stored_says_so_and_is_not_unknown() {
    shards::run(async {
        let client = client();
        let nowhere = client.send("no-such-topic", &[message("x")], soon()).await;
        assert!(matches!(nowhere, SendOutcome::NotStored(MqError::NoRoute(_))), "{nowhere:?}");
        let empty = client.send(BESIDE, &[message("")], soon()).await;
        assert!(matches!(empty, SendOutcome::NotStored(MqError::Invalid(_))), "{empty:?}");
        let late = client.send(BESIDE, &[message("x")], shards::now()).await;
        assert!(matches!(late, SendOutcome::NotStored(_)), "{late:?}");
        client.close().await;
        let closed = client.send(BESIDE, &[message("x")], soon()).await;
        assert!(matches!(closed, SendOutcome::NotStored(_)), "{closed:?}");
    });
}

#[test]
#[ignore = "needs tests/stack"]
fn many_senders_share_a_connection() {
    shards::run(async {
        let client = client();
        let topic = topic(&client, 8).await;
        let senders: Vec<_> = (0..200)
            .map(|index| {
                let (client, topic) = (client.clone(), topic.clone());
                shards::spawn(async move { stored(&client, &topic, &[message(format!("m{index}"))]).await })
            })
            .collect();
        let mut ids = HashSet::new();
        for sender in senders {
            ids.extend(sender.await.unwrap().message_ids);
        }
        assert_eq!(ids.len(), 200);
        // One to the name server, one to the broker for sends.
        assert_eq!(client.stats().opened_total, 2);
        client.close().await;
    });
}

//! Behaviour every backend and driver must show.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use shards::net::{ListenOptions, TcpListener, TcpStream};
use shards::sync::{Gate, Notify, Queue, oneshot};
use shards::{DriverChoice, ShardConfig, Shards};

fn on_each_driver(test: impl AsyncFn()) {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let config = ShardConfig { driver, ..ShardConfig::default() };
        shards::run_with(&config, test()).expect("driver");
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn spawned_tasks_run_and_panics_are_reported() {
    on_each_driver(async || {
        assert_eq!(shards::spawn(async { 7 }).await, Ok(7));
        let panicked = shards::spawn(async { panic!("expected by this test") }).await;
        assert_eq!(panicked.unwrap_err().message(), "expected by this test");
    });
}

#[test]
fn yield_lets_others_run() {
    on_each_driver(async || {
        let log = Rc::new(RefCell::new(Vec::new()));
        let other = Rc::clone(&log);
        let handle = shards::spawn(async move {
            for _ in 0..3 {
                other.borrow_mut().push('b');
                shards::yield_now().await;
            }
        });
        for _ in 0..3 {
            log.borrow_mut().push('a');
            shards::yield_now().await;
        }
        handle.await.unwrap();
        assert_eq!(log.borrow().iter().collect::<String>(), "ababab");
    });
}

#[test]
fn timeouts_fire() {
    on_each_driver(async || {
        let start = shards::now();
        let result = shards::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
        assert!(result.is_err());
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(shards::timeout(Duration::from_secs(9), async { 1 }).await, Ok(1));
    });
}

async fn echo_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(any_port(), &ListenOptions::default())?;
    let addr = listener.local_addr()?;
    let client = shards::spawn(TcpStream::connect(addr));
    let (server, _) = listener.accept().await?;
    Ok((client.await.unwrap()?, server))
}

#[test]
fn bytes_cross_a_connection() {
    on_each_driver(async || {
        let (client, server) = echo_pair().await.unwrap();
        let (mut read, _keep) = server.into_split();
        let (_keep2, mut write) = client.into_split();
        let (result, _) = write.write_all(BytesMut::from(&b"hello"[..])).await;
        result.unwrap();
        write.shutdown().await.unwrap();
        let mut buf = BytesMut::from(&b">"[..]);
        loop {
            buf.reserve(64);
            let (result, back) = read.read(buf).await;
            buf = back;
            if result.unwrap() == 0 {
                break;
            }
        }
        assert_eq!(&buf[..], b">hello");
    });
}

#[test]
fn closer_wakes_a_pending_read() {
    on_each_driver(async || {
        let (client, _server) = echo_pair().await.unwrap();
        let (mut read, write) = client.into_split();
        let closer = write.closer();
        let reader = shards::spawn(async move { read.read(BytesMut::with_capacity(8)).await.0 });
        shards::sleep(Duration::from_millis(5)).await;
        closer.close();
        assert_eq!(reader.await.unwrap().unwrap(), 0);
        drop(write);
        closer.close();
    });
}

#[test]
fn sync_primitives_wake() {
    on_each_driver(async || {
        let (tx, rx) = oneshot::channel();
        shards::spawn(async move { tx.send(3) });
        assert_eq!(rx.await, Ok(3));

        let notify = Rc::new(Notify::new());
        notify.notify_one();
        notify.notified().await;

        let queue = Rc::new(Queue::new(1));
        let producer = Rc::clone(&queue);
        shards::spawn(async move {
            producer.try_push(1).unwrap();
            producer.close();
        });
        assert_eq!(queue.pop().await, Some(1));
        assert_eq!(queue.pop().await, None);

        let gate = Gate::new();
        let other = gate.clone();
        shards::spawn(async move { other.close() });
        gate.closed().await;
    });
}

#[test]
fn files_append_and_read_back() {
    on_each_driver(async || {
        let path = std::env::temp_dir().join(format!("shards-test-{}-{}", std::process::id(), shards::random_u64()));
        let file = shards::fs::File::create_new(&path).await.unwrap();
        file.fallocate(0, 4096).await.unwrap();
        let (at, _) = file.append(BytesMut::from(&b"abc"[..])).await;
        assert_eq!(at.unwrap(), 0);
        let (at, _) = file.append(BytesMut::from(&b"def"[..])).await;
        assert_eq!(at.unwrap(), 3);
        file.fdatasync().await.unwrap();
        file.truncate(6).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 6);
        let (result, buf) = file.read_exact_at(BytesMut::new(), 4, 1).await;
        result.unwrap();
        assert_eq!(&buf[..], b"bcde");
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn shards_talk_through_mailboxes() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        let (tx, rx) = shards::mailbox::bounded::<u64>(16);
        let rx = std::sync::Mutex::new(Some(rx));
        let config = ShardConfig { count: 2, driver, ..ShardConfig::default() };
        let shards = Shards::start(config, move |ctx| {
            let tx = tx.clone();
            let rx = (ctx.index == 0).then(|| rx.lock().unwrap().take().unwrap());
            async move {
                let Some(mut rx) = rx else {
                    for n in 0..1000 {
                        let mut value = n;
                        while let Err(shards::mailbox::Full(back)) = tx.try_send(value) {
                            value = back;
                            shards::yield_now().await;
                        }
                    }
                    return 0;
                };
                drop(tx);
                let mut sum = 0;
                for _ in 0..1000 {
                    sum += rx.recv().await.unwrap();
                }
                sum
            }
        });
        let results = shards.unwrap().join();
        assert_eq!(results, vec![Ok(499_500), Ok(0)]);
    }
}

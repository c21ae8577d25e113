//! Behaviour every backend and driver must show.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use shards::net::{ListenOptions, TcpListener, TcpStream};
use shards::sync::{Gate, Notify, Queue, oneshot};
use shards::{Admission, BufferPool, DriverChoice, DriverKind, RingFlags, ShardConfig, Shards};

/// Every way a shard can be driven: a ring with each set of flags (what the kernel does not know is left out), epoll.
fn drivers() -> Vec<ShardConfig> {
    let ring = |ring_flags| ShardConfig { driver: DriverChoice::Uring, ring_flags, ..ShardConfig::default() };
    vec![
        ring(RingFlags::DeferTaskrun),
        ring(RingFlags::SingleIssuer),
        ring(RingFlags::CoopTaskrun),
        ring(RingFlags::Plain),
        ShardConfig { driver: DriverChoice::Epoll, ..ShardConfig::default() },
    ]
}

fn on_each_driver(test: impl AsyncFn()) {
    for config in drivers() {
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
    for config in drivers() {
        let (tx, rx) = shards::mailbox::bounded::<u64>(16);
        let rx = std::sync::Mutex::new(Some(rx));
        let config = ShardConfig { count: 2, ..config };
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

#[test]
fn the_report_says_what_drives_a_shard() {
    for config in drivers() {
        let asked = config.clone();
        let shards = Shards::start(config, |_| async {}).unwrap();
        let report = shards.reports()[0].clone();
        shards.join();
        match asked.driver {
            DriverChoice::Epoll => assert_eq!((report.kind, report.flags), (DriverKind::Epoll, None)),
            _ => {
                assert_eq!(report.kind, DriverKind::Uring);
                assert!(report.flags.unwrap() <= asked.ring_flags, "{report:?}");
                assert!(report.reason.contains(report.flags.unwrap().names()), "{report:?}");
            }
        }
    }
}

/// Answers each byte with itself until the other end closes.
async fn echo(server: TcpStream) {
    let (mut read, mut write) = server.into_split();
    loop {
        let (result, buf) = read.read(BytesMut::with_capacity(64)).await;
        if result.unwrap() == 0 {
            return;
        }
        write.write_all(buf).await.0.unwrap();
    }
}

/// Sends bytes there and back, one at a time.
async fn round_trips(client: TcpStream, count: usize) {
    let (mut read, mut write) = client.into_split();
    for _ in 0..count {
        write.write_all(BytesMut::from(&b"x"[..])).await.0.unwrap();
        let (result, _) = read.read(BytesMut::with_capacity(8)).await;
        assert_eq!(result.unwrap(), 1);
    }
}

/// Tasks that never all wait must not keep the shard from its sockets and timers.
#[test]
fn tasks_that_yield_forever_do_not_starve_io() {
    on_each_driver(async || {
        for _ in 0..3 {
            shards::spawn(async {
                loop {
                    shards::yield_now().await;
                }
            });
        }
        let (client, server) = echo_pair().await.unwrap();
        shards::spawn(echo(server));
        let work = async {
            round_trips(client, 200).await;
            shards::sleep(Duration::from_millis(2)).await;
        };
        shards::timeout(Duration::from_secs(20), work).await.expect("the shard's sockets were starved");
    });
}

/// A steady stream of messages from another shard must not either.
#[test]
fn a_flood_of_messages_does_not_starve_io() {
    for config in drivers() {
        let name = format!("{config:?}");
        let (tx, rx) = shards::mailbox::bounded::<u64>(64);
        let (tx, rx) = (std::sync::Mutex::new(Some(tx)), std::sync::Mutex::new(Some(rx)));
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let config = ShardConfig { count: 2, ..config };
        let shards = Shards::start(config, move |ctx| {
            let stop = std::sync::Arc::clone(&stop);
            let tx = (ctx.index == 1).then(|| tx.lock().unwrap().take().unwrap());
            let rx = (ctx.index == 0).then(|| rx.lock().unwrap().take().unwrap());
            async move {
                let Some(mut rx) = rx else {
                    let tx = tx.expect("the sender is the second shard's");
                    let mut sent = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        sent += u64::from(tx.try_send(sent).is_ok());
                        std::hint::spin_loop();
                    }
                    return sent;
                };
                let received = Rc::new(Cell::new(0_u64));
                let counter = Rc::clone(&received);
                let receiver = shards::spawn(async move {
                    while rx.recv().await.is_some() {
                        counter.set(counter.get() + 1);
                        // A receiver that does its work message by message, as one that hands over to a socket does.
                        shards::yield_now().await;
                    }
                });
                while received.get() < 1000 {
                    shards::yield_now().await;
                }
                let (client, server) = echo_pair().await.unwrap();
                shards::spawn(echo(server));
                let work = shards::timeout(Duration::from_secs(20), round_trips(client, 200)).await;
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                work.expect("the shard's sockets were starved");
                receiver.await.unwrap();
                received.get()
            }
        });
        let results = shards.unwrap().join();
        let (received, sent) = (results[0].clone().unwrap(), results[1].clone().unwrap());
        assert_eq!(received, sent, "{name}");
    }
}

#[test]
fn a_full_mailbox_gives_the_value_back() {
    on_each_driver(async || {
        let (tx, mut rx) = shards::mailbox::bounded::<Box<u8>>(2);
        tx.try_send(Box::new(1)).unwrap();
        tx.try_send(Box::new(2)).unwrap();
        assert_eq!(*tx.try_send(Box::new(3)).unwrap_err().0, 3);
        assert_eq!(rx.recv().await, Some(Box::new(1)));
        let last = tx.clone();
        drop(tx);
        let late = shards::spawn(async move {
            shards::sleep(Duration::from_millis(2)).await;
            drop(last);
        });
        assert_eq!(rx.recv().await, Some(Box::new(2)));
        assert_eq!(rx.recv().await, None);
        late.await.unwrap();

        let (tx, rx) = shards::mailbox::bounded::<u8>(2);
        drop(rx);
        assert!(tx.is_closed());
        assert_eq!(tx.try_send(1).unwrap_err().0, 1);
    });
}

/// The receiver waits again and again; a bell rung by a plain thread reaches it each time.
#[test]
fn a_plain_thread_wakes_a_shard() {
    on_each_driver(async || {
        let (tx, mut rx) = shards::mailbox::bounded::<u32>(1);
        let (back_tx, back_rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            for n in 0..200 {
                tx.try_send(n).unwrap();
                assert_eq!(back_rx.recv(), Ok(n));
            }
        });
        for n in 0..200 {
            assert_eq!(rx.recv().await, Some(n));
            back_tx.send(n).unwrap();
        }
        assert_eq!(rx.recv().await, None);
        thread.join().unwrap();
    });
}

#[test]
fn timers_fire_in_order_and_dropped_ones_never() {
    on_each_driver(async || {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let handles: Vec<_> = [30_u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let fired = Rc::clone(&fired);
                shards::spawn(async move {
                    shards::sleep(Duration::from_millis(ms)).await;
                    fired.borrow_mut().push(ms);
                })
            })
            .collect();
        for _ in 0..1000 {
            shards::timeout(Duration::from_secs(3600), std::future::ready(())).await.unwrap();
        }
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(*fired.borrow(), [10, 20, 30]);
    });
}

/// More than the kernel buffers, against a reader that takes its time.
#[test]
fn a_large_write_waits_for_its_reader() {
    on_each_driver(async || {
        const LEN: usize = 8 << 20;
        let (client, server) = echo_pair().await.unwrap();
        let sender = shards::spawn(async move {
            let (_keep, mut write) = client.into_split();
            let data: Vec<u8> = (0..LEN).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let (result, buf) = write.write_all(BytesMut::from(&data[..])).await;
            result.unwrap();
            assert_eq!(buf.len(), LEN);
        });
        let (mut read, _keep) = server.into_split();
        let mut at = 0;
        while at < LEN {
            let (result, buf) = read.read(BytesMut::with_capacity(100_000)).await;
            assert_eq!(result.unwrap(), buf.len());
            assert!(buf.iter().enumerate().all(|(i, byte)| usize::from(*byte) == (at + i) % 251));
            at += buf.len();
            if at % 7 == 0 {
                shards::sleep(Duration::from_millis(1)).await;
            }
        }
        sender.await.unwrap();
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    on_each_driver(async || {
        let port = shards::net::reserve_port(any_port()).unwrap();
        let result = TcpStream::connect(port.addr()).await;
        assert_eq!(result.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn shards_share_a_port() {
    for config in drivers() {
        let port = shards::net::reserve_port(any_port()).unwrap();
        let addr = port.addr();
        let config = ShardConfig { count: 2, ..config };
        let shards = Shards::start(config, move |_| async move {
            let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
            let listener = TcpListener::bind(addr, &options).unwrap();
            // The kernel spreads by a hash: enough connections that neither shard is left out.
            let mut taken = 0_u32;
            while let Ok(accepted) = shards::timeout(Duration::from_millis(400), listener.accept()).await {
                taken += u32::from(accepted.is_ok());
            }
            taken
        })
        .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let held: Vec<_> = (0..64).filter_map(|_| std::net::TcpStream::connect(addr).ok()).collect();
        let taken: Vec<u32> = shards.join().into_iter().map(Result::unwrap).collect();
        assert_eq!(taken.iter().sum::<u32>() as usize, held.len());
        assert!(taken.iter().all(|n| *n > 0), "{taken:?}");
    }
}

/// What a task owns is released inside its shard when the shard ends.
#[test]
fn tasks_left_over_are_dropped_in_their_shard() {
    struct Inside(Rc<RefCell<u32>>);
    impl Drop for Inside {
        fn drop(&mut self) {
            // Panics outside of a shard.
            drop(shards::spawn(async {}));
            *self.0.borrow_mut() += 1;
        }
    }
    for config in drivers() {
        let dropped = Rc::new(RefCell::new(0));
        let counter = Rc::clone(&dropped);
        shards::run_with(&config, async move {
            for _ in 0..10 {
                let inside = Inside(Rc::clone(&counter));
                shards::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(inside);
                });
            }
            shards::yield_now().await;
        })
        .unwrap();
        assert_eq!(*dropped.borrow(), 10);
    }
}

#[test]
fn admission_counts_and_buffers_return() {
    on_each_driver(async || {
        let admission = Admission::new(2);
        let first = admission.try_acquire().unwrap();
        let second = admission.try_acquire();
        assert!(second.is_some() && admission.try_acquire().is_none());
        drop(first);
        assert_eq!((admission.in_use(), admission.limit(), admission.peak()), (1, 2, 2));

        let pool = BufferPool::new(64, 1);
        let (a, b) = (pool.take(), pool.take());
        pool.give(a);
        pool.give(b);
        assert_eq!(pool.kept(), 1);
        let mut grown = pool.take();
        grown.reserve(1000);
        pool.give(grown);
        assert_eq!(pool.kept(), 0);
    });
}

#[test]
fn appends_in_flight_keep_their_places() {
    on_each_driver(async || {
        let path = std::env::temp_dir().join(format!("shards-test-{}-{}", std::process::id(), shards::random_u64()));
        let file = Rc::new(shards::fs::File::create_new(&path).await.unwrap());
        let writers: Vec<_> = (0..20_u8)
            .map(|n| {
                let file = Rc::clone(&file);
                shards::spawn(async move { file.append(BytesMut::from(&vec![n; 100 + usize::from(n)][..])).await.0 })
            })
            .collect();
        let mut places = Vec::new();
        for (n, writer) in writers.into_iter().enumerate() {
            places.push((n, writer.await.unwrap().unwrap()));
        }
        for (n, at) in places {
            let (result, buf) = file.read_exact_at(BytesMut::new(), 100 + n, at).await;
            result.unwrap();
            assert!(buf.iter().all(|byte| usize::from(*byte) == n));
        }
        let (result, _) = file.read_exact_at(BytesMut::new(), 1, file.end()).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        shards::fs::remove(&path).await.unwrap();
    });
}

mod faults {
    use super::*;
    use shards::faults::{Call, Verdict, install, set_clock_skew};

    #[test]
    fn a_call_fails_as_told() {
        on_each_driver(async || {
            let path =
                std::env::temp_dir().join(format!("shards-test-{}-{}", std::process::id(), shards::random_u64()));
            let file = shards::fs::File::create_new(&path).await.unwrap();
            let mut syncs = 0;
            let on = install(move |call| match call {
                Call::FileSync => {
                    syncs += 1;
                    if syncs == 2 { Verdict::Fail(5) } else { Verdict::Proceed }
                }
                Call::FileAllocate => Verdict::Fail(28),
                Call::FileWrite | Call::FileRead => Verdict::Short(3),
                Call::Connect => Verdict::Late(Duration::from_millis(5)),
                _ => Verdict::Proceed,
            });
            file.append(BytesMut::from(&b"in small pieces"[..])).await.0.unwrap();
            let (result, buf) = file.read_exact_at(BytesMut::new(), 15, 0).await;
            result.unwrap();
            assert_eq!(&buf[..], b"in small pieces");
            file.fdatasync().await.unwrap();
            assert_eq!(file.fdatasync().await.unwrap_err().raw_os_error(), Some(5));
            file.fdatasync().await.unwrap();
            assert_eq!(file.fallocate(0, 10).await.unwrap_err().raw_os_error(), Some(28));
            let start = shards::now();
            echo_pair().await.unwrap();
            assert!(start.elapsed() >= Duration::from_millis(5));
            drop(on);
            file.fallocate(0, 10).await.unwrap();
            shards::fs::remove(&path).await.unwrap();

            let right = shards::unix_micros();
            set_clock_skew(-3_600_000_000);
            assert!(shards::unix_micros() < right);
            set_clock_skew(0);
            assert!(shards::unix_micros() >= right);
        });
    }

    #[test]
    fn a_broken_network_is_an_error_to_its_user() {
        on_each_driver(async || {
            let (client, server) = echo_pair().await.unwrap();
            let (mut read, mut write) = client.into_split();
            let mut calls = 0;
            let on = install(move |call| {
                calls += usize::from(matches!(call, Call::Read | Call::Write));
                if calls == 2 { Verdict::Fail(104) } else { Verdict::Short(2) }
            });
            let (result, _) = write.write_all(BytesMut::from(&b"half of it"[..])).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            drop(on);
            let (mut far_read, mut far_write) = server.into_split();
            let (result, buf) = far_read.read(BytesMut::with_capacity(64)).await;
            assert_eq!((result.unwrap(), &buf[..]), (2, &b"ha"[..]));
            far_write.write_all(BytesMut::from(&b"yes"[..])).await.0.unwrap();
            let on = install(|call| if call == Call::Read { Verdict::Fail(110) } else { Verdict::Proceed });
            let (result, _) = read.read(BytesMut::with_capacity(64)).await;
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(on);
        });
    }
}

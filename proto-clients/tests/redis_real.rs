//! The Redis client on a real server that each test starts for itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

mod ports;

use proto_clients::redis::{CallError, Command, ErrorKind, NotSent, Pool, PoolConfig, Reply, Script, Unknown};

struct Server {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Server {
    fn start(extra: &[&str]) -> Self {
        let port = ports::unused();
        let folder = std::env::temp_dir().join(format!("seckill-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Process::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(&folder)
            .args(extra)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server cannot be started; `tests/stack install` installs it");
        let mut server = Self { child, port, folder };
        let end = Instant::now() + Duration::from_secs(10);
        while server.ping().is_err() {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "redis-server ended: {ended:?}");
            assert!(Instant::now() < end, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// Fails unless the server answers PING in its own protocol.
    fn ping(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        stream.read_exact(&mut [0; 7])
    }

    fn config(&self) -> PoolConfig {
        PoolConfig { endpoint: format!("127.0.0.1:{}", self.port), ..PoolConfig::default() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn soon() -> Instant {
    shards::now() + Duration::from_secs(5)
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0], words.len() - 1);
    for word in &words[1..] {
        command.arg(word.as_bytes());
    }
    command
}

async fn call(pool: &Pool, words: &[&str]) -> Result<Reply, CallError> {
    pool.call(command(words), soon()).await
}

#[test]
fn commands_and_scripts_also_after_the_script_cache_is_flushed() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Pool::new(server.config());
        assert_eq!(call(&pool, &["SET", "k", "v"]).await.unwrap(), Reply::Simple("OK".into()));
        assert_eq!(call(&pool, &["GET", "k"]).await.unwrap(), Reply::Bulk("v".into()));
        assert!(call(&pool, &["GET", "none"]).await.unwrap().is_nil());
        let script = Script::new("return {ARGV[1], redis.call('INCR', KEYS[1])}");
        for round in 1..=3 {
            let mut command = script.command(1, 2);
            command.arg(b"n").arg(b"a\r\nb");
            let reply = pool.eval(&script, command, soon()).await.unwrap();
            assert_eq!(reply, Reply::Array(vec![Reply::Bulk("a\r\nb".into()), Reply::Integer(round)]));
            call(&pool, &["SCRIPT", "FLUSH"]).await.unwrap();
        }
        let refused = call(&pool, &["INCR", "k"]).await;
        assert!(matches!(refused, Err(CallError::Server(error)) if error.kind == ErrorKind::Other));
        pool.close().await;
        assert_eq!(pool.stats().connections, 0);
        assert!(matches!(call(&pool, &["PING"]).await, Err(CallError::NotSent(NotSent::Closed))));
    });
}

#[test]
fn passwords_are_checked() {
    let server = Server::start(&["--requirepass", "s3cret"]);
    shards::run(async {
        let with = |password: Option<&str>, database| {
            Pool::new(PoolConfig { password: password.map(str::to_owned), database, ..server.config() })
        };
        let reply = call(&with(Some("s3cret"), 3), &["CLIENT", "INFO"]).await.unwrap();
        assert!(reply.as_str().unwrap().contains(" db=3 "), "{reply:?}");
        let refused = call(&with(Some("wrong"), 0), &["PING"]).await;
        assert!(matches!(&refused, Err(CallError::NotSent(NotSent::Refused(_)))), "{refused:?}");
        let refused = call(&with(None, 0), &["PING"]).await;
        assert!(refused.is_err(), "{refused:?}");
    });
}

#[test]
fn many_callers_share_few_connections_and_each_gets_its_own_reply() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Rc::new(Pool::new(server.config()));
        let callers: Vec<_> = (0..2_000)
            .map(|index: usize| {
                let pool = pool.clone();
                shards::spawn(async move {
                    let word = format!("word-{index}");
                    call(&pool, &["ECHO", &word]).await.unwrap().as_str() == Some(&word)
                })
            })
            .collect();
        for caller in callers {
            assert!(caller.await.unwrap());
        }
        assert!((1..=2).contains(&pool.stats().connections));
    });
}

#[test]
fn callers_that_leave_do_not_shift_the_replies_of_others() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Rc::new(Pool::new(PoolConfig { connections_max: 1, ..server.config() }));
        call(&pool, &["PING"]).await.unwrap();
        for round in 0..60 {
            let callers: Vec<_> = (0..1_000)
                .map(|index: u64| {
                    let pool = pool.clone();
                    shards::spawn(async move {
                        let word = format!("word-{round}-{index}");
                        // Every third one gives up: at once, or while its command is under way.
                        let leaves = index.is_multiple_of(3);
                        let patience = Duration::from_micros(shards::random_u64() % 3_000 * (index % 2));
                        let deadline = if leaves { shards::now() + patience } else { soon() };
                        match pool.call(command(&["ECHO", &word]), deadline).await {
                            Ok(reply) => assert_eq!(reply.as_str(), Some(word.as_str())),
                            Err(error) => assert!(leaves, "{error}"),
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.await.unwrap();
            }
        }
    });
}

#[test]
fn a_server_that_stalls_makes_the_outcome_unknown_and_the_connection_is_given_up() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Pool::new(server.config());
        call(&pool, &["SET", "n", "0"]).await.unwrap();
        call(&pool, &["CLIENT", "PAUSE", "700", "ALL"]).await.unwrap();
        let stalled = pool.call(command(&["INCR", "n"]), shards::now() + Duration::from_millis(30)).await;
        assert!(matches!(stalled, Err(CallError::Unknown(Unknown::Deadline))), "{stalled:?}");
        shards::sleep(Duration::from_millis(900)).await;
        // The late reply went with its connection: the next caller gets its own.
        assert_eq!(call(&pool, &["ECHO", "x"]).await.unwrap(), Reply::Bulk("x".into()));
        assert!(pool.stats().opened_total >= 2);
    });
}

#[test]
fn killed_connections_are_replaced() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Pool::new(PoolConfig { connections_max: 1, ..server.config() });
        let other = Pool::new(server.config());
        for _ in 0..5 {
            let id = call(&pool, &["CLIENT", "ID"]).await.unwrap().as_i64().unwrap();
            call(&other, &["CLIENT", "KILL", "ID", &id.to_string()]).await.unwrap();
            shards::sleep(Duration::from_millis(20)).await;
            assert_eq!(call(&pool, &["PING"]).await.unwrap(), Reply::Simple("PONG".into()));
        }
        assert_eq!(pool.stats().opened_total, 6);
    });
}

#[test]
fn a_server_that_is_down_is_not_sent_and_comes_back() {
    let server = Server::start(&[]);
    let config = server.config();
    drop(server);
    shards::run(async {
        let pool = Pool::new(config);
        for _ in 0..3 {
            let refused = pool.call(command(&["PING"]), soon()).await;
            assert!(matches!(refused, Err(CallError::NotSent(NotSent::Dial(_)))), "{refused:?}");
        }
        assert_eq!(pool.stats().opened_total, 0);
    });
}

#[test]
fn a_replica_gets_no_second_write() {
    let server = Server::start(&["--replicaof", "127.0.0.1 1"]);
    shards::run(async {
        let pool = Pool::new(server.config());
        let refused = call(&pool, &["SET", "k", "v"]).await;
        let Err(CallError::Server(error)) = refused else { panic!("{refused:?}") };
        assert!(matches!(error.kind, ErrorKind::ReadOnly | ErrorKind::MasterDown), "{error}");
        shards::sleep(Duration::from_millis(10)).await;
        assert_eq!(pool.stats().connections, 0, "the next call dials anew");
    });
}

#[test]
fn pushes_come_out_of_band() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Pool::new(PoolConfig { connections_max: 1, ..server.config() });
        let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
        let sink = seen.clone();
        pool.set_push_handler(move |push| sink.borrow_mut().push(push.to_vec()));
        call(&pool, &["CLIENT", "TRACKING", "ON"]).await.unwrap();
        call(&pool, &["GET", "watched"]).await.unwrap();
        let other = Pool::new(server.config());
        call(&other, &["SET", "watched", "1"]).await.unwrap();
        assert_eq!(call(&pool, &["ECHO", "x"]).await.unwrap(), Reply::Bulk("x".into()));
        let keys = Reply::Array(vec![Reply::Bulk("watched".into())]);
        assert_eq!(*seen.borrow(), [vec![Reply::Bulk("invalidate".into()), keys]]);
    });
}

#[test]
fn idle_and_old_connections_are_closed() {
    let server = Server::start(&[]);
    shards::run(async {
        let pool = Pool::new(PoolConfig { idle_max: Duration::from_millis(50), ..server.config() });
        call(&pool, &["PING"]).await.unwrap();
        assert_eq!(pool.stats().connections, 1);
        shards::sleep(Duration::from_millis(300)).await;
        assert_eq!(pool.stats().connections, 0);
        let pool = Pool::new(PoolConfig { lifetime_max: Duration::from_millis(50), ..server.config() });
        for _ in 0..20 {
            call(&pool, &["PING"]).await.unwrap();
            shards::sleep(Duration::from_millis(10)).await;
        }
        assert!(pool.stats().opened_total >= 3, "{:?}", pool.stats());
    });
}

/// Hashes of every size that the format writes in another way, given to a real server and read back.
#[test]
fn a_dump_of_ours_is_restored_and_is_what_the_server_would_dump() {
    let server = Server::start(&["--rdbcompression", "no"]);
    let config = server.config();
    shards::run(async move {
        let pool = Pool::new(config);
        let sizes = [0_usize, 1, 5, 62, 63, 64, 65, 120, 125, 126, 127, 128, 129, 4_093, 4_095, 4_096, 20_000];
        for (count, &size) in (1..).zip(&sizes) {
            let fields: Vec<(String, String)> =
                (0..count).map(|n| (format!("field{n}"), format!("v{}", "x".repeat(size)))).collect();
            let mut dump = Vec::new();
            proto_clients::redis::dump::hash(
                &mut dump,
                fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())),
            );
            let key = format!("key{size}");
            let mut restore = Command::new("RESTORE", 3);
            restore.arg(key.as_bytes());
            restore.arg(b"0");
            restore.arg(&dump);
            let reply = pool.call(restore, soon()).await;
            assert!(reply.is_ok(), "{size}: {reply:?}");
            for (name, value) in &fields {
                let reply = pool.call(command(&["HGET", &key, name]), soon()).await.unwrap();
                assert_eq!(reply.as_bytes(), Some(value.as_bytes()), "{size}");
            }
            // A hash of short values stays as it was given, so the server dumps the very same bytes.
            if size < 64 {
                let reply = pool.call(command(&["DUMP", &key]), soon()).await.unwrap();
                assert_eq!(reply.as_bytes(), Some(&dump[..]), "{size}");
            }
        }
        pool.close().await;
    });
}

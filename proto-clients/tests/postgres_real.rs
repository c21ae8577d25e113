//! The PostgreSQL client on a real server that the test starts for itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

mod ports;

use proto_clients::postgres::{
    CallError, CommitError, ErrorClass, NotSent, Params, Pool, PoolConfig, Statement, Type, Unknown,
};

const PASSWORD: &str = "s3cret, with 'quotes'";

/// One server for all tests of this file, stopped by its own watcher when the test process is gone.
struct Server {
    port: u16,
}

fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    let newest = newest.expect("PostgreSQL is not installed; `tests/stack install` installs it");
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
}

/// PostgreSQL refuses to run as root: as root, commands run as `postgres`.
fn command(program: &str) -> Command {
    let program = binaries().join(program);
    let root = std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    if root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn start(folder: &Path) -> u16 {
    let port = ports::unused();
    std::fs::create_dir_all(folder).unwrap();
    let data = folder.join("data");
    if std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0) {
        run(Command::new("chown").arg("postgres").arg(folder));
    }
    let password = folder.join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    std::os::unix::fs::chown(&password, Some(std::os::unix::fs::MetadataExt::uid(&folder.metadata().unwrap())), None)
        .unwrap();
    run(command("initdb")
        .current_dir(folder)
        .args(["-U", "tester", "-A", "scram-sha-256", "-N", "--no-locale", "-E", "UTF8", "--pwfile"])
        .arg(&password)
        .arg("-D")
        .arg(&data));
    let options = format!("-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off");
    run(command("pg_ctl")
        .current_dir(folder)
        .stdout(Stdio::null())
        .arg("-D")
        .arg(&data)
        .args(["-w", "-o", &options, "-l"])
        .arg(folder.join("log"))
        .arg("start"));
    let pid = std::fs::read_to_string(data.join("postmaster.pid")).unwrap().lines().next().unwrap().to_owned();
    // A process of its own that outlives this one: statics are not dropped. The inner `&` lets the shell be waited for.
    let script = format!(
        "(while kill -0 {} 2>/dev/null; do sleep 0.2; done; kill -INT {pid}; \
          while kill -0 {pid} 2>/dev/null; do sleep 0.1; done; rm -rf '{}') >/dev/null 2>&1 </dev/null &",
        std::process::id(),
        folder.display()
    );
    run(Command::new("setsid").args(["sh", "-c", &script]));
    port
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("seckill-pg-client-{}", std::process::id()));
        Server { port: start(&folder) }
    })
}

fn config() -> PoolConfig {
    PoolConfig {
        endpoint: format!("localhost:{}", server().port),
        user: "tester".to_owned(),
        password: Some(PASSWORD.to_owned()),
        ..PoolConfig::default()
    }
}

fn soon() -> Instant {
    shards::now() + Duration::from_secs(10)
}

fn in_shard<F: Future>(test: impl FnOnce(Pool) -> F) -> F::Output {
    let config = config();
    shards::run(async { test(Pool::new(config)).await })
}

#[test]
fn a_wrong_or_missing_password_is_refused() {
    for password in [Some("wrong".to_owned()), None] {
        let config = PoolConfig { password: password.clone(), ..config() };
        let error = shards::run(async { Pool::new(config).acquire(soon()).await.map(drop) }).unwrap_err();
        let CallError::NotSent(NotSent::Startup(error)) = error else { panic!("{error}") };
        let text = error.to_string();
        assert!(text.contains(if password.is_some() { "28P01" } else { "none is set" }), "{text}");
    }
}

static ECHO: Statement = Statement {
    sql: "SELECT $1::bool, $2::int8, $3::int4, $4::text, $5::uuid, $6::bytea, $7::timestamptz, $8::text, $9::varchar",
    params: &[
        Type::Bool,
        Type::Int8,
        Type::Int4,
        Type::Text,
        Type::Uuid,
        Type::Bytea,
        Type::Timestamptz,
        Type::Text,
        Type::Varchar,
    ],
};

#[test]
fn every_type_goes_there_and_back() {
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        for _ in 0..2 {
            let mut params = Params::new();
            params.bool(true).i64(i64::MIN).i32(-1).text("späti\n'").uuid([7; 16]).bytea(&[0, 255, 0]);
            params.timestamptz_micros(1_782_388_800_123_456).null().text("");
            let rows = client.query(&ECHO, &params, soon()).await.unwrap();
            let row = rows.row(0);
            assert!(row.bool(0).unwrap());
            assert_eq!((row.i64(1).unwrap(), row.i32(2).unwrap()), (i64::MIN, -1));
            assert_eq!((row.text(3).unwrap(), row.uuid(4).unwrap()), ("späti\n'", [7; 16]));
            assert_eq!(row.bytea(5).unwrap(), [0, 255, 0]);
            assert_eq!(row.timestamptz_micros(6).unwrap(), 1_782_388_800_123_456);
            assert_eq!((row.opt_text(7).unwrap(), row.text(8).unwrap()), (None, ""));
            assert!(row.i64(3).is_err() && row.text(1).is_err() && row.text(9).is_err() && row.text(7).is_err());
        }
    });
}

static ARRAYS: Statement = Statement {
    sql: "SELECT $1::int8[], $2::text[], $3::uuid[]::text, $4::int4[]::text, $5::timestamptz[] = ARRAY['2000-01-01 00:00:01Z'::timestamptz], $6::bytea[]::text",
    params: &[
        Type::Int8Array,
        Type::TextArray,
        Type::UuidArray,
        Type::Int4Array,
        Type::TimestamptzArray,
        Type::ByteaArray,
    ],
};

#[test]
fn arrays_with_nulls_and_empty_ones() {
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        let mut params = Params::new();
        params.i64_array([1, -2, i64::MAX].into_iter());
        params.text_array([Some("a,b"), None, Some("")].into_iter());
        params.uuid_array([[0; 16]].into_iter()).i32_array([].into_iter());
        params.timestamptz_array([946_684_801_000_000].into_iter()).bytea_array([b"\x01".as_slice()].into_iter());
        let rows = client.query(&ARRAYS, &params, soon()).await.unwrap();
        let row = rows.row(0);
        assert_eq!(row.i64_array(0).unwrap(), [1, -2, i64::MAX]);
        assert_eq!(row.text_array(1).unwrap(), [Some("a,b"), None, Some("")]);
        assert_eq!(row.text(2).unwrap(), "{00000000-0000-0000-0000-000000000000}");
        assert_eq!(row.text(3).unwrap(), "{}");
        assert!(row.bool(4).unwrap());
        assert_eq!(row.text(5).unwrap(), r#"{"\\x01"}"#);
    });
}

static INSERT: Statement = Statement { sql: "INSERT INTO unique_test VALUES ($1)", params: &[Type::Int8] };
static COUNT: Statement = Statement { sql: "SELECT count(*) FROM unique_test", params: &[] };

fn one(value: i64) -> Params {
    let mut params = Params::new();
    params.i64(value);
    params
}

#[test]
fn conflicts_transactions_and_pipelines() {
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        let table =
            "CREATE TEMP TABLE unique_test (n int8 CONSTRAINT uq_n PRIMARY KEY); INSERT INTO unique_test VALUES (1)";
        assert_eq!(client.simple(table, soon()).await.unwrap().len(), 2);
        let Err(CallError::Server(error)) = client.query(&INSERT, &one(1), soon()).await else { panic!("no conflict") };
        assert_eq!((error.sqlstate.class(), error.constraint.as_deref()), (ErrorClass::Conflict, Some("uq_n")));
        assert_eq!(client.query(&INSERT, &one(2), soon()).await.unwrap().affected(), 1);

        // One Sync, one transaction: the first insert goes with the second.
        let failed = client.pipeline(&[(&INSERT, &one(3)), (&INSERT, &one(1)), (&INSERT, &one(4))], soon()).await;
        assert_eq!(failed.unwrap_err().index, 1);
        let done = client.pipeline(&[(&INSERT, &one(5)), (&COUNT, &Params::new())], soon()).await.unwrap();
        assert_eq!(done[1].row(0).i64(0).unwrap(), 3);

        // A failed transaction is not committed, whatever COMMIT is answered with.
        let mut tx = client.begin(soon()).await.unwrap();
        tx.query(&INSERT, &one(6), soon()).await.unwrap();
        assert!(tx.query(&INSERT, &one(1), soon()).await.is_err());
        assert!(matches!(tx.commit(soon()).await, Err(CommitError::RolledBack)));
        let mut tx = client.begin(soon()).await.unwrap();
        tx.query(&INSERT, &one(7), soon()).await.unwrap();
        tx.rollback(soon()).await;
        let mut tx = client.begin(soon()).await.unwrap();
        tx.query(&INSERT, &one(8), soon()).await.unwrap();
        tx.commit(soon()).await.unwrap();
        assert_eq!(client.query(&COUNT, &Params::new(), soon()).await.unwrap().row(0).i64(0).unwrap(), 4);

        // A transaction that is let go is rolled back before the connection is used again.
        let mut tx = client.begin(soon()).await.unwrap();
        tx.query(&INSERT, &one(9), soon()).await.unwrap();
        drop(client);
        let mut client = pool.acquire(soon()).await.unwrap();
        assert_eq!(client.query(&COUNT, &Params::new(), soon()).await.unwrap().row(0).i64(0).unwrap(), 4);
        assert_eq!(pool.stats().opened_total, 1);
    });
}

#[test]
fn statements_that_the_server_forgot_or_outdated_are_prepared_again() {
    static CHANGING: Statement = Statement { sql: "SELECT * FROM changing", params: &[] };
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        client.simple("CREATE TEMP TABLE changing AS SELECT 7::int4 AS n", soon()).await.unwrap();
        let read = |rows: proto_clients::postgres::Rows| rows.columns().len();
        assert_eq!(read(client.query(&CHANGING, &Params::new(), soon()).await.unwrap()), 1);
        client.simple("DEALLOCATE ALL", soon()).await.unwrap();
        assert_eq!(read(client.query(&CHANGING, &Params::new(), soon()).await.unwrap()), 1);
        client.simple("DISCARD PLANS; ALTER TABLE changing ALTER COLUMN n TYPE int8", soon()).await.unwrap();
        assert_eq!(client.query(&CHANGING, &Params::new(), soon()).await.unwrap().row(0).i64(0).unwrap(), 7);
        client.simple("ALTER TABLE changing ADD COLUMN m int4", soon()).await.unwrap();
        assert_eq!(read(client.query(&CHANGING, &Params::new(), soon()).await.unwrap()), 2);
        assert_eq!(pool.stats().opened_total, 1, "on the same connection");
    });
}

#[test]
fn notices_and_settings_in_the_middle_disturb_nothing() {
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        let noisy = "DO $$ BEGIN RAISE NOTICE 'x'; RAISE WARNING 'y'; END $$; SET application_name = 'z'; SELECT 1";
        assert_eq!(client.simple(noisy, soon()).await.unwrap().last().unwrap().row(0).text(0).unwrap(), "1");
        client.simple("LISTEN here; NOTIFY here, 'payload'", soon()).await.unwrap();
        client.simple("SELECT 1", soon()).await.unwrap();
    });
}

static SLEEP: Statement = Statement { sql: "SELECT pg_sleep(30), 'slow query of the deadline test'", params: &[] };
static SLEEPING: Statement = Statement {
    sql: "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep(30)%'",
    params: &[],
};

#[test]
fn a_deadline_cancels_on_the_server_and_closes_the_connection() {
    in_shard(async |pool| {
        let mut client = pool.acquire(soon()).await.unwrap();
        let late = client.query(&SLEEP, &Params::new(), shards::now() + Duration::from_millis(100)).await;
        assert!(matches!(late, Err(CallError::Unknown(Unknown::Deadline))), "{late:?}");
        drop(client);
        let mut client = pool.acquire(soon()).await.unwrap();
        let end = soon();
        while client.query(&SLEEPING, &Params::new(), soon()).await.unwrap().row(0).i64(0).unwrap() > 0 {
            assert!(shards::now() < end, "the statement still runs");
            shards::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pool.stats().opened_total, 2);

        // A caller that goes away comes to the same.
        let going = shards::spawn({
            let pool = pool.clone();
            async move {
                let mut client = pool.acquire(soon()).await.unwrap();
                let gone =
                    shards::timeout(Duration::from_millis(50), client.query(&SLEEP, &Params::new(), soon())).await;
                assert!(gone.is_err());
            }
        });
        going.await.unwrap();
        let end = soon();
        while client.query(&SLEEPING, &Params::new(), soon()).await.unwrap().row(0).i64(0).unwrap() > 0 {
            assert!(shards::now() < end, "the statement still runs");
            shards::sleep(Duration::from_millis(20)).await;
        }
    });
}

static PID: Statement = Statement { sql: "SELECT pg_backend_pid()", params: &[] };
static KILL: Statement = Statement { sql: "SELECT pg_terminate_backend($1)", params: &[Type::Int4] };

#[test]
fn terminated_backends_are_replaced() {
    in_shard(async |pool| {
        let mut killer = pool.acquire(soon()).await.unwrap();
        for _ in 0..3 {
            let mut victim = pool.acquire(soon()).await.unwrap();
            let pid = victim.query(&PID, &Params::new(), soon()).await.unwrap().row(0).i32(0).unwrap();
            let slow = shards::spawn(async move { victim.query(&SLEEP, &Params::new(), soon()).await.map(drop) });
            shards::sleep(Duration::from_millis(50)).await;
            let mut params = Params::new();
            params.i32(pid);
            killer.query(&KILL, &params, soon()).await.unwrap();
            match slow.await.unwrap() {
                Err(CallError::Server(error)) => assert_eq!(error.sqlstate.class(), ErrorClass::Unavailable),
                Err(CallError::Unknown(Unknown::ConnectionLost)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pool.stats().in_use, 1);
    });
}

static SHORT: Statement = Statement { sql: "SELECT pg_sleep(0.01), $1::int8", params: &[Type::Int8] };

#[test]
fn the_pool_bounds_its_connections() {
    let config = PoolConfig { connections_max: 3, ..config() };
    shards::run(async {
        let pool = Pool::new(config);
        let callers: Vec<_> = (0..50)
            .map(|index| {
                let pool = pool.clone();
                shards::spawn(async move {
                    let mut client = pool.acquire(soon()).await.unwrap();
                    let rows = client.query(&SHORT, &one(index), soon()).await.unwrap();
                    assert_eq!(rows.row(0).i64(1).unwrap(), index);
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        assert!(pool.stats().opened_total <= 3, "{:?}", pool.stats());
        let held = pool.acquire(soon()).await.unwrap();
        let others = [pool.acquire(soon()).await.unwrap(), pool.acquire(soon()).await.unwrap()];
        let none = pool.acquire(shards::now() + Duration::from_millis(50)).await;
        assert!(matches!(none, Err(CallError::NotSent(NotSent::Deadline))), "{none:?}");
        drop((held, others));
        pool.close().await;
        assert!(matches!(pool.acquire(soon()).await, Err(CallError::NotSent(NotSent::Closed))));
    });
}

#[test]
fn a_server_that_is_down_is_said_at_once() {
    let port = ports::unused();
    shards::run(async {
        let pool = Pool::new(PoolConfig { endpoint: format!("127.0.0.1:{port}"), ..PoolConfig::default() });
        for _ in 0..3 {
            let none = pool.acquire(soon()).await;
            assert!(matches!(none, Err(CallError::NotSent(NotSent::Dial(_)))), "{none:?}");
        }
    });
}

//! What is read, what is refused, and with which words.

use super::*;

fn with(overrides: &[&str]) -> Result<Config, ConfigError> {
    load(&Sources { overrides: overrides.iter().map(|text| text.to_string()).collect(), ..Sources::default() })
}

fn refusal(overrides: &[&str]) -> String {
    with(overrides).expect_err("must be refused").to_string()
}

#[test]
fn the_shipped_defaults_are_valid_and_name_no_service() {
    let config = load(&Sources::default()).unwrap();
    assert!(!config.names_services());
    assert_eq!(config.worker.workers + config.worker.queue_capacity, 96, "spec section 5");
    assert_eq!(config.submit.deadline_ms, 90, "spec section 1");
}

#[test]
fn environment_and_overrides_are_laid_over_in_order() {
    let sources = Sources {
        environment: vec![
            ("SECKILL_REDIS".into(), "127.0.0.1:7000".into()),
            ("SECKILL_NAMESRV".into(), "127.0.0.1:9876;127.0.0.1:9877".into()),
            ("SECKILL_PG_URL".into(), "postgres://u:p@127.0.0.1:5432/d".into()),
            ("SECKILL_UNRELATED".into(), "x".into()),
        ],
        overrides: vec!["redis.addr=127.0.0.1:7001".into(), "shards.pin=false".into()],
        file: None,
    };
    let config = load(&sources).unwrap();
    assert_eq!(config.redis.addr, "127.0.0.1:7001");
    assert_eq!(config.rocketmq.name_servers, ["127.0.0.1:9876", "127.0.0.1:9877"]);
    assert!(config.names_services() && !config.shards.pin);
    assert_eq!(config.redacted().postgres.url, "postgres://u:***@127.0.0.1:5432/d");
}

#[test]
fn refusals_say_what_to_do() {
    for (overrides, expected) in [
        (&["submit.deadline_ms=50"][..], "submit.deadline_ms = 50 is shorter than its parts"),
        (&["sale.key_ttl_s=10"], "sale.key_ttl_s = 10 is too short"),
        (&["worker.workers=0"], "worker.workers = 0 is out of range: 1..=512"),
        (&["shards.ring_entries=100"], "power of two"),
        (&["redis.addr=127.0.0.1:6379"], "set rocketmq.name_servers and postgres.url too"),
        (&["redis.adress=x"], "there is no setting redis.adress"),
        (&["worker.workers=many"], "worker.workers must be of type integer"),
        (&["worker.workers"], "section.key=value"),
        (&["identity.jwt_key=short"], "at least 32 bytes"),
        (&["log.level=loud"], "log.level"),
        (&["trace.sample=1.1"], "trace.sample = 1.1 is out of range: 0.0..=1.0"),
        (&["trace.sample=NaN"], "trace.sample = NaN is out of range"),
        (&["trace.sample=often"], "trace.sample must be of type float"),
        (&["trace.otlp=collector:4318"], "must begin with http:// or https://"),
        (&["server.listen=here"], "server.listen"),
    ] {
        let text = refusal(overrides);
        assert!(text.contains(expected) || text.contains("socket address"), "{overrides:?}: {text}");
    }
}

#[test]
fn all_broken_rules_come_at_once() {
    assert_eq!(refusal(&["worker.workers=0", "sale.key_ttl_s=1"]).lines().count(), 2);
}

#[test]
fn redis_may_be_named_by_a_url() {
    let load_with = |url: &str| {
        let environment = [
            ("SECKILL_REDIS", url),
            ("SECKILL_PG_URL", "postgres://s:p@127.0.0.1:5432/seckill"),
            ("SECKILL_NAMESRV", "127.0.0.1:9876"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        load(&Sources { environment, ..Sources::default() })
    };
    let redis = load_with("redis://:s3cret:x@127.0.0.1:6379/2").unwrap().redis;
    assert_eq!((redis.addr.as_str(), redis.username.as_str()), ("127.0.0.1:6379", ""));
    assert_eq!((redis.password.as_str(), redis.database), ("s3cret:x", 2));
    assert_eq!(load_with("redis://127.0.0.1:6379").unwrap().redis.addr, "127.0.0.1:6379");
    assert_eq!(load_with("127.0.0.1:6379").unwrap().redis.addr, "127.0.0.1:6379");
    assert!(load_with("redis://127.0.0.1:6379/x").is_err());
    assert!(load_with("redis://nowhere").is_err());
}

#[test]
fn no_error_quotes_a_value() {
    let folder = std::env::temp_dir().join(format!("seckill-config-{}-{}", std::process::id(), shards::random_u64()));
    for text in [
        "[redis]\npassword = \"hunter2secret\nusername = 1\n",
        "[redis]\npassword = hunter2secret\n",
        "[redis]\npassword = [\"hunter2secret\"]\n",
        "[redis]\npasword = \"hunter2secret\"\n",
        "[server]\nlisten = \"hunter2secret\"\n",
    ] {
        std::fs::write(&folder, text).unwrap();
        let error = load(&Sources { file: Some(&folder), ..Sources::default() }).unwrap_err().to_string();
        assert!(!error.contains("hunter2secret") && !error.is_empty(), "{text}: {error}");
    }
    std::fs::remove_file(&folder).unwrap();
    for text in ["redis.pasword=hunter2secret", "redis.database=hunter2secret", "shards.pin=hunter2secret"] {
        assert!(!refusal(&[text]).contains("hunter2secret"), "{text}");
    }
}

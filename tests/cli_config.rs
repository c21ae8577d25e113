//! `seckill config` as a person or a script meets it: the built binary, its streams and its exit code.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A file of this test process, removed when it goes out of scope.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("seckill-cli-config-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn arg(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn seckill_with(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    for (name, _) in seckill::config::ENVIRONMENT {
        command.env_remove(name);
    }
    command.args(args).envs(environment.iter().copied()).output().unwrap()
}

fn seckill(args: &[&str]) -> Output {
    seckill_with(args, &[])
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", out(output)))
}

const SERVICES: &str = r#"
[redis]
addr = "redis.shop:6379"
password = "redis-secret"
[rocketmq]
name_servers = ["mq.shop:9876"]
access_key = "shop"
secret_key = "mq-secret"
[postgres]
url = "postgres://shop:pg-secret@db.shop:5432/shop"
[identity]
jwt_key = "0123456789abcdef0123456789abcdef"
"#;

const SECRETS: [&str; 4] = ["redis-secret", "mq-secret", "pg-secret", "0123456789abcdef"];

#[test]
fn good_settings_pass() {
    let plain = seckill(&["config", "check"]);
    assert_eq!((code(&plain), err(&plain).as_str()), (0, ""));
    assert!(out(&plain).starts_with("ok: the settings can be used, mode embedded\n"), "{}", out(&plain));
    assert!(out(&plain).contains("note: identity.jwt_key is empty"), "{}", out(&plain));

    let file = File::new("good", SERVICES);
    let output = seckill(&["config", "check", "--config", file.arg(), "--json"]);
    assert_eq!(code(&output), 0);
    assert_eq!(json(&output), serde_json::json!({ "ok": true, "mode": "services", "notes": [] }));
}

#[test]
fn open_doors_are_pointed_out() {
    let set = ["--set", "identity.mode=gateway_header", "--set", "server.listen=0.0.0.0:80", "--set"];
    let public = "admin.listen=0.0.0.0:9090";
    let output = seckill(&[&["config", "check"][..], &set, &[public]].concat());
    assert_eq!(code(&output), 2, "nobody may ask for nothing");
    assert!(err(&output).contains("set admin.token"), "{}", err(&output));
    let token = ["--set", "admin.token=0123456789abcdef"];
    let output = seckill(&[&["config", "check"][..], &set, &[public], &token].concat());
    assert_eq!(code(&output), 0);
    assert_eq!(out(&output).matches("\nnote: ").count(), 2, "{}", out(&output));
    let shown = seckill(&[&["config", "show"][..], &token].concat());
    assert!(!out(&shown).contains("0123456789abcdef"), "{}", out(&shown));
}

#[test]
fn an_unknown_setting_is_refused_by_its_full_name() {
    let file = File::new("unknown", "[worker]\nworkerz = 3\n");
    let output = seckill(&["config", "check", "--config", file.arg()]);
    assert_eq!((code(&output), out(&output).as_str()), (2, ""));
    assert!(err(&output).starts_with("error: "), "{}", err(&output));
    assert!(err(&output).contains("there is no setting worker.workerz"), "{}", err(&output));
    assert!(err(&output).contains(file.arg()), "says which file: {}", err(&output));
}

#[test]
fn bad_values_are_refused_all_at_once() {
    let output = seckill(&["config", "check", "--set", "worker.workers=0", "--set", "shards.ring_entries=100"]);
    assert_eq!(code(&output), 2);
    let lines: Vec<String> = err(&output).lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("error: ")), "{lines:?}");
    assert!(lines[0].contains("worker.workers = 0 is out of range: 1..=512"), "{lines:?}");

    let wrong_type = seckill(&["config", "check", "--set", "worker.workers=many"]);
    assert_eq!(code(&wrong_type), 2);
    assert!(err(&wrong_type).contains("worker.workers must be of type integer"), "{}", err(&wrong_type));
}

#[test]
fn keys_that_would_die_too_early_are_refused() {
    let file = File::new("ttl", "[sale]\nkey_ttl_s = 3600\n");
    let output = seckill(&["--json", "config", "check", "--config", file.arg()]);
    assert_eq!((code(&output), err(&output).as_str()), (2, ""));
    let answer = json(&output);
    assert_eq!(answer["ok"], false);
    let errors = answer["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{answer}");
    assert!(errors[0].as_str().unwrap().contains("sale.key_ttl_s = 3600 is too short"), "{answer}");
}

#[test]
fn show_prints_a_file_that_can_be_used_again_and_no_secret() {
    let file = File::new("show", SERVICES);
    let shown = seckill(&["config", "show", "--config", file.arg(), "--set", "shards.count=3"]);
    assert_eq!(code(&shown), 0, "{}", err(&shown));
    let text = out(&shown);
    assert!(text.contains("addr = \"redis.shop:6379\"") && text.contains("count = 3"), "{text}");
    assert!(text.contains("postgres://shop:***@db.shop:5432/shop"), "{text}");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret}");
    }

    let defaults = out(&seckill(&["config", "show"]));
    let again = File::new("again", &defaults);
    assert_eq!(out(&seckill(&["config", "show", "--config", again.arg()])), defaults);
}

#[test]
fn show_as_json_says_the_same() {
    let file = File::new("show-json", SERVICES);
    let args = ["config", "show", "--config", file.arg()];
    let as_json = json(&seckill(&[&args[..], &["--json"]].concat()));
    let as_toml: toml::Table = out(&seckill(&args)).parse().unwrap();
    assert_eq!(as_json, serde_json::to_value(&as_toml).unwrap());
    assert_eq!(as_json["identity"]["jwt_key"], "***");
    for secret in SECRETS {
        assert!(!as_json.to_string().contains(secret), "{secret}");
    }
}

#[test]
fn the_environment_lies_between_file_and_set() {
    let file = File::new("layers", SERVICES);
    let args = ["config", "show", "--json", "--config", file.arg()];
    let environment = [("SECKILL_REDIS", "env.shop:1")];
    let from_environment = json(&seckill_with(&args, &environment));
    assert_eq!(from_environment["redis"]["addr"], "env.shop:1");
    let overridden = json(&seckill_with(&[&args[..], &["--set", "redis.addr=set.shop:2"]].concat(), &environment));
    assert_eq!(overridden["redis"]["addr"], "set.shop:2");
}

#[test]
fn a_missing_file_and_bad_usage_end_with_2() {
    let missing = seckill(&["config", "check", "--config", "/nonexistent/shop.toml"]);
    assert_eq!(code(&missing), 2);
    assert!(err(&missing).contains("cannot read /nonexistent/shop.toml"), "{}", err(&missing));
    assert_eq!(code(&seckill(&["config", "explain"])), 2);
    assert_eq!(code(&seckill(&[])), 2);
}

#[test]
fn help_is_no_failure_and_has_examples() {
    for args in
        [&["--help"][..], &["serve", "--help"], &["activity", "create", "--help"], &["config", "show", "--help"]]
    {
        let output = seckill(args);
        assert_eq!(code(&output), 0, "{args:?}");
        assert!(out(&output).contains("Examples:"), "{args:?}: {}", out(&output));
    }
}

//! Rules of the house that no compiler checks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Longer files are two rooms in one.
const LINES_MAX: usize = 600;

fn files(folder: &Path, ends: &str, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if !matches!(name.to_str(), Some("target" | ".git" | ".stack" | "cases" | "vectors")) {
                files(&path, ends, into);
            }
        } else if name.to_str().is_some_and(|name| name.ends_with(ends)) {
            into.push(path);
        }
    }
}

fn all(folders: &[&str], ends: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in folders {
        files(&Path::new(ROOT).join(folder), ends, &mut found);
    }
    let read = |path: PathBuf| {
        let name = path.strip_prefix(ROOT).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    found.into_iter().map(read).collect()
}

/// What is wrong with a source file.
fn faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |what: &str| faults.push(format!("{name}: {what}"));
    let source = name.starts_with("src/") || name.starts_with("shards/src/") || name.starts_with("proto-clients/src/");
    let code = || text.lines().filter(|line| !line.trim_start().starts_with("//"));
    if source && text.lines().count() > LINES_MAX {
        fault("longer than 600 lines");
    }
    if source && !text.starts_with("//!") {
        fault("does not say what it is for");
    }
    for backend in ["monoio::", "glommio::"] {
        if !name.starts_with("shards/") && code().any(|line| line.contains(backend)) {
            fault("names a runtime outside shards");
        }
    }
    // Time goes through the runtime face, so that tests and faults can reach it.
    let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    for clock in ["SystemTime::now", "Instant::now", "thread::sleep"] {
        if name.starts_with("src/") && !name.ends_with("tests.rs") && before_tests.contains(clock) {
            fault(&format!("calls {clock} instead of the runtime face"));
        }
    }
    if name.starts_with("src/domain/") {
        for outside in [
            "std::net",
            "std::fs",
            "Instant::now",
            "SystemTime::now",
            "crate::ports",
            "crate::services",
            "crate::http",
            "shards::",
        ] {
            if code().any(|line| line.contains(outside)) {
                fault(&format!("the domain reaches out to {outside}"));
            }
        }
    }
    if name.starts_with("src/submit/") || name.starts_with("src/fulfil/") || name.starts_with("src/query/") {
        for edge in ["proto_clients::", "crate::services", "crate::http"] {
            if code().any(|line| line.contains(edge)) {
                fault(&format!("a capability reaches out to {edge}"));
            }
        }
    }
    faults
}

#[test]
fn sources_keep_the_rules() {
    let mut sources = all(&["src", "shards", "proto-clients", "tests", "benches"], ".rs");
    sources.retain(|(name, _)| name != "tests/tidy.rs");
    assert!(sources.len() > 80, "only {} files found", sources.len());
    let faults: Vec<String> = sources.iter().flat_map(|(name, text)| faults(name, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_rules_can_be_broken() {
    let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
    for (name, text) in [
        ("src/a.rs", long.as_str()),
        ("src/a.rs", "fn a() {}"),
        ("src/a.rs", "//! x\nuse monoio::net;"),
        ("src/domain/a.rs", "//! x\nuse shards::time;"),
        ("src/serve/a.rs", "//! x\nlet a = std::time::Instant::now();"),
        ("src/submit/a.rs", "//! x\nuse proto_clients::redis;"),
    ] {
        assert_eq!(faults(name, text).len(), 1, "{name}: {text:.40}");
    }
    assert_eq!(faults("shards/src/a.rs", "//! x\nuse monoio::net;"), [""; 0]);
}

#[test]
fn every_script_and_statement_is_used() {
    let used: String = all(&["src", "tests", "benches"], ".rs")
        .into_iter()
        .chain(all(&["tests", "benches"], ".py"))
        .map(|(_, text)| text)
        .collect();
    for (name, _) in all(&["lua", "sql"], ".lua").into_iter().chain(all(&["sql"], ".sql")) {
        let file = Path::new(&name).file_name().unwrap().to_str().unwrap();
        let assertion = name.starts_with("sql/assertions/");
        assert!(assertion || used.contains(file), "{name} is used by nobody");
    }
}

#[test]
fn metrics_are_named_once() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("src/observe/metrics/visit.rs")).unwrap();
    let mut seen = HashMap::new();
    for name in text.split('"').filter(|word| word.starts_with("seckill_")) {
        *seen.entry(name).or_insert(0) += 1;
    }
    assert!(seen.len() > 40);
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

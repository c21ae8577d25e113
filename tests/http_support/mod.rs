//! A server on a shard of its own thread, and a strict client for it.

#![allow(dead_code, reason = "every test binary uses its own part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use seckill::http::{Handler, HttpConfig, Observer, Phase, serve};
use shards::net::{ListenOptions, TcpListener};
use shards::sync::Gate;
use shards::{DriverChoice, ShardConfig};

/// What an observer was told, in order, as text.
#[derive(Clone, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// Answers are not noted, and nothing is allocated for them.
    skip_answers: bool,
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    /// How many lines are `line`.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|l| *l == line).count()
    }

    /// Waits until `line` was logged.
    pub(crate) fn wait_for(&self, line: &str) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.count(line) == 0 {
            assert!(Instant::now() < end, "no {line:?} in {:?}", self.lines.lock().unwrap());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Observer for Log {
    fn answered(&self, route: usize, status: u16, _: Duration) {
        if !self.skip_answers {
            self.add(format!("answered {route} {status}"));
        }
    }
    fn refused(&self, status: u16, _: Duration) {
        self.add(format!("refused {status}"));
    }
    fn timed_out(&self, phase: Phase) {
        self.add(format!("late {phase:?}"));
    }
    fn handler_panicked(&self) {
        self.add("panicked".to_owned());
    }
    fn connection_opened(&self) {
        self.add("opened".to_owned());
    }
    fn connection_closed(&self) {
        self.add("closed".to_owned());
    }
    fn turned_away(&self) {
        self.add("turned away".to_owned());
    }
    fn accept_failed(&self, error: &std::io::Error) {
        self.add(format!("accept failed: {error}"));
    }
}

/// A running server; stopped and joined by [`Server::stop`].
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) log: Log,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts one with the handler that `make` makes inside the shard.
    pub(crate) fn start<H: Handler + 'static>(
        driver: DriverChoice,
        config: HttpConfig,
        make: impl FnOnce() -> H + Send + 'static,
    ) -> Self {
        Self::start_logging(driver, config, Log::default(), make)
    }

    /// Starts one that does not log its answers.
    pub(crate) fn start_quiet<H: Handler + 'static>(
        driver: DriverChoice,
        config: HttpConfig,
        make: impl FnOnce() -> H + Send + 'static,
    ) -> Self {
        Self::start_logging(driver, config, Log { skip_answers: true, ..Log::default() }, make)
    }

    fn start_logging<H: Handler + 'static>(
        driver: DriverChoice,
        config: HttpConfig,
        log: Log,
        make: impl FnOnce() -> H + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (addr_tx, addr_rx) = mpsc::channel();
        let (shard_log, shard_stop) = (log.clone(), Arc::clone(&stop));
        let body = move || {
            let shard = ShardConfig { driver, ring_entries: 256, ..ShardConfig::default() };
            let main = async move {
                let listener = TcpListener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
                addr_tx.send(listener.local_addr().unwrap()).unwrap();
                let gate = Gate::new();
                let closing = gate.clone();
                shards::spawn(async move {
                    while !shard_stop.load(Ordering::Relaxed) {
                        shards::sleep(Duration::from_millis(5)).await;
                    }
                    closing.close();
                });
                serve(listener, Rc::new(make()), Rc::new(shard_log), config, gate).await;
            };
            shards::run_with(&shard, main).unwrap();
        };
        let thread = Some(thread::spawn(body));
        Self { addr: addr_rx.recv().unwrap(), log, stop, thread }
    }

    /// Asks it to stop.
    pub(crate) fn begin_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(mut self) {
        self.begin_stop();
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }
}

/// An answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// A field's value.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.split("\r\n").skip(1);
        let mut fields = lines.filter_map(|line| line.split_once(": "));
        fields.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The `code` member of an error body.
    pub(crate) fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_str(&self.body).ok()?;
        body.get("code")?.as_str().map(str::to_owned)
    }
}

/// A client that takes nothing on trust.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
    pub(crate) ended: bool,
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new(), ended: false }
    }

    /// Sends; an error means that the server has closed, which its answers will tell.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
    }

    pub(crate) fn end_sending(&self) {
        if let Err(error) = self.stream.shutdown(Shutdown::Write) {
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        }
    }

    /// Reads once, for at most `limit`; false if nothing came.
    fn fill(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(Some(limit.max(Duration::from_millis(1)))).unwrap();
        let mut bytes = [0u8; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Err(_) => self.ended = true,
        }
        !self.ended
    }

    /// The next answer; `None` when the connection ends or `limit` passes before one begins.
    pub(crate) fn answer(&mut self, limit: Duration) -> Option<Answer> {
        let end = Instant::now() + limit;
        loop {
            if let Some(answer) = self.take_answer() {
                return Some(answer);
            }
            if self.ended || Instant::now() >= end {
                assert!(self.unread.is_empty(), "a broken answer: {:?}", String::from_utf8_lossy(&self.unread));
                return None;
            }
            self.fill(end.saturating_duration_since(Instant::now()));
        }
    }

    fn take_answer(&mut self) -> Option<Answer> {
        let at = self.unread.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8(self.unread[..at].to_vec()).unwrap();
        assert!(head.starts_with("HTTP/1.1 ") && head.as_bytes()[12] == b' ', "{head}");
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: String::new() };
        let mut length = 0;
        if answer.status >= 200 {
            length = answer.field("Content-Length").expect("a length").parse().unwrap();
            assert_eq!(answer.field("Date").map(str::len), Some(29), "{}", answer.head);
            assert!(answer.field("Transfer-Encoding").is_none());
        }
        let end = at + 4 + length;
        if self.unread.len() < end {
            return None;
        }
        answer.body = String::from_utf8(self.unread[at + 4..end].to_vec()).unwrap();
        self.unread.drain(..end);
        Some(answer)
    }

    /// Waits up to `limit` for the server to close, having sent nothing more.
    pub(crate) fn closed_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while !self.ended && Instant::now() < end {
            self.fill(end.saturating_duration_since(Instant::now()));
        }
        assert!(self.unread.is_empty(), "an answer too many: {:?}", String::from_utf8_lossy(&self.unread));
        self.ended
    }
}

//! The demo: a sale, a rush, and the books compared, on the real server over its real port.
//!
//! The server is a process of its own, the very `seckill serve` that a user would start; the buyers are an open loop of
//! distinct users, some of whom click twice. What they were told is then compared with what is on the disk.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use indicatif::ProgressBar;
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use shards::signal::Signals;

use crate::assertions::ASSERTIONS;
use crate::bench::{Buyers, E2eOptions, E2eReport, LoadOptions, Pace, e2e};
use crate::domain::Sku;
use crate::embedded::data::{journal_folder, store_path};
use crate::embedded::lane::SaleView;
use crate::embedded::operator::{Operator, OperatorError};
use crate::embedded::record::Opening;

/// How the buyers say who they are: as a gateway would.
const USER_FIELD: &str = "X-User-Id";
/// Every so many clicks one is a buyer's second.
const TWICE_EVERY: u64 = 20;

/// What is shown.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The data folder.
    pub data: PathBuf,
    /// The public address, port 0 = any.
    pub listen: String,
    /// Units on sale.
    pub units: u32,
    /// Clicks a second.
    pub rate: u32,
    /// Seconds of the rush.
    pub seconds: u32,
    /// Further settings of the server, `section.key=value`.
    pub settings: Vec<String>,
}

/// Why the demo could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The server did not start.
    #[error("the server did not start: {0}; its log is {1}")]
    Server(String, String),
    /// The sale could not be made or looked at.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The buyers could not buy.
    #[error(transparent)]
    Load(#[from] crate::bench::BenchError),
    /// The disk could not be read or written.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The order store could not be read.
    #[error("the order store cannot be read: {0}")]
    Store(#[from] rusqlite::Error),
}

/// What was seen.
#[derive(Debug, Clone, Serialize)]
pub struct DemoReport {
    /// The sale at the end, as the book has it.
    pub sale: SaleView,
    /// What the buyers saw.
    pub buyers: E2eReport,
    /// Orders of the sale on the disk.
    pub orders: u64,
    /// Distinct users among them.
    pub order_users: u64,
    /// Memory of the server, in bytes.
    pub server_bytes: Option<u64>,
    /// CPU of the server for a click, in microseconds.
    pub server_cpu_us: Option<f64>,
    /// The data folder.
    pub data: PathBuf,
    /// Where the server answers buyers and operators.
    pub public: String,
    /// The admin address.
    pub admin: String,
    /// What is not as it should be; empty when all is well.
    pub wrong: Vec<String>,
}

/// The server, ended in order when dropped.
pub struct Server {
    child: Child,
    /// The public address.
    pub public: String,
    /// The admin address.
    pub admin: String,
}

#[derive(serde::Deserialize)]
struct Serving {
    public: String,
    admin: String,
}

impl Server {
    /// Starts `seckill serve` on the data folder.
    ///
    /// # Errors
    /// [`DemoError`]
    pub fn start(options: &DemoOptions) -> Result<Self, DemoError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |error| DemoError::Io(what, error)
        };
        std::fs::create_dir_all(&options.data).map_err(io("cannot make the data folder"))?;
        let log_path = options.data.join("server.log");
        let log = std::fs::File::create(&log_path).map_err(io("cannot write the server's log"))?;
        let program = std::env::current_exe().map_err(io("cannot find this program"))?;
        let mut command = Command::new(program);
        command.arg("serve");
        let settings = [
            format!("embedded.data={}", options.data.display()),
            format!("identity.gateway_header={USER_FIELD}"),
            "identity.mode=gateway_header".to_owned(),
            format!("server.listen={}", options.listen),
            "admin.listen=127.0.0.1:0".to_owned(),
            "admin.token=".to_owned(),
            // Everything of the demo shares one machine, the buyers too.
            "shards.pin=false".to_owned(),
            "submit.deadline_ms=1000".to_owned(),
        ];
        for setting in settings.iter().chain(&options.settings) {
            command.args(["--set", setting]);
        }
        // The demo is embedded, whatever services the shell names.
        for (name, _) in crate::config::ENVIRONMENT {
            command.env_remove(name);
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = spawned.map_err(io("cannot start the server"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(io("cannot read from the server"))?;
        }
        match serde_json::from_str::<Serving>(&line) {
            Ok(Serving { public, admin }) => Ok(Self { child, public, admin }),
            Err(_) => {
                let ended = child.wait().map_err(io("the server"))?;
                let log = std::fs::read_to_string(&log_path).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default().to_owned();
                Err(DemoError::Server(format!("{ended}: {last}"), log_path.display().to_string()))
            }
        }
    }

    /// Waits until somebody ends the server, or this process: then it ends the server in order.
    ///
    /// # Errors
    /// [`DemoError::Io`]
    pub fn wait(mut self) -> Result<(), DemoError> {
        let io = |error| DemoError::Io("cannot wait for the server".to_owned(), error);
        let mut signals = Signals::install().map_err(io)?;
        shards::run(async move {
            while self.child.try_wait().map_err(io)?.is_none() {
                if shards::timeout(Duration::from_millis(200), signals.next()).await.is_ok() {
                    break;
                }
            }
            // Dropping it asks it to stop, and waits.
            drop(self);
            Ok(())
        })
    }

    fn bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // It is gone already when this fails.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Makes a sale, lets the buyers loose, compares the books.
///
/// # Errors
/// [`DemoError`]; what is not as it should be is no error but [`DemoReport::wrong`].
pub fn run(server: &Server, options: &DemoOptions, progress: ProgressBar) -> Result<DemoReport, DemoError> {
    let now_ms = shards::unix_micros() / 1_000;
    let operator = Operator::find(&options.data, "")?;
    // A sale of its own each time, so that the demo can be shown again on the same folder.
    let sku = i64::try_from(now_ms / 1_000).ok().and_then(|second| Sku::new(1, second));
    let Some(sku) = sku else { return Err(DemoError::Server("the clock is before 1970".to_owned(), String::new())) };
    let opening = Opening {
        sku,
        start_ms: now_ms.saturating_sub(1_000),
        end_ms: now_ms + 3_600_000,
        expire_at_ms: now_ms + 2 * 3_600_000,
        total: i64::from(options.units),
    };
    operator.open(&opening)?;
    let clicks = u64::from(options.rate) * u64::from(options.seconds);
    progress.set_length(clicks);
    let load = LoadOptions {
        targets: vec![server.public.clone()],
        sku,
        buyers: Buyers::Header(USER_FIELD.to_owned()),
        first_user: 1,
        pace: Pace::Open { rate: f64::from(options.rate) },
        connections: 256,
        count: clicks,
        lasts: None,
        patience: Duration::from_secs(10),
        watch: vec![server.child.id()],
        twice_every: TWICE_EVERY,
        progress,
    };
    let buyers = e2e(E2eOptions { load, queries: Vec::new(), settle: Duration::from_secs(30), followers: 64 })?;
    let sale = operator.view(sku)?;
    let store = Connection::open_with_flags(store_path(&options.data), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let (orders, order_users): (i64, i64) = store.query_row(
        "SELECT count(*), count(DISTINCT user_id) FROM orders WHERE activity_id = ?1 AND sku_id = ?2",
        (sku.activity.get(), sku.sku.get()),
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let mut report = DemoReport {
        server_cpu_us: buyers.submit.cpu_us_per_answer,
        sale,
        buyers,
        orders: orders.unsigned_abs(),
        order_users: order_users.unsigned_abs(),
        server_bytes: server.bytes(),
        data: options.data.clone(),
        public: server.public.clone(),
        admin: server.admin.clone(),
        wrong: Vec::new(),
    };
    report.wrong = wrong(&report, clicks, &store)?;
    Ok(report)
}

/// Compares what the buyers were told, what the book holds and what is on the disk.
fn wrong(report: &DemoReport, clicks: u64, store: &Connection) -> Result<Vec<String>, DemoError> {
    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let DemoReport { sale, buyers, orders, order_users, .. } = report;
    let accepted = count(&buyers.submit.answers, "202");
    let sold = u64::try_from(sale.total - sale.stock).unwrap_or_default();
    check(buyers.submit.answered == clicks, format!("{clicks} clicks, but {} answers", buyers.submit.answered));
    check(
        accepted == *orders,
        format!("{accepted} buyers were promised an order, but {orders} orders are on the disk"),
    );
    check(sold == *orders, format!("{sold} units have left the stock, but {orders} orders are on the disk"));
    check(sale.stock >= 0, format!("the stock is {}", sale.stock));
    check(order_users == orders, format!("{orders} orders of {order_users} users"));
    check(sale.buyers as u64 == sold, format!("{} buyers hold {sold} units", sale.buyers));
    let created = buyers.finals.get("CREATED").copied().unwrap_or_default();
    check(created == accepted, format!("{accepted} promises, but {created} of them were seen as orders"));
    check(buyers.unfinished == 0, format!("{} promises without a result", buyers.unfinished));
    for (name, query) in ASSERTIONS {
        let mut statement = store.prepare(query)?;
        let holds = statement.query([])?.next()?.is_none();
        check(holds, format!("the assertion {name} finds rows"));
    }
    Ok(wrong)
}

fn count(answers: &BTreeMap<String, u64>, prefix: &str) -> u64 {
    answers.iter().filter(|(answer, _)| answer.starts_with(prefix)).map(|(_, count)| count).sum()
}

/// Bytes of all files in a folder.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|file| std::os::unix::fs::MetadataExt::blocks(&file) * 512)
        .sum()
}

impl std::fmt::Display for DemoReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let answers = &self.buyers.submit.answers;
        let latency = &self.buyers.submit.latency_ms;
        let visible = &self.buyers.visible_ms;
        let SaleView { sku_id, total, stock, .. } = &self.sale;
        writeln!(
            f,
            "\n  A flash sale: {total} units, {} clicks in {:.1} s",
            self.buyers.submit.answered, self.buyers.submit.elapsed_s
        )?;
        writeln!(f)?;
        writeln!(
            f,
            "  sold              {:>9}   promised within p50 {:.1} ms, p99 {:.1} ms",
            count(answers, "202"),
            latency.p50,
            latency.p99
        )?;
        writeln!(f, "  sold out          {:>9}", count(answers, "409 SOLD_OUT"))?;
        writeln!(
            f,
            "  one user twice    {:>9}   refused, the first order stands",
            count(answers, "409 DUPLICATE_ORDER")
        )?;
        let rest = self.buyers.submit.answered - count(answers, "202") - count(answers, "409");
        writeln!(f, "  other answers     {rest:>9}")?;
        writeln!(f, "  left              {stock:>9}")?;
        writeln!(f)?;
        writeln!(f, "  rate              {:>9.0}   clicks a second", self.buyers.submit.rate)?;
        writeln!(
            f,
            "  order visible     {:>9.1}   ms after the click (p50), {:.1} ms (p99)",
            visible.p50, visible.p99
        )?;
        if let (Some(bytes), Some(cpu)) = (self.server_bytes, self.server_cpu_us) {
            writeln!(
                f,
                "  server            {:>9.0}   MiB, {cpu:.1} us CPU a click",
                bytes as f64 / f64::from(1 << 20)
            )?;
        }
        writeln!(f, "  on the disk       {:>9}   orders", self.orders)?;
        writeln!(f)?;
        if self.wrong.is_empty() {
            writeln!(f, "  Every promise is an order, every order was promised, nobody has two, nothing is oversold.")?;
        } else {
            writeln!(f, "  NOT AS IT SHOULD BE:")?;
            for what in &self.wrong {
                writeln!(f, "    {what}")?;
            }
        }
        let (journal, store) = (journal_folder(&self.data), store_path(&self.data));
        writeln!(f)?;
        writeln!(
            f,
            "  journal   {} ({:.0} MiB with room to grow)",
            journal.display(),
            folder_bytes(&journal) as f64 / f64::from(1 << 20)
        )?;
        writeln!(f, "  orders    {}", store.display())?;
        write!(f, "            sqlite3 {} 'SELECT * FROM orders WHERE sku_id = {sku_id} LIMIT 5'", store.display())
    }
}

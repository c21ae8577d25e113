//! An operator's way to a running embedded process: its admin listener, found through the data folder.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::data::SERVER_NOTE;
use super::lane::SaleView;
use super::record::Opening;
use crate::domain::Sku;

/// Longest wait for one answer.
const STEP: Duration = Duration::from_secs(10);

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No process runs on the folder.
    #[error(
        "no server runs on the data folder {folder} ({source}): start `seckill serve`, or name its folder with --set \
         embedded.data=FOLDER. To use services instead, set redis.addr, rocketmq.name_servers and postgres.url",
        folder = .folder.display()
    )]
    NotRunning {
        /// The folder.
        folder: PathBuf,
        /// What was tried.
        source: io::Error,
    },
    /// No such sale.
    #[error("there is no sale {0}; make it with `seckill activity create`")]
    Unknown(Sku),
    /// It is there on other terms.
    #[error("sale {0} is there on other terms; `seckill activity status` shows them")]
    Different(Sku),
    /// The server did not do it.
    #[error("the server answered {status}: {body}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it said.
        body: String,
    },
}

/// A running process.
#[derive(Debug, Clone)]
pub struct Operator {
    folder: PathBuf,
    admin: SocketAddr,
    token: String,
}

#[derive(serde::Deserialize)]
struct Note {
    admin: SocketAddr,
}

/// Where sales are on the admin listener.
pub const PATH: &str = "/activities";

/// The body that opens a sale: the terms of an [`Opening`]. Times are Unix milliseconds.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are those of an opening")]
pub struct Open {
    pub activity_id: i64,
    pub sku_id: i64,
    pub start_ms: u64,
    pub end_ms: u64,
    pub expire_at_ms: u64,
    pub total: i64,
}

impl Open {
    fn of(opening: &Opening) -> Self {
        let Opening { sku, start_ms, end_ms, expire_at_ms, total } = *opening;
        let (activity_id, sku_id) = (sku.activity.get(), sku.sku.get());
        Self { activity_id, sku_id, start_ms, end_ms, expire_at_ms, total }
    }

    /// The terms; `None` unless the ids are positive, the times in order and the units within a billion.
    pub fn opening(&self) -> Option<Opening> {
        let Self { start_ms, end_ms, expire_at_ms, total, .. } = *self;
        let sku = Sku::new(self.activity_id, self.sku_id)?;
        let sound = start_ms < end_ms && end_ms <= expire_at_ms && (0..=1_000_000_000).contains(&total);
        sound.then_some(Opening { sku, start_ms, end_ms, expire_at_ms, total })
    }
}

/// The answer to a change.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Changed {
    /// Whether anything was changed.
    pub changed: bool,
}

impl Operator {
    /// Finds the process that runs on `folder`; `token` is its `admin.token`, empty where it asks for none.
    ///
    /// # Errors
    /// [`OperatorError::NotRunning`]
    pub fn find(folder: &Path, token: &str) -> Result<Self, OperatorError> {
        let not_running = |source| OperatorError::NotRunning { folder: folder.to_owned(), source };
        let note = std::fs::read(folder.join(SERVER_NOTE)).map_err(not_running)?;
        let note: Note = serde_json::from_slice(&note).map_err(|error| not_running(error.into()))?;
        Ok(Self { folder: folder.to_owned(), admin: note.admin, token: token.to_owned() })
    }

    /// Opens a sale; `false`: it was open on the same terms.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub fn open(&self, opening: &Opening) -> Result<bool, OperatorError> {
        let body = serde_json::json!(Open::of(opening)).to_string();
        self.changed(opening.sku, &self.call("POST", PATH, &body)?)
    }

    /// Closes a sale; `false`: it was closed.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub fn close(&self, sku: Sku) -> Result<bool, OperatorError> {
        self.changed(sku, &self.call("POST", &format!("{PATH}/{}/{}/close", sku.activity, sku.sku), "")?)
    }

    /// The sale as the book has it.
    ///
    /// # Errors
    /// [`OperatorError`]
    pub fn view(&self, sku: Sku) -> Result<SaleView, OperatorError> {
        let (status, body) = self.call("GET", &format!("{PATH}/{}/{}", sku.activity, sku.sku), "")?;
        match (status, serde_json::from_str(&body)) {
            (200, Ok(view)) => Ok(view),
            (404, _) => Err(OperatorError::Unknown(sku)),
            _ => Err(OperatorError::Refused { status, body }),
        }
    }

    fn changed(&self, sku: Sku, (status, body): &(u16, String)) -> Result<bool, OperatorError> {
        match (status, serde_json::from_str::<Changed>(body)) {
            (200, Ok(answer)) => Ok(answer.changed),
            (404, _) => Err(OperatorError::Unknown(sku)),
            (409, _) => Err(OperatorError::Different(sku)),
            (status, _) => Err(OperatorError::Refused { status: *status, body: body.clone() }),
        }
    }

    fn call(&self, method: &str, path: &str, body: &str) -> Result<(u16, String), OperatorError> {
        self.exchange(method, path, body)
            .map_err(|source| OperatorError::NotRunning { folder: self.folder.clone(), source })
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.admin, STEP)?;
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        let host = self.admin;
        let length = body.len();
        let authorization = match self.token.as_str() {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {authorization}Content-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
    }
}

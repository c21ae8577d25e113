//! One round trip, without I/O: everything between a request and its ReadyForQuery.

use std::rc::Rc;

use bytes::Bytes;

use super::error::PgError;
use super::message::{Backend, ProtocolError, TransactionStatus};
use super::rows::{Column, Rows};

/// How a round trip ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Results of the statements that ran, in order. After an error outside a transaction block they have been undone.
    pub results: Vec<Rows>,
    /// The first error: which statement, and what. The statements behind it were skipped.
    pub error: Option<(usize, PgError)>,
    /// The transaction status at the end.
    pub status: TransactionStatus,
    /// Statements whose Parse was taken, by their place.
    pub parsed: Vec<usize>,
    /// What each statement returns, where it was described: (place, columns).
    pub described: Vec<(usize, Rc<[Column]>)>,
}

/// A round trip under way.
#[derive(Debug)]
pub struct Exchange {
    /// Columns known from an earlier Describe, by place.
    known: Vec<Option<Rc<[Column]>>>,
    /// The simple protocol gives as many results as the text has statements.
    simple: bool,
    columns: Option<Rc<[Column]>>,
    rows: Vec<Bytes>,
    results: Vec<Rows>,
    error: Option<(usize, PgError)>,
    parsed: Vec<usize>,
    described: Vec<(usize, Rc<[Column]>)>,
    bytes: usize,
    bytes_max: usize,
}

impl Exchange {
    /// Of prepared statements: a place each, with its columns where they are known already. At most `bytes_max` bytes of
    /// rows are taken.
    pub fn extended(known: Vec<Option<Rc<[Column]>>>, bytes_max: usize) -> Self {
        Self {
            known,
            simple: false,
            columns: None,
            rows: Vec::new(),
            results: Vec::new(),
            error: None,
            parsed: Vec::new(),
            described: Vec::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Of the simple protocol.
    pub fn simple(bytes_max: usize) -> Self {
        Self { simple: true, ..Self::extended(Vec::new(), bytes_max) }
    }

    /// Takes a message; the outcome once it is complete. Notices, settings and notifications are taken in anywhere.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection must be closed then.
    pub fn on(&mut self, message: Backend) -> Result<Option<Outcome>, ProtocolError> {
        let place = self.results.len();
        match message {
            Backend::Notice(_) | Backend::ParameterStatus { .. } | Backend::Notification { .. } => {}
            Backend::Error(error) => {
                if self.error.is_none() {
                    self.error = Some((place, error));
                }
                self.rows.clear();
            }
            Backend::Ready(status) => return self.ready(status).map(Some),
            // Nothing of the skipped statements may come after an error.
            _ if self.error.is_some() => return Err(ProtocolError::Unexpected(b'?')),
            Backend::ParseComplete => self.parsed.push(place),
            Backend::BindComplete => {
                if self.columns.is_none() {
                    self.columns = self.known.get(place).cloned().flatten();
                }
            }
            Backend::ParameterDescription | Backend::CloseComplete => {}
            Backend::RowDescription(columns) => self.describe(place, columns),
            Backend::NoData => self.describe(place, Rc::new([])),
            Backend::DataRow(row) => {
                self.bytes += row.len() + size_of::<Bytes>();
                if self.bytes > self.bytes_max {
                    return Err(ProtocolError::TooLong);
                }
                self.rows.push(row);
            }
            Backend::CommandComplete(tag) => self.complete(tag)?,
            Backend::EmptyQuery => self.complete(String::new())?,
            Backend::Authentication(_) | Backend::KeyData { .. } | Backend::NegotiateVersion => {
                return Err(ProtocolError::Unexpected(b'R'));
            }
            Backend::Other(kind) => return Err(ProtocolError::Unexpected(kind)),
        }
        Ok(None)
    }

    /// The error so far: what the server said before it closed the connection.
    pub fn failure(&self) -> Option<&PgError> {
        self.error.as_ref().map(|(_, error)| error)
    }

    fn describe(&mut self, place: usize, columns: Rc<[Column]>) {
        if self.simple {
            self.columns = Some(columns);
            return;
        }
        // Describe of a statement tells the format it was asked for as text; we bind all results as binary.
        let columns: Rc<[Column]> = columns.iter().map(|column| Column { binary: true, ..column.clone() }).collect();
        self.described.push((place, columns.clone()));
        self.columns = Some(columns);
    }

    fn complete(&mut self, tag: String) -> Result<(), ProtocolError> {
        if !self.simple && self.results.len() >= self.known.len() {
            return Err(ProtocolError::Unexpected(b'C'));
        }
        let columns = self.columns.take().unwrap_or_else(|| Rc::new([]));
        self.results.push(Rows { columns, rows: std::mem::take(&mut self.rows), tag });
        Ok(())
    }

    fn ready(&mut self, status: TransactionStatus) -> Result<Outcome, ProtocolError> {
        if !self.simple && self.error.is_none() && self.results.len() != self.known.len() {
            return Err(ProtocolError::Unexpected(b'Z'));
        }
        Ok(Outcome {
            results: std::mem::take(&mut self.results),
            error: self.error.take(),
            status,
            parsed: std::mem::take(&mut self.parsed),
            described: std::mem::take(&mut self.described),
        })
    }
}

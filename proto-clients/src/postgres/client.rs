//! What a caller does with a connection of its own.

use std::rc::Rc;
use std::time::Instant;

use bytes::BytesMut;

use super::connection::{Connection, Prepared};
use super::exchange::{Exchange, Outcome};
use super::message::TransactionStatus;
use super::pool::Pool;
use super::{CallError, CommitError, Params, PipelineError, Rows, Statement, Unknown, frontend};

static BEGIN: Statement = Statement { sql: "BEGIN", params: &[] };

/// Longest clean-up of a transaction that was let go.
const CLEAN_UP: std::time::Duration = std::time::Duration::from_secs(1);

/// A connection taken out of the pool. Dropping it gives it back, or closes it when its state is not known.
pub struct Client {
    connection: Rc<Connection>,
    pool: Pool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("status", &self.connection.status()).finish()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let (connection, pool) = (self.connection.clone(), self.pool.clone());
        if connection.has_ended() || connection.status() == TransactionStatus::Idle {
            pool.give_back(connection);
            return;
        }
        shards::spawn(async move {
            let deadline = shards::now() + CLEAN_UP;
            let cleaned = simple(&connection, "ROLLBACK", pool.result_bytes_max(), deadline).await;
            if cleaned.is_err() || connection.status() != TransactionStatus::Idle {
                connection.end(Unknown::ConnectionLost);
            }
            pool.give_back(connection);
        });
    }
}

async fn simple(
    connection: &Rc<Connection>,
    sql: &str,
    bytes_max: usize,
    deadline: Instant,
) -> Result<Vec<Rows>, CallError> {
    let mut out = BytesMut::with_capacity(sql.len() + 16);
    frontend::query(&mut out, sql);
    let outcome = connection.run(&out, Exchange::simple(bytes_max), deadline).await?;
    match outcome.error {
        Some((_, error)) => Err(Box::new(error).into()),
        None => Ok(outcome.results),
    }
}

impl Client {
    pub(super) fn new(connection: Rc<Connection>, pool: Pool) -> Self {
        Self { connection, pool }
    }

    /// Runs one statement. Outside a transaction block it commits by itself.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query(
        &mut self,
        statement: &'static Statement,
        params: &Params,
        deadline: Instant,
    ) -> Result<Rows, CallError> {
        let mut outcome = self.run(&[(statement, params)], deadline).await?;
        match (outcome.error.take(), outcome.results.pop()) {
            (Some((_, error)), _) => Err(Box::new(error).into()),
            (None, Some(rows)) => Ok(rows),
            // The exchange ends only with a result for every statement.
            (None, None) => Err(Unknown::ConnectionLost.into()),
        }
    }

    /// Runs statements in one round trip and, outside a transaction block, in one transaction: all or nothing.
    ///
    /// # Errors
    /// [`PipelineError`]: nothing was done unless the outcome is unknown.
    pub async fn pipeline(
        &mut self,
        statements: &[(&'static Statement, &Params)],
        deadline: Instant,
    ) -> Result<Vec<Rows>, PipelineError> {
        let outcome = self.run(statements, deadline).await.map_err(|error| PipelineError { index: 0, error })?;
        match outcome.error {
            Some((index, error)) => Err(PipelineError { index, error: Box::new(error).into() }),
            None => Ok(outcome.results),
        }
    }

    /// Opens a transaction block. BEGIN travels with the first statement.
    ///
    /// # Errors
    /// None now; the first statement carries them.
    pub async fn begin(&mut self, _deadline: Instant) -> Result<Transaction<'_>, CallError> {
        Ok(Transaction { client: self, begun: false })
    }

    /// Runs a text of one or more statements by the simple protocol; results are in text format.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn simple(&mut self, sql: &str, deadline: Instant) -> Result<Vec<Rows>, CallError> {
        simple(&self.connection, sql, self.pool.result_bytes_max(), deadline).await
    }

    /// Runs statements. When what this connection has prepared does not fit the server's state any more (a migration, a DISCARD)
    /// and nothing else has happened yet, they are prepared anew and run again.
    async fn run(
        &mut self,
        statements: &[(&'static Statement, &Params)],
        deadline: Instant,
    ) -> Result<Outcome, CallError> {
        let is_idle = |client: &Self| client.connection.status() == TransactionStatus::Idle;
        let was_idle = is_idle(self);
        let mut outcome = self.run_once(statements, deadline).await?;
        if is_outdated(&outcome) && was_idle && is_idle(self) {
            self.connection.prepared.borrow_mut().clear();
            self.simple("DEALLOCATE ALL", deadline).await?;
            outcome = self.run_once(statements, deadline).await?;
        }
        if is_outdated(&outcome) {
            self.connection.end(Unknown::ConnectionLost);
        }
        Ok(outcome)
    }

    async fn run_once(
        &mut self,
        statements: &[(&'static Statement, &Params)],
        deadline: Instant,
    ) -> Result<Outcome, CallError> {
        let connection = &self.connection;
        let (mut out, mut known) = (BytesMut::with_capacity(1024), Vec::with_capacity(statements.len()));
        let mut names = Vec::with_capacity(statements.len());
        {
            let prepared = connection.prepared.borrow();
            for (place, (statement, params)) in statements.iter().enumerate() {
                // Statements are statics, so that an address names one.
                let id = std::ptr::from_ref(*statement) as usize;
                let again = statements[..place].iter().position(|(earlier, _)| std::ptr::eq(*earlier, *statement));
                let name = match (prepared.get(&id), again) {
                    (Some(there), _) => {
                        known.push(there.columns.clone());
                        there.name.clone()
                    }
                    _ => {
                        let name = format!("s{id:x}");
                        if again.is_none() {
                            frontend::parse(&mut out, &name, statement);
                        }
                        frontend::describe(&mut out, &name);
                        known.push(None);
                        name
                    }
                };
                frontend::bind(&mut out, &name, params);
                frontend::execute(&mut out);
                names.push((id, name));
            }
        }
        frontend::sync(&mut out);
        let exchange = Exchange::extended(known, self.pool.result_bytes_max());
        let outcome = connection.run(&out, exchange, deadline).await?;
        let mut prepared = connection.prepared.borrow_mut();
        for place in &outcome.parsed {
            if let Some((id, name)) = names.get(*place) {
                prepared.insert(*id, Prepared { name: name.clone(), columns: None });
            }
        }
        for (place, columns) in &outcome.described {
            if let Some((id, _)) = names.get(*place)
                && let Some(there) = prepared.get_mut(id)
            {
                there.columns = Some(columns.clone());
            }
        }
        Ok(outcome)
    }
}

/// Whether the server says that a prepared statement is gone (26000) or that its result has another type now (0A000).
fn is_outdated(outcome: &Outcome) -> bool {
    outcome.error.as_ref().is_some_and(|(_, error)| matches!(error.sqlstate.as_str(), "26000" | "0A000"))
}

/// A transaction block. Dropping it without [`commit`](Self::commit) rolls it back.
#[derive(Debug)]
pub struct Transaction<'a> {
    client: &'a mut Client,
    begun: bool,
}

impl Transaction<'_> {
    /// Runs a statement in it.
    ///
    /// # Errors
    /// [`CallError`]; after one the transaction can only be rolled back.
    pub async fn query(
        &mut self,
        statement: &'static Statement,
        params: &Params,
        deadline: Instant,
    ) -> Result<Rows, CallError> {
        if std::mem::replace(&mut self.begun, true) {
            return self.client.query(statement, params, deadline).await;
        }
        let none = Params::new();
        let both = [(&BEGIN, &none), (statement, params)];
        let results = self.client.pipeline(&both, deadline).await.map_err(|failed| failed.error)?;
        results.into_iter().nth(1).ok_or_else(|| Unknown::ConnectionLost.into())
    }

    /// Runs a text of statements in it by the simple protocol.
    ///
    /// # Errors
    /// [`CallError`]; after one the transaction can only be rolled back.
    pub async fn simple(&mut self, sql: &str, deadline: Instant) -> Result<Vec<Rows>, CallError> {
        if !std::mem::replace(&mut self.begun, true) {
            self.client.simple("BEGIN", deadline).await?;
        }
        self.client.simple(sql, deadline).await
    }

    /// Commits. Only `Ok` means that it is stored.
    ///
    /// # Errors
    /// [`CommitError`].
    pub async fn commit(self, deadline: Instant) -> Result<(), CommitError> {
        if !self.begun {
            return Ok(());
        }
        let results = self.client.simple("COMMIT", deadline).await?;
        match results.first().map(Rows::tag) {
            Some("COMMIT") => Ok(()),
            // A failed transaction answers so, and without an error.
            Some("ROLLBACK") => Err(CommitError::RolledBack),
            _ => Err(CommitError::Call(Unknown::ConnectionLost.into())),
        }
    }

    /// Rolls back. Should that fail, the connection is closed, which comes to the same.
    pub async fn rollback(self, deadline: Instant) {
        if self.begun && self.client.simple("ROLLBACK", deadline).await.is_err() {
            self.client.connection.end(Unknown::ConnectionLost);
        }
    }
}

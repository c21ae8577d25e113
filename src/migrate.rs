//! Brings a database to the schema of this binary.

use std::time::{Duration, Instant};

use proto_clients::postgres::{CallError, Client, CommitError, DecodeError, Params, Pool, Statement, Type};
use sha2::{Digest, Sha256};

/// The migrations, in order. An applied file must not change any more.
const MIGRATIONS: [(&str, &str); 5] = [
    ("0001_tables.sql", include_str!("../sql/migrations/0001_tables.sql")),
    ("0002_order_batch.sql", include_str!("../sql/migrations/0002_order_batch.sql")),
    ("0003_projection_cursor.sql", include_str!("../sql/migrations/0003_projection_cursor.sql")),
    ("0004_stuck_inbox.sql", include_str!("../sql/migrations/0004_stuck_inbox.sql")),
    ("0005_order_batch_steps.sql", include_str!("../sql/migrations/0005_order_batch_steps.sql")),
];
const TABLE: &str = include_str!("../sql/schema_migrations.sql");

static APPLIED: Statement =
    Statement { sql: "SELECT name, checksum FROM schema_migrations WHERE version = $1", params: &[Type::Int4] };
static NOTE: Statement = Statement {
    sql: "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
    params: &[Type::Int4, Type::Text, Type::Text],
};
static LOCK: Statement = Statement { sql: "LOCK TABLE schema_migrations IN EXCLUSIVE MODE", params: &[] };

/// A migration may rewrite a large table; nobody waits for it but the operator.
const STEP: Duration = Duration::from_secs(600);

/// Why the schema is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// PostgreSQL refused or could not be reached.
    #[error("{what}: {source}")]
    Call {
        /// What was tried.
        what: String,
        /// What PostgreSQL said.
        source: CallError,
    },
    /// It may or may not be in: run it again.
    #[error("{what}: {source}")]
    Commit {
        /// Which migration.
        what: String,
        /// Why.
        source: CommitError,
    },
    /// The answer of `schema_migrations` cannot be read.
    #[error("schema_migrations: {0}")]
    Decode(#[from] DecodeError),
    /// The database was made by another version of this file.
    #[error(
        "{name} has been applied with other contents (checksum {there}, here {here}): this binary does not fit this database"
    )]
    Changed {
        /// The file.
        name: String,
        /// Checksum in the database.
        there: String,
        /// Checksum in this binary.
        here: String,
    },
}

/// Names of the migrations applied now; empty when the database was up to date.
///
/// # Errors
/// [`MigrateError`]; what was applied before the fault stays.
pub async fn migrate(pool: &Pool) -> Result<Vec<&'static str>, MigrateError> {
    let call = |what: &str| {
        let what = what.to_owned();
        move |source| MigrateError::Call { what, source }
    };
    let mut client = pool.acquire(deadline()).await.map_err(call("connect"))?;
    client.simple(TABLE, deadline()).await.map_err(call("schema_migrations.sql"))?;
    let mut applied = Vec::new();
    for (index, (name, sql)) in MIGRATIONS.iter().enumerate() {
        let version = i32::try_from(index + 1).unwrap_or(i32::MAX);
        if apply(&mut client, version, name, sql).await? {
            applied.push(*name);
        }
    }
    Ok(applied)
}

async fn apply(client: &mut Client, version: i32, name: &str, sql: &str) -> Result<bool, MigrateError> {
    let call = |source| MigrateError::Call { what: name.to_owned(), source };
    let checksum = hex(&Sha256::digest(sql));
    let mut tx = client.begin(deadline()).await.map_err(call)?;
    tx.query(&LOCK, &Params::new(), deadline()).await.map_err(call)?;
    let mut params = Params::new();
    params.i32(version);
    let rows = tx.query(&APPLIED, &params, deadline()).await.map_err(call)?;
    if !rows.is_empty() {
        let there = rows.row(0).text(1)?.to_owned();
        tx.rollback(deadline()).await;
        if there != checksum {
            return Err(MigrateError::Changed { name: name.to_owned(), there, here: checksum });
        }
        return Ok(false);
    }
    tx.simple(sql, deadline()).await.map_err(call)?;
    params.text(name).text(&checksum);
    tx.query(&NOTE, &params, deadline()).await.map_err(call)?;
    tx.commit(deadline()).await.map_err(|source| MigrateError::Commit { what: name.to_owned(), source })?;
    Ok(true)
}

fn deadline() -> Instant {
    shards::now() + STEP
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_gap() {
        for (index, (name, _)) in MIGRATIONS.iter().enumerate() {
            assert!(name.starts_with(&format!("{:04}_", index + 1)), "{name}");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/migrations")).unwrap().count();
        assert_eq!(files, MIGRATIONS.len());
    }

    #[test]
    fn checksums_are_lower_case_hexadecimal() {
        assert_eq!(hex(&[0x0a, 0xff]), "0aff");
    }
}

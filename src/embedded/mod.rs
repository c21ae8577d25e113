//! Embedded: the whole sale in one process, nothing else installed.
//!
//! ```text
//! shard 0..n  submit, query --(mailbox)--> shard 0: book --frame, fdatasync--> journal
//!                                          shard 0: fulfil <-- what the book holds and the store does not
//!                                                   fulfil --(bounded queue)--> store thread: SQLite
//! ```
//!
//! The capabilities are those of the services; only the ports differ. The journal takes the place of Redis and of the topic,
//! SQLite that of PostgreSQL. What is durable in the journal is as good as in the topic: `publish` has nothing left to do.

pub mod book;
pub mod journal;
pub mod record;
pub mod store;

/// Enters every entry of a frame's payload.
///
/// # Errors
/// What is wrong with it, in words.
pub fn enter_all(book: &mut book::Book, mut payload: &[u8]) -> Result<(), String> {
    while !payload.is_empty() {
        let entry = record::Entry::decode(&mut payload).map_err(|error| error.to_string())?;
        book.enter(&entry).map_err(|error| error.to_string())?;
    }
    Ok(())
}

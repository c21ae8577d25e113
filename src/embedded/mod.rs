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
pub mod data;
pub mod journal;
pub mod lane;
pub mod operator;
pub mod ports;
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

/// Reads arbitrary bytes as a journal's frames and their entries, as a start does: no panic, no more memory than the bytes are
/// worth, and what is read is written again as it was. For the fuzz target.
///
/// # Panics
/// When an entry that was read is not written back the same.
pub fn fuzz_journal(bytes: &[u8]) {
    let mut book = book::Book::default();
    let mut rest = bytes;
    while let Some((payload, len)) = journal::first_frame(rest) {
        // What contradicts the book is damage to a start, and no concern here.
        let _ = enter_all(&mut book, payload);
        rest = &rest[len..];
    }
    let mut rest = bytes;
    while let Ok(entry) = record::Entry::decode(&mut rest) {
        let mut again = Vec::new();
        entry.encode(&mut again);
        assert_eq!(record::Entry::decode(&mut &again[..]), Ok(entry));
    }
}

/// Answers somebody on another thread. Who does not wait any more has said so by dropping the mailbox.
fn tell<T: Send>(reply: &shards::mailbox::Sender<T>, answer: T) {
    let _ = reply.try_send(answer);
}

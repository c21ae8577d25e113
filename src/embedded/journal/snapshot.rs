//! Snapshots: a book written down, so that the segments before it can go.
//!
//! A snapshot is made from the files, not from the running book, on a thread of its own: no shard stops for it. It is read
//! and written by the very code that reads a journal at the start.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use super::{JournalError, folder, frame, read};
use crate::embedded::book::Book;
use crate::embedded::record::Entry;

/// A compaction that can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// The journal's folder.
    pub folder: PathBuf,
    /// The last frame that the snapshot will contain.
    pub through: u64,
}

/// Why a compaction was given up. The journal is as good as before.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The snapshot cannot be written.
    #[error("cannot write the snapshot: {0}")]
    Io(#[from] io::Error),
}

/// Writes a snapshot of everything up to `compaction.through` and removes the segments and snapshots it replaces.
/// Returns the snapshot's size in bytes. Blocks: call it on a thread of its own.
///
/// # Errors
/// [`CompactionError`]
pub fn compact(compaction: &Compaction, now_ms: u64) -> Result<u64, CompactionError> {
    let Compaction { folder, through } = compaction;
    let mut book = Book::default();
    read::read_through(folder, *through, |payload| crate::embedded::enter_all(&mut book, payload))?;
    let before = folder::list(folder)?;
    let draft = folder.join("snapshot.new");
    if let Err(error) = write(&draft, &book, now_ms) {
        // On a full disk its room is wanted.
        let _ = std::fs::remove_file(&draft);
        return Err(error.into());
    }
    let done = folder::snapshot_path(folder, *through);
    std::fs::rename(&draft, &done)?;
    std::fs::File::open(folder)?.sync_all()?;
    // From here on the old files are only in the way.
    let old_snapshots = before.snapshots.into_iter().filter(|(_, path)| *path != done).map(|(_, path)| path);
    let segments = before.segments.iter().zip(before.segments.iter().skip(1));
    let old_segments = segments.filter(|(_, next)| next.first <= through + 1).map(|(segment, _)| segment.path.clone());
    for path in old_snapshots.chain(old_segments).collect::<Vec<_>>() {
        std::fs::remove_file(&path)?;
    }
    Ok(std::fs::metadata(&done)?.len())
}

fn write(path: &std::path::Path, book: &Book, now_ms: u64) -> io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    let (mut count, mut payload, mut bytes) = (0_u64, Vec::new(), Vec::new());
    let mut put = |entry: Option<&Entry>, out: &mut BufWriter<std::fs::File>| -> io::Result<()> {
        if let Some(entry) = entry {
            entry.encode(&mut payload);
        }
        if payload.len() >= 64 * 1024 || (entry.is_none() && !payload.is_empty()) {
            count += 1;
            bytes.clear();
            frame::encode(&mut bytes, count, &payload);
            out.write_all(&bytes)?;
            payload.clear();
        }
        if entry.is_none() {
            bytes.clear();
            frame::encode(&mut bytes, count + 1, &count.to_le_bytes());
            out.write_all(&bytes)?;
        }
        Ok(())
    };
    for entry in book.entries(now_ms) {
        put(Some(&entry), &mut out)?;
    }
    put(None, &mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

//! The journal: what was decided, on disk before anybody is told.
//!
//! One commit is one frame (`frame.rs`), appended to a preallocated segment (`folder.rs`) and forced to the device; one is
//! under way at a time, and whatever waited meanwhile is in the next. After a failed write or sync the segment is never
//! trusted again: its file is left behind and the next commit begins a new one, which supersedes what the failed one may hold.

mod folder;
mod frame;
mod read;
mod snapshot;
mod witness;

use std::io;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use shards::fs::File;

use folder::{SEGMENT_HEADER, Segment};
pub use frame::PAYLOAD_MAX;
pub use read::{End, JournalError, read};
pub use snapshot::{Compaction, compact};
use witness::Witness;

/// The payload of the sound frame at the front of `bytes`, and how long the frame is.
pub(super) fn first_frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    frame::decode(bytes).map(|frame| (frame.payload, frame.len()))
}

/// Why a commit did not happen.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing was written: there is no segment to write to, and none can be made. A full disk ends here.
    #[error("the journal cannot be extended: {0}")]
    Unavailable(#[source] io::Error),
    /// The write or its sync failed. What was to be committed may or may not be found after a restart.
    #[error("the journal could not be made durable: {0}")]
    Unknown(#[source] io::Error),
}

/// A journal that is written to, on one shard.
pub struct Journal {
    folder: PathBuf,
    segment_bytes: u64,
    segment: Option<Open>,
    next: u64,
    epoch: u64,
    witness: Witness,
    sealed: Vec<Segment>,
}

/// The segment that takes the next frame.
struct Open {
    file: File,
    segment: Segment,
    left: u64,
}

impl Journal {
    /// Takes up a journal that [`read`] has read to `end`. Its first commit makes a new segment.
    ///
    /// # Errors
    /// What the system says.
    pub async fn take_up(folder: &Path, end: End, segment_bytes: u64) -> io::Result<Self> {
        let witness = Witness::create(folder, end.last).await?;
        let sealed = folder::list(folder)?.segments;
        Ok(Self {
            folder: folder.to_owned(),
            segment_bytes,
            segment: None,
            next: end.last + 1,
            epoch: end.epoch + 1,
            witness,
            sealed,
        })
    }

    /// The last durable frame; 0 without any.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Commits one payload: when this returns Ok it is on the device.
    ///
    /// # Errors
    /// [`CommitError`]; the next commit may work again.
    pub async fn commit(&mut self, payload: &[u8]) -> Result<(), CommitError> {
        let len = (frame::HEADER + payload.len()) as u64;
        if self.segment.as_ref().is_none_or(|open| open.left < len) {
            self.begin_segment(len).await.map_err(CommitError::Unavailable)?;
        }
        let Some(open) = self.segment.as_mut() else {
            return Err(CommitError::Unavailable(io::Error::other("no segment")));
        };
        let mut bytes = BytesMut::with_capacity(frame::HEADER + payload.len());
        frame::encode(&mut bytes, self.next, payload);
        let mut written = open.file.append(bytes).await.0.map(|_| ());
        if written.is_ok() {
            written = open.file.fdatasync().await;
        }
        if let Err(error) = written {
            // The kernel may have thrown the pages away and say nothing at the next sync: this file is over. The new one is
            // begun at once where it can be, so that a restart does not find what was not answered.
            self.seal();
            if let Err(error) = self.begin_segment(len).await {
                tracing::warn!(%error, "no new segment after a failed commit");
            }
            return Err(CommitError::Unknown(error));
        }
        open.left -= len;
        self.next += 1;
        if let Err(error) = self.witness.note(self.next - 1).await {
            tracing::warn!(%error, "the witness of the last answer was not written");
        }
        Ok(())
    }

    async fn begin_segment(&mut self, least: u64) -> io::Result<()> {
        self.seal();
        let segment = Segment::new(&self.folder, self.epoch, self.next);
        // The epoch is used up even if this fails half-way: its file may be there.
        self.epoch += 1;
        let size = self.segment_bytes.max(SEGMENT_HEADER as u64 + least);
        match self.make_segment(&segment, size).await {
            Ok(file) => {
                self.segment = Some(Open { file, segment, left: size - SEGMENT_HEADER as u64 });
                Ok(())
            }
            Err(error) => {
                // An empty segment is harmless to a reader, but on a full disk its room is wanted.
                let _ = shards::fs::remove(&segment.path).await;
                Err(error)
            }
        }
    }

    async fn make_segment(&self, segment: &Segment, size: u64) -> io::Result<File> {
        let file = File::create_new(&segment.path).await?;
        file.fallocate(0, size).await?;
        file.write_all_at(BytesMut::from(&segment.header()[..]), 0).await.0?;
        file.fdatasync().await?;
        shards::fs::sync_dir(&self.folder).await?;
        file.set_end(SEGMENT_HEADER as u64);
        Ok(file)
    }

    fn seal(&mut self) {
        if let Some(open) = self.segment.take() {
            self.sealed.push(open.segment);
        }
    }

    /// How many segments are full or left behind.
    pub fn sealed_count(&self) -> usize {
        self.sealed.len()
    }

    /// What [`compact`] may do now, on a thread of its own: everything before the segment in use.
    pub fn compaction(&self) -> Option<Compaction> {
        let through = self.segment.as_ref().map_or(self.next, |open| open.segment.first) - 1;
        (!self.sealed.is_empty() && through > 0).then(|| Compaction { folder: self.folder.clone(), through })
    }

    /// Forgets the segments that a compaction through `through` has made superfluous and removed.
    pub fn compacted(&mut self) {
        self.sealed.retain(|segment| segment.path.exists());
    }
}

#[cfg(test)]
mod tests;

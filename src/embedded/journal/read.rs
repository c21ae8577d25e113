//! Reading a journal at the start: what is whole, what was torn by a crash, and what is damage.

use std::io;
use std::path::{Path, PathBuf};

use super::folder::{self, SEGMENT_HEADER, Segment};
use super::{frame, witness};

/// A frame this far beyond the expected one is still looked for behind damage.
const FIND_AHEAD: u64 = 1 << 32;

/// Why a journal is refused. Nothing has been changed, and nothing is dropped silently.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Frames that were answered are missing or damaged.
    #[error(
        "the journal is damaged: {what}. Reservations that buyers were promised would be lost, so it is not started. Restore \
         {path} from a copy, or run `seckill serve` on another data folder; nothing has been changed",
        path = .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Where a journal that was read ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// The last frame; 0 without any.
    pub last: u64,
    /// The highest epoch of any segment.
    pub epoch: u64,
    /// Bytes cut off as a torn tail.
    pub torn: u64,
}

/// Reads every frame in `folder` in order, the snapshot first, and gives each payload to `take`.
///
/// `take` says what is wrong with a payload; that is damage too, for it was written whole.
///
/// # Errors
/// [`JournalError`]
pub fn read(folder: &Path, take: impl FnMut(&[u8]) -> Result<(), String>) -> Result<End, JournalError> {
    read_through(folder, u64::MAX, take)
}

/// [`read`], but no frame after `through`, of which it must be known that they are there. For a journal that is in use.
pub(super) fn read_through(
    folder: &Path,
    through: u64,
    take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<End, JournalError> {
    let listing = folder::list(folder).map_err(|source| JournalError::Io { path: folder.to_owned(), source })?;
    let acked_path = folder.join("acked");
    let acked = match witness::read(folder) {
        Ok(acked) => acked,
        Err(witness::WitnessError::Io(source)) => return Err(JournalError::Io { path: acked_path, source }),
        Err(witness::WitnessError::Damaged) => {
            let what = "neither slot of the witness of the last answer is whole; if the rest of the folder is known to be \
                        sound, remove this file, and the journal is believed as it is";
            return Err(JournalError::Damaged { path: acked_path, what: what.to_owned() });
        }
    };
    let mut reading = Reading { take, through, end: End::default() };
    if let Some((through, path)) = listing.snapshots.last() {
        reading.snapshot(path, *through)?;
    }
    reading.end.epoch = listing.segments.last().map_or(0, |segment| segment.epoch);
    for (at, segment) in listing.segments.iter().enumerate() {
        reading.segment(segment, &listing.segments[at + 1..])?;
    }
    let (last, acked) = (reading.end.last, acked.unwrap_or(0).min(through));
    if acked > last {
        let path = listing.segments.last().map_or(folder.to_owned(), |segment| segment.path.clone());
        let what = format!("frame {acked} was answered, but the last whole one is {last}");
        return Err(JournalError::Damaged { path, what });
    }
    Ok(reading.end)
}

struct Reading<T> {
    take: T,
    through: u64,
    end: End,
}

impl<T: FnMut(&[u8]) -> Result<(), String>> Reading<T> {
    /// A snapshot is frames numbered from 1, the last of them empty but for the number of the frames before it.
    fn snapshot(&mut self, path: &Path, through: u64) -> Result<(), JournalError> {
        let damaged = |what: String| JournalError::Damaged { path: path.to_owned(), what };
        let bytes = read_file(path)?;
        let mut rest = &bytes[..];
        let mut count = 0_u64;
        loop {
            let frame = frame::decode(rest).filter(|frame| frame.sequence == count + 1);
            let frame = frame.ok_or_else(|| damaged(format!("frame {} of the snapshot is not whole", count + 1)))?;
            rest = &rest[frame.len()..];
            if rest.is_empty() {
                let ending = u64::from_le_bytes(frame.payload.try_into().unwrap_or_default());
                if frame.payload.len() != 8 || ending != count {
                    return Err(damaged("the snapshot has no end".to_owned()));
                }
                break;
            }
            count += 1;
            (self.take)(frame.payload).map_err(damaged)?;
        }
        self.end.last = through;
        Ok(())
    }

    fn segment(&mut self, segment: &Segment, later: &[Segment]) -> Result<(), JournalError> {
        let damaged = |what: String| JournalError::Damaged { path: segment.path.clone(), what };
        let bytes = read_file(&segment.path)?;
        // What the next segment that was begun says about it from its first frame on does not count any more.
        let superseded_from = later.iter().map(|next| next.first).min().unwrap_or(u64::MAX);
        if bytes.get(..SEGMENT_HEADER) != Some(&segment.header()[..]) {
            // A crash while it was made: nothing was ever written behind the header.
            if frame::find(&bytes, 1..=u64::MAX).is_none() && (later.is_empty() || superseded_from <= segment.first) {
                return Ok(());
            }
            return Err(damaged("its header is not whole".to_owned()));
        }
        if segment.first > self.end.last + 1 {
            return Err(damaged(format!(
                "frames {} to {} before it are missing",
                self.end.last + 1,
                segment.first - 1
            )));
        }
        let mut at = SEGMENT_HEADER;
        let mut next = segment.first;
        while let Some(frame) = frame::decode(&bytes[at..]).filter(|frame| frame.sequence == next) {
            if next >= superseded_from || next > self.through {
                return Ok(());
            }
            // A snapshot may reach into a segment.
            if next > self.end.last {
                (self.take)(frame.payload).map_err(|what| damaged(format!("frame {next}: {what}")))?;
                self.end.last = next;
            }
            at += frame.len();
            next += 1;
        }
        if next >= superseded_from || next > self.through {
            return Ok(());
        }
        if !later.is_empty() {
            return Err(damaged(format!("frame {next} at byte {at} is not whole, and a later segment needs it")));
        }
        if let Some((offset, found)) = frame::find(&bytes[at..], next..=next.saturating_add(FIND_AHEAD)) {
            return Err(damaged(format!(
                "frame {next} at byte {at} is not whole, but frame {found} at byte {} is",
                at + offset
            )));
        }
        self.end.torn = bytes[at..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        Ok(())
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, JournalError> {
    std::fs::read(path).map_err(|source| JournalError::Io { path: path.to_owned(), source })
}

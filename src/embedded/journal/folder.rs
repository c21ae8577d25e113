//! The files of a journal and their names.
//!
//! ```text
//! 0000000003-00000000000000000841.segment    epoch 3: frames from number 841 on
//! 00000000000000000840.snapshot              the book after frame 840
//! acked                                      the last frame that was answered (witness.rs)
//! ```
//!
//! Epochs only rise. A segment supersedes whatever an earlier one holds from its own first frame on: that is how a file that
//! failed is left behind.

use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a segment before its first frame.
pub(super) const SEGMENT_HEADER: usize = 32;
const MAGIC: &[u8; 8] = b"SKJRNL01";

/// A segment file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    /// Which life of the journal wrote it.
    pub(super) epoch: u64,
    /// The number of its first frame.
    pub(super) first: u64,
    /// Where it is.
    pub(super) path: PathBuf,
}

impl Segment {
    /// The file for frames from `first` on in `folder`.
    pub(super) fn new(folder: &Path, epoch: u64, first: u64) -> Self {
        Self { epoch, first, path: folder.join(format!("{epoch:010}-{first:020}.segment")) }
    }

    /// What stands at its front: magic, epoch, first frame, CRC-32C of the 24 bytes before, zeros.
    pub(super) fn header(&self) -> [u8; SEGMENT_HEADER] {
        let mut header = [0; SEGMENT_HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        header[16..24].copy_from_slice(&self.first.to_le_bytes());
        let crc = crc32c::crc32c(&header[..24]);
        header[24..28].copy_from_slice(&crc.to_le_bytes());
        header
    }
}

/// What a journal's folder holds, each in order of age.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Segments by epoch.
    pub(super) segments: Vec<Segment>,
    /// Snapshots: the last frame that each contains, and the file.
    pub(super) snapshots: Vec<(u64, PathBuf)>,
}

/// The snapshot after frame `through`.
pub(super) fn snapshot_path(folder: &Path, through: u64) -> PathBuf {
    folder.join(format!("{through:020}.snapshot"))
}

/// Lists a journal's folder. Files of other names are not ours and are left alone.
///
/// # Errors
/// What the system says.
pub(super) fn list(folder: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if let Some((epoch, first)) = name.strip_suffix(".segment").and_then(|name| name.split_once('-')) {
            if let (Ok(epoch), Ok(first)) = (epoch.parse(), first.parse()) {
                listing.segments.push(Segment { epoch, first, path });
            }
        } else if let Some(through) = name.strip_suffix(".snapshot").and_then(|name| name.parse().ok()) {
            listing.snapshots.push((through, path));
        }
    }
    listing.segments.sort();
    listing.snapshots.sort();
    Ok(listing)
}

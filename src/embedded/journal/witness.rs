//! The witness: the number of the last frame whose effects were answered, in a file of its own.
//!
//! A torn last frame is normal after a crash, and cut off. A damaged last frame looks just the same, but may hold what a
//! buyer was promised. The witness tells them apart: it is written after the frame is durable and before anybody is
//! answered, so a journal that ends before it has lost something, and the start is refused.
//!
//! It is not forced to the device: it survives the process, and a loss of power at worst turns it back to an older number.
//! Two slots are written in turns, each with its own checksum, so that one of them is always whole.

use std::io;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use shards::fs::File;

const MAGIC: &[u8; 8] = b"SKACKED1";
/// One slot a sector, so that no write touches both.
const SLOT: usize = 512;
const LEN: usize = 20;

/// The open witness of a running journal.
pub(super) struct Witness {
    file: File,
    turn: u64,
}

fn slot(acked: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&acked.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn path(folder: &Path) -> PathBuf {
    folder.join("acked")
}

/// What is wrong with a witness.
#[derive(Debug, thiserror::Error)]
pub(super) enum WitnessError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Neither slot is whole.
    #[error("neither of its two slots is whole")]
    Damaged,
}

/// The last number noted in `folder`; `None` where there is no witness.
///
/// # Errors
/// [`WitnessError`]
pub(super) fn read(folder: &Path) -> Result<Option<u64>, WitnessError> {
    let bytes = match std::fs::read(path(folder)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let slots = [0, SLOT].into_iter().filter_map(|at| {
        let bytes: &[u8; LEN] = bytes.get(at..at + LEN)?.try_into().ok()?;
        let acked = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        (*bytes == slot(acked)).then_some(acked)
    });
    slots.max().map(Some).ok_or(WitnessError::Damaged)
}

impl Witness {
    /// Makes the witness anew, with `acked` in both slots, durably. The old one is replaced at once or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub(super) async fn create(folder: &Path, acked: u64) -> io::Result<Self> {
        let draft = folder.join("acked.new");
        match shards::fs::remove(&draft).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = File::create_new(&draft).await?;
        let mut bytes = BytesMut::zeroed(SLOT + LEN);
        bytes[..LEN].copy_from_slice(&slot(acked));
        bytes[SLOT..].copy_from_slice(&slot(acked));
        file.write_all_at(bytes, 0).await.0?;
        file.fdatasync().await?;
        shards::fs::rename(&draft, path(folder)).await?;
        shards::fs::sync_dir(folder).await?;
        Ok(Self { file, turn: 0 })
    }

    /// Notes that frame `acked` is about to be answered.
    ///
    /// # Errors
    /// What the system says; the frame is durable all the same.
    pub(super) async fn note(&mut self, acked: u64) -> io::Result<()> {
        self.turn += 1;
        let at = if self.turn.is_multiple_of(2) { 0 } else { SLOT as u64 };
        self.file.write_all_at(BytesMut::from(&slot(acked)[..]), at).await.0
    }
}

//! Files for an append-only journal: positional writes, data sync, preallocation.

use std::cell::Cell;
use std::io;
use std::path::Path;

use bytes::BytesMut;

use crate::backend;
use crate::faults::{self, Call};

/// An open file. Under epoll each operation blocks the shard for its system call.
pub struct File {
    inner: backend::File,
    end: Cell<u64>,
}

impl File {
    /// Creates a new file for reading and writing; fails when it exists.
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_with(path.as_ref(), std::fs::OpenOptions::new().read(true).write(true).create_new(true)).await
    }

    /// Opens a file for reading and appending, creating it if need be. Appends start at its present end.
    pub async fn open_append(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut options = std::fs::OpenOptions::new();
        Self::open_with(path.as_ref(), options.read(true).write(true).create(true).truncate(false)).await
    }

    /// Opens an existing file for reading.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_with(path.as_ref(), std::fs::OpenOptions::new().read(true)).await
    }

    async fn open_with(path: &Path, options: &std::fs::OpenOptions) -> io::Result<Self> {
        faults::before(Call::FileOpen).await?;
        let inner = backend::open(path, options)?;
        let file = Self { inner, end: Cell::new(0) };
        file.end.set(file.metadata_len()?);
        Ok(file)
    }

    /// Where the next [`File::append`] goes: bytes from the start of the file.
    pub fn end(&self) -> u64 {
        self.end.get()
    }

    /// Moves the place of the next append, for example to the end of what was found valid in a preallocated file.
    pub fn set_end(&self, end: u64) {
        self.end.set(end);
    }

    /// Writes `buf` at the end and moves the end behind it; returns where it began. The end moves even when the
    /// write fails, for a part may have been written. Two appends may be in flight at once; each has its place.
    pub async fn append(&self, buf: BytesMut) -> (io::Result<u64>, BytesMut) {
        let at = self.end.get();
        self.end.set(at + buf.len() as u64);
        let (result, buf) = self.write_all_at(buf, at).await;
        (result.map(|()| at), buf)
    }

    /// Writes all of `buf` at `at` bytes from the start.
    pub async fn write_all_at(&self, mut buf: BytesMut, at: u64) -> (io::Result<()>, BytesMut) {
        let mut written = 0;
        while written < buf.len() {
            let most = match faults::before(Call::FileWrite).await {
                Ok(most) => most,
                Err(e) => return (Err(e), buf),
            };
            let to = buf.len().min(written.saturating_add(most));
            let (result, back) = self.inner.write_at(buf, written, to, at + written as u64).await;
            buf = back;
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(n) => written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Appends exactly `len` bytes from `at` to `buf`, reserving room for them.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends before.
    pub async fn read_exact_at(&self, mut buf: BytesMut, len: usize, at: u64) -> (io::Result<()>, BytesMut) {
        buf.reserve(len);
        let mut read = 0;
        while read < len {
            let most = match faults::before(Call::FileRead).await {
                Ok(most) => most,
                Err(e) => return (Err(e), buf),
            };
            let (result, back) = self.inner.read_at(buf, at + read as u64, most.min(len - read)).await;
            buf = back;
            match result {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(n) => read += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Forces written data, and the length if it grew, to the device.
    pub async fn fdatasync(&self) -> io::Result<()> {
        faults::before(Call::FileSync).await?;
        self.inner.sync_data().await
    }

    /// Reserves `len` bytes from `offset` on the device and extends the file over them (zeros).
    pub async fn fallocate(&self, offset: u64, len: u64) -> io::Result<()> {
        faults::before(Call::FileAllocate).await?;
        crate::sys::fallocate(&self.inner, offset, len)
    }

    /// The length in bytes.
    pub async fn len(&self) -> io::Result<u64> {
        self.metadata_len()
    }

    /// Cuts or extends the file to `len` bytes.
    pub async fn truncate(&self, len: u64) -> io::Result<()> {
        faults::before(Call::FileTruncate).await?;
        let fd = crate::sys::borrow(&self.inner).try_clone_to_owned()?;
        std::fs::File::from(fd).set_len(len)
    }

    fn metadata_len(&self) -> io::Result<u64> {
        let fd = crate::sys::borrow(&self.inner).try_clone_to_owned()?;
        Ok(std::fs::File::from(fd).metadata()?.len())
    }
}

/// Forces the names in a directory to the device: files created in it, renamed or removed. Blocks the shard.
pub async fn sync_dir(path: impl AsRef<Path>) -> io::Result<()> {
    faults::before(Call::Directory).await?;
    std::fs::File::open(path)?.sync_all()
}

/// Renames a file, replacing one of the new name. Durable after [`sync_dir`]. Blocks the shard.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    faults::before(Call::Directory).await?;
    std::fs::rename(from, to)
}

/// Removes a file. Durable after [`sync_dir`]. Blocks the shard.
pub async fn remove(path: impl AsRef<Path>) -> io::Result<()> {
    faults::before(Call::Directory).await?;
    std::fs::remove_file(path)
}

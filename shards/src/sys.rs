//! The few system calls that no safe crate in use offers. All of this crate's `unsafe` is here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// `shutdown(2)` in both directions: a pending read sees the end, a pending write an error.
///
/// The caller must know that `fd` is still the socket it means; a stale number would hit another connection.
pub(crate) fn shutdown_both(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed; a bad descriptor is an error return, not undefined behaviour.
    check(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) })
}

/// `fallocate(2)` with mode 0: reserves `len` bytes from `offset` and extends the file over them.
pub(crate) fn fallocate(file: &impl AsRawFd, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (off_t(offset)?, off_t(len)?);
    // SAFETY: no memory is passed, and the borrow of `file` keeps the descriptor open during the call.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) })
}

fn off_t(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A borrowed view of a descriptor owner that only offers the raw number.
pub(crate) fn borrow<T: AsRawFd>(owner: &T) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: the result borrows `owner`, which keeps the descriptor open for as long as it lives.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

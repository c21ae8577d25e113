//! The backend on monoio: io_uring, or epoll where the kernel refuses it.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::task::Poll;
use std::time::Instant;

use bytes::BytesMut;
use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent, Splitable};
use monoio::time::TimeDriver;
use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

pub(crate) use monoio::time::Sleep;

/// A handle to a spawned task.
pub(crate) type RawJoin<T> = monoio::task::JoinHandle<T>;

/// A runtime bound to the thread that made it.
pub(crate) enum Executor {
    Uring(Box<Runtime<TimeDriver<IoUringDriver>>>),
    Epoll(Box<Runtime<TimeDriver<LegacyDriver>>>),
}

impl Executor {
    pub(crate) fn uring(ring: &io_uring::Builder, entries: u32) -> io::Result<Self> {
        let builder = RuntimeBuilder::<IoUringDriver>::new().with_entries(entries).uring_builder(ring.clone());
        Ok(Self::Uring(Box::new(builder.enable_timer().build()?)))
    }

    pub(crate) fn epoll() -> io::Result<Self> {
        Ok(Self::Epoll(Box::new(RuntimeBuilder::<LegacyDriver>::new().enable_timer().build()?)))
    }

    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        match self {
            Self::Uring(runtime) => runtime.block_on(future),
            Self::Epoll(runtime) => runtime.block_on(future),
        }
    }
}

pub(crate) fn spawn<F: Future + 'static>(future: F) -> RawJoin<F::Output> {
    monoio::spawn(future)
}

pub(crate) fn sleep_until(t: Instant) -> Sleep {
    monoio::time::sleep_until(monoio::time::Instant::from_std(t))
}

/// io_uring must be given blocking sockets (a non-blocking one answers `EAGAIN` instead of waiting), epoll the rest.
fn wants_nonblocking() -> bool {
    monoio::utils::is_legacy()
}

pub(crate) struct Listener {
    watched: monoio::net::TcpListener,
    socket: socket2::Socket,
}

impl Listener {
    pub(crate) fn new(socket: socket2::Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let watched = monoio::net::TcpListener::from_std(socket.try_clone()?.into())?;
        Ok(Self { watched, socket })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.watched.local_addr()
    }

    /// Waits for readiness and then accepts at once. An accept left in flight in the ring would leak the
    /// connection it completes with when its future is dropped; a poll has nothing to leak.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match self.socket.accept() {
                Ok((socket, addr)) => {
                    let addr = addr.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                    return Ok((Stream::new(socket)?, addr));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.watched.readable(false).await?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

pub(crate) struct Stream {
    stream: monoio::net::TcpStream,
}

impl Stream {
    fn new(socket: socket2::Socket) -> io::Result<Self> {
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(wants_nonblocking())?;
        Ok(Self { stream: monoio::net::TcpStream::from_std(socket.into())? })
    }

    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let domain = socket2::Domain::for_address(addr);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&addr.into()) {
            Ok(()) => return Self::new(socket),
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(e) => return Err(e),
        }
        let stream = monoio::net::TcpStream::from_std(socket.into())?;
        stream.writable(false).await?;
        let socket = crate::sys::borrow(&stream);
        let socket = socket2::SockRef::from(&socket);
        if let Some(e) = socket.take_error()? {
            return Err(e);
        }
        socket.set_nonblocking(wants_nonblocking())?;
        Ok(Self { stream })
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (read, write) = self.stream.into_split();
        (ReadHalf(read), WriteHalf(write))
    }
}

pub(crate) struct ReadHalf(monoio::net::tcp::TcpOwnedReadHalf);

impl ReadHalf {
    /// Reads at most `max` bytes into the spare capacity behind what `buf` holds; the caller has seen to it that there is some.
    pub(crate) async fn read(&mut self, buf: BytesMut, max: usize) -> (io::Result<usize>, BytesMut) {
        let (len, capacity) = (buf.len(), buf.capacity());
        let end = capacity.min(len.saturating_add(max));
        let (result, slice) = self.0.read(buf.slice_mut(len..end)).await;
        (result, slice.into_inner())
    }
}

pub(crate) struct WriteHalf(monoio::net::tcp::TcpOwnedWriteHalf);

impl WriteHalf {
    /// Writes `buf[from..to]` or a part of it; returns how much.
    pub(crate) async fn write(&mut self, buf: BytesMut, from: usize, to: usize) -> (io::Result<usize>, BytesMut) {
        let (result, slice) = self.0.write(buf.slice(from..to)).await;
        (result, slice.into_inner())
    }

    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// The shard's end of its bell's line.
pub(crate) struct Line(monoio::net::UnixStream);

impl Line {
    pub(crate) fn new(line: std::os::unix::net::UnixStream) -> io::Result<Self> {
        line.set_nonblocking(wants_nonblocking())?;
        Ok(Self(monoio::net::UnixStream::from_std(line)?))
    }

    pub(crate) async fn read(&mut self, buf: BytesMut) -> (io::Result<usize>, BytesMut) {
        self.0.read(buf).await
    }
}

/// An operation that completes at once, but only through the loop's wait for events: whoever waits for it makes the
/// loop submit what is queued, take the completions that are there, and look at its timers.
pub(crate) struct RingTurn {
    near: monoio::net::UnixStream,
    far: std::os::unix::net::UnixStream,
}

impl RingTurn {
    pub(crate) fn new() -> io::Result<Self> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(wants_nonblocking())?;
        far.set_nonblocking(true)?;
        Ok(Self { near: monoio::net::UnixStream::from_std(near)?, far })
    }

    /// An error would be one of the loop itself, which every other operation reports.
    pub(crate) async fn take(&mut self) {
        if !monoio::utils::is_legacy() {
            // The stream is always writable, yet only a completion says so.
            let _ = self.near.writable(false).await;
            return;
        }
        // Under epoll what is ready is so at once. The byte comes after the read has begun to wait for it.
        let mut read = std::pin::pin!(self.near.read(BytesMut::with_capacity(8)));
        let first = std::future::poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending())).await;
        if first && (&self.far).write(&[1]).is_ok() {
            let _ = read.await;
        }
    }
}

pub(crate) struct File(monoio::fs::File);

impl File {
    pub(crate) fn from_std(file: std::fs::File) -> io::Result<Self> {
        monoio::fs::File::from_std(file).map(Self)
    }

    /// Writes `buf[from..to]` or a part of it at `at`; returns how much.
    pub(crate) async fn write_at(
        &self,
        buf: BytesMut,
        from: usize,
        to: usize,
        at: u64,
    ) -> (io::Result<usize>, BytesMut) {
        let (result, slice) = self.0.write_at(buf.slice(from..to), at).await;
        (result, slice.into_inner())
    }

    pub(crate) async fn read_at(&self, buf: BytesMut, at: u64, max: usize) -> (io::Result<usize>, BytesMut) {
        let len = buf.len();
        let end = buf.capacity().min(len.saturating_add(max));
        let (result, slice) = self.0.read_at(buf.slice_mut(len..end), at).await;
        (result, slice.into_inner())
    }

    pub(crate) async fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().await
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Opens a file. Blocks the shard for the length of the system call.
pub(crate) fn open(path: &Path, options: &std::fs::OpenOptions) -> io::Result<File> {
    File::from_std(options.open(path)?)
}

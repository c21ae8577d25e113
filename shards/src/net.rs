//! TCP. Buffers travel by ownership: they go into an operation and come back with its result.
//!
//! Never drop a read or write future that is in flight on purpose; keep reads in a task of their own and end it
//! through [`Closer`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};

use bytes::BytesMut;

use crate::backend;
use crate::faults::{self, Call};

/// How a listener is bound.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// `SO_REUSEPORT`: each shard binds a listener of its own and the kernel spreads connections over them.
    pub reuse_port: bool,
    /// Connections the kernel may hold before they are accepted (capped by `net.core.somaxconn`).
    pub backlog: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, backlog: 1024 }
    }
}

/// Accepts connections.
pub struct TcpListener {
    inner: backend::Listener,
}

impl TcpListener {
    /// Binds and listens. `SO_REUSEADDR` is set, so a restart need not wait for old connections to time out.
    pub fn bind(addr: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let domain = socket2::Domain::for_address(addr);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&addr.into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Self { inner: backend::Listener::new(socket)? })
    }

    /// The next connection, with `TCP_NODELAY` set. Dropping the future loses nothing.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (inner, addr) = self.inner.accept().await?;
        faults::before(Call::Accept).await?;
        Ok((TcpStream { inner }, addr))
    }

    /// The address it is bound to (with the port the kernel chose, if it was asked to).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A port that is taken but not listened on. Shards then bind listeners of their own to it with
/// [`ListenOptions::reuse_port`], and no connection is lost to a socket that nobody accepts from.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: socket2::Socket,
    addr: SocketAddr,
}

impl ReservedPort {
    /// The address, with the port the kernel chose if it was asked to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

/// Takes a port for several shards to listen on.
///
/// # Errors
/// What the system says, most often that it is in use.
pub fn reserve_port(addr: SocketAddr) -> io::Result<ReservedPort> {
    // Without SO_REUSEPORT first: with it, the port of another process of this user that shares it would be joined.
    drop(std::net::TcpListener::bind(addr)?);
    let domain = socket2::Domain::for_address(addr);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&addr.into())?;
    let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(ReservedPort { _socket: socket, addr: bound })
}

/// A connection.
pub struct TcpStream {
    inner: backend::Stream,
}

impl TcpStream {
    /// Connects, with `TCP_NODELAY` set. Bound it with [`crate::timeout_at`]; dropping the future closes the socket.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        faults::before(Call::Connect).await?;
        Ok(Self { inner: backend::Stream::connect(addr).await? })
    }

    /// The other end's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }

    /// Parts that read and write independently. The connection closes when both are dropped.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let socket = Rc::new(Socket { fd: self.inner.raw_fd() });
        let (read, write) = self.inner.into_split();
        (ReadHalf { inner: read, _socket: Rc::clone(&socket) }, WriteHalf { inner: write, socket })
    }
}

/// Alive as long as a half is, and with it the descriptor.
struct Socket {
    fd: RawFd,
}

/// The reading part of a connection.
pub struct ReadHalf {
    inner: backend::ReadHalf,
    _socket: Rc<Socket>,
}

impl ReadHalf {
    /// Appends what arrives to `buf`, up to its spare capacity; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `InvalidInput` when `buf` has no spare capacity; what the socket says otherwise.
    pub async fn read(&mut self, buf: BytesMut) -> (io::Result<usize>, BytesMut) {
        if buf.len() == buf.capacity() {
            return (Err(io::ErrorKind::InvalidInput.into()), buf);
        }
        match faults::before(Call::Read).await {
            Ok(max) => self.inner.read(buf, max).await,
            Err(e) => (Err(e), buf),
        }
    }
}

/// The writing part of a connection. Dropping it ends the outgoing direction.
pub struct WriteHalf {
    inner: backend::WriteHalf,
    socket: Rc<Socket>,
}

impl WriteHalf {
    /// Writes all of `buf`, which comes back as it was. After an error it is unknown how much was sent.
    pub async fn write_all(&mut self, mut buf: BytesMut) -> (io::Result<()>, BytesMut) {
        let mut written = 0;
        while written < buf.len() {
            let most = match faults::before(Call::Write).await {
                Ok(most) => most,
                Err(e) => return (Err(e), buf),
            };
            let to = buf.len().min(written.saturating_add(most));
            let (result, back) = self.inner.write(buf, written, to).await;
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

    /// Ends the outgoing direction; the other end reads its end of stream.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }

    /// A handle that tears the connection down from anywhere in the shard.
    pub fn closer(&self) -> Closer {
        Closer(Rc::downgrade(&self.socket))
    }
}

/// Ends a connection in both directions. Holds nothing open itself.
#[derive(Clone)]
pub struct Closer(Weak<Socket>);

impl Closer {
    /// `shutdown(2)` both ways, at once: a pending read sees the end, a pending write an error. Harmless when
    /// repeated or when the connection is gone.
    pub fn close(&self) {
        if let Some(socket) = self.0.upgrade() {
            // Only ENOTCONN can come back here, and means the work is done.
            let _ = crate::sys::shutdown_both(socket.fd);
        }
    }
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("open", &(self.0.strong_count() > 0)).finish()
    }
}

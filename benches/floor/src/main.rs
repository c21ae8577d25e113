//! The floor that the api's sold-out answer is compared with: one thread, one io_uring (single issuer, deferred task
//! work), accept, receive, find the end of the request, send the same bytes as the api's answer. No timeouts, no limits,
//! no headers looked at but Content-Length. Prints its address on standard output.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, RawFd};

use io_uring::{IoUring, opcode, squeue, types};

const BODY: &str = r#"{"code":"SOLD_OUT","request_id":"00000000-0000-0000-0000-000000000000","trace_id":"00000000000000000000000000000000"}"#;
const ACCEPT: u64 = u64::MAX;
/// Set in the user data of a send.
const SEND: u64 = 1 << 63;
const BUFFER: usize = 4096;

struct Connection {
    /// Never moved or dropped while an operation is in flight on it.
    input: Box<[u8; BUFFER]>,
    filled: usize,
    output: Vec<u8>,
}

/// The length of the request at the front, once it is all there.
fn request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let mut length = 0;
    for line in bytes[..head].split(|byte| *byte == b'\n') {
        if line.len() > 15 && line[..15].eq_ignore_ascii_case(b"content-length:") {
            let digits = line[15..].iter().filter(|byte| byte.is_ascii_digit());
            length = digits.fold(0, |value, digit| value * 10 + usize::from(digit - b'0'));
        }
    }
    (bytes.len() >= head + length).then_some(head + length)
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    loop {
        // SAFETY: every buffer named by an entry lives in `connections` in a Box or a Vec that is neither moved, grown nor
        // dropped before the completion of the entry has been seen: receive and send of a connection never overlap, and
        // a connection is only removed when its one operation has completed.
        if unsafe { ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        ring.submit()?;
    }
}

fn receive(ring: &mut IoUring, fd: RawFd, connection: &mut Connection) -> io::Result<()> {
    let rest = &mut connection.input[connection.filled..];
    let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    let entry = opcode::Recv::new(types::Fd(fd), rest.as_mut_ptr(), length).build().user_data(fd as u64);
    push(ring, &entry)
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let answer = format!(
        "HTTP/1.1 409 Conflict\r\nDate: Tue, 01 Dec 2026 00:00:00 GMT\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut ring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun().build(4096)?;
    let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build().user_data(ACCEPT);
    push(&mut ring, &accept)?;
    let mut connections: HashMap<RawFd, Connection> = HashMap::new();
    let mut done = Vec::with_capacity(4096);
    loop {
        ring.submit_and_wait(1)?;
        done.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (data, result) in done.drain(..) {
            if data == ACCEPT {
                if result >= 0 {
                    let connection =
                        Connection { input: Box::new([0; BUFFER]), filled: 0, output: Vec::with_capacity(BUFFER) };
                    let connection = connections.entry(result).insert_entry(connection).into_mut();
                    receive(&mut ring, result, connection)?;
                }
                continue;
            }
            let fd = (data & !SEND) as RawFd;
            let Some(connection) = connections.get_mut(&fd) else { continue };
            if result <= 0 {
                connections.remove(&fd);
                let close = opcode::Close::new(types::Fd(fd)).build().user_data(ACCEPT - 1);
                push(&mut ring, &close)?;
                continue;
            }
            if data & SEND != 0 {
                // Short sends do not happen with answers of this size on loopback; one would show as a broken answer.
                receive(&mut ring, fd, connection)?;
                continue;
            }
            connection.filled += result as usize;
            connection.output.clear();
            while let Some(length) = request(&connection.input[..connection.filled]) {
                connection.input.copy_within(length..connection.filled, 0);
                connection.filled -= length;
                connection.output.extend_from_slice(answer.as_bytes());
            }
            if connection.output.is_empty() {
                receive(&mut ring, fd, connection)?;
            } else {
                let length = u32::try_from(connection.output.len()).unwrap_or(u32::MAX);
                let send = opcode::Send::new(types::Fd(fd), connection.output.as_ptr(), length);
                push(&mut ring, &send.build().user_data(fd as u64 | SEND))?;
            }
        }
    }
}

//! Ports for servers that tests start.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;

/// A port of 127.0.0.1 that nobody listens on. It lies below the kernel's range for outgoing connections and port 0
/// (`ip_local_port_range`, from 32768), so that no other test's socket takes it before the server does, and a client
/// that tries it too early cannot be connected to itself.
pub(crate) fn unused() -> u16 {
    loop {
        let port = 12_000 + (RandomState::new().hash_one(std::process::id()) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

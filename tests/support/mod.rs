//! Servers, clients, parsers and scenarios that test binaries share.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test ends at the first failure, and may wait"
)]

pub mod body;
pub mod captured;
pub mod client;
pub mod frames;
pub mod http2;
pub mod metrics_parser;
pub mod privacy;
pub mod proxy;
pub mod replay;
pub mod s3;
pub mod sending;
pub mod upstream;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest wait for something that happens in a moment on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Notes that this machine does not permit a check, past the harness that keeps the output of passing tests.
///
/// # Panics
/// Where the whole proof is asked for ([`forbids_skips`]).
pub fn skip(what: &str) {
    assert!(!forbids_skips(), "FORBID_SKIPS is set, but this machine does not permit {what}");
    let mut log = std::io::stderr();
    writeln!(log, "SKIPPED {what}").unwrap();
}

/// True if every check has to run, as with `tests/run --real`.
pub fn forbids_skips() -> bool {
    std::env::var_os("FORBID_SKIPS").is_some_and(|value| !value.is_empty())
}

/// An address without a listener; no other process can take it while the socket exists.
pub fn unused_address() -> (socket2::Socket, SocketAddr) {
    let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = held.local_addr().unwrap().as_socket().unwrap();
    (held, address)
}

/// An address whose listener has a full backlog, so that connections time out; and the sockets that fill it.
pub fn address_with_full_backlog() -> (SocketAddr, (socket2::Socket, Vec<TcpStream>)) {
    let (socket, address) = unused_address();
    socket.listen(0).unwrap();
    let waiting = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
    let queue = std::iter::from_fn(waiting).collect();
    (address, (socket, queue))
}

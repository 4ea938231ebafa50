//! Sockets and the HTTP/1.1 wire, for all clients and servers in this crate.
//!
//! * [`io`]: one connection, plain or TLS, whose reads return the bytes' *arrival* time.
//! * [`socket`]: the TCP socket below it, which detects the peer's close without reading.
//! * [`http1`]: heads and bodies of HTTP/1.x, strict in parsing and exact in forwarding.
//! * [`dial`]: new connections to one host and port.
//! * [`byte_stream`]: a connection that nothing measures.
//! * [`inherited`]: listening sockets from a predecessor process or systemd.
//! * [`tls`]: certificates and their reloading, for both roles.
//!
//! This module does not interpret tokens.

pub mod byte_stream;
pub mod certificate;
pub mod dial;
pub mod http1;
pub mod inherited;
pub mod io;
mod rx_timestamp;
pub mod socket;
pub mod tls;

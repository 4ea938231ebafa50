//! Sockets and the HTTP/1.1 wire: what the proxy, and any other client or server of ours, moves bytes with.
//!
//! * [`io`]: one connection, plain or TLS, whose reads say when the bytes *arrived*.
//! * [`socket`]: the TCP socket under it, which shows its peer's leaving while nothing is read.
//! * [`http1`]: heads and bodies of HTTP/1.x, strict about what they accept and exact about what they pass on.
//! * [`dial`]: new connections to one place.
//! * [`inherited`]: listening sockets that another process had before.
//! * [`tls`]: certificates, their reloading, both roles.
//!
//! Nothing here knows what a token is.

pub mod dial;
pub mod http1;
pub mod inherited;
pub mod io;
mod rx_timestamp;
pub mod socket;
pub mod tls;

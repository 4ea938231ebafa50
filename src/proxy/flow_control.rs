//! Flow control of HTTP/2 connections, on both sides of the proxy.
//!
//! A stream that nothing reads holds its own window, and what it holds is missing from its connection's window. A
//! connection's window therefore exceeds the sum of its streams' windows: streams that wait never stop the others.
//!
//! A DATA frame shorter than 256 bytes takes up more memory than its payload. h2 closes a connection whose unread small
//! frames take up more than half of its window. So the window bounds their overhead as well.

/// Streams on one connection to the server before another is opened, unless the server allows fewer. It is the least
/// that RFC 9113 (section 6.5.2) asks servers to allow.
pub(super) const MAX_UPSTREAM_STREAMS: usize = 100;

/// Window of a stream from the server, in bytes: what the proxy holds for a client that does not read. The server is
/// usually near, so 256 KiB suffice: 250 MB/s over 1 ms.
pub(super) const UPSTREAM_STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Window of a connection to the server, in bytes: more than all its streams can use, which 25 MiB would be. The rest
/// lets h2 hold unread events of a few bytes each; it would otherwise break every stream of the connection.
pub(super) const UPSTREAM_CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024 * 1024;

/// Limit on a client's streams per connection; further requests wait or use another connection. Go's server has the
/// same limit.
pub(super) const MAX_DOWNSTREAM_STREAMS: u32 = 250;

/// Window of a stream from a client, in bytes: what the proxy holds of an upload that the server does not read. A
/// client 50 ms away sends a prompt of 3 MB within 10 round trips, where an unlimited window takes 8.
pub(super) const DOWNSTREAM_STREAM_WINDOW_BYTES: u32 = 512 * 1024;

/// Window of a connection from a client, in bytes. h2 counts streams that the client reset before acceptance separately
/// and allows 20 of them; their data has to fit as well.
pub(super) const DOWNSTREAM_CONNECTION_WINDOW_BYTES: u32 =
    (MAX_DOWNSTREAM_STREAMS + MAX_RESET_STREAMS) * DOWNSTREAM_STREAM_WINDOW_BYTES;

const MAX_RESET_STREAMS: u32 = 20;

/// Bytes of a stream that h2 holds until the socket takes them, beyond one piece of at most
/// [`MAX_READ_BYTES`](crate::net::io::MAX_READ_BYTES). The kernel has a buffer of its own behind it.
pub(super) const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;

const _: () = {
    assert!(
        MAX_UPSTREAM_STREAMS as u64 * (UPSTREAM_STREAM_WINDOW_BYTES as u64) < UPSTREAM_CONNECTION_WINDOW_BYTES as u64
    );
    assert!(DOWNSTREAM_CONNECTION_WINDOW_BYTES <= i32::MAX as u32);
};

//! Our own HTTP/1.1 client connection, and one exchange on it.
//!
//! All data of one socket read is processed at once: decoded straight into the buffer for the client, with its arrival
//! timestamp. A connection returns to the pool only if the response ended by its framing and no bytes are left over. In
//! every other case it is closed at once, which is also how a client's disconnect reaches the server.
//!
//! # When a request is sent again
//! A server may close a kept connection while the next request is on its way. The request then goes over a new
//! connection, once, if no byte of a response came and either
//! * its method is idempotent (RFC 9110, section 9.2.2), or
//! * the server's TCP reset the connection within [`MAX_HANG_UP_RACE`] of the last write. A host resets a connection
//!   that is closed before all its bytes were read (RFC 1122, section 4.2.2.13). So the server has not read the whole
//!   request. A server that reads a request and then dies closes with a FIN instead, and the client gets a 502.

use std::io;
use std::mem::take;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use super::{BodyStep, ConnectionGuard, UpstreamConnector, UpstreamError, UpstreamRequest};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::body::{BodyError, ChunkWriter};
use crate::net::http1::head_error::MAX_HEAD;
use crate::net::http1::head_scan::{check_partial_response, end_of_head};
use crate::net::http1::{BodyDecoder, Framing, Head, KnownHeader};
use crate::net::io::{Arrival, MaybeTlsStream};

/// Larger buffers are freed once they are empty, so that a long prompt's buffer does not stay with its stream.
const MAX_IDLE_BUFFER_BYTES: usize = 4 * 1024;
/// A later reset does not prove that the request was unread: a router or host on the path may have failed. A server
/// decides to close before it sees the request. So the reset follows within a round trip, a retransmission (200 ms at
/// first) and the server's scheduling.
const MAX_HANG_UP_RACE: Gap = Gap::from_millis(1_000);
/// Longest wait for the reset after a FIN: a round trip and one retransmission.
const MAX_RESET_WAIT: Gap = Gap::from_millis(500);

/// A connection between two exchanges.
#[derive(Debug)]
pub(super) struct Http1Connection {
    io: MaybeTlsStream,
    /// Buffers for requests and received data, reused across exchanges.
    out: Vec<u8>,
    inbox: Vec<u8>,
    /// It has carried a response.
    used: bool,
    open: ConnectionGuard,
}

impl Http1Connection {
    pub(super) fn new(io: MaybeTlsStream, open: ConnectionGuard) -> Self {
        Self { io, out: Vec::new(), inbox: Vec::new(), used: false, open }
    }

    /// Updates the gauges when the connection enters or leaves the pool.
    pub(super) fn set_idle(&mut self, idle: bool) {
        self.open.set_idle(idle);
    }

    /// True if the connection is reusable.
    pub(super) fn is_alive(&mut self) -> bool {
        self.io.is_idle_and_open()
    }
}

/// The response's kind: servers may treat their connections differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// Its length was not announced.
    Streamed,
    /// Its length was announced.
    FixedLength,
}

/// One request and its response.
#[derive(Debug)]
pub(in crate::proxy) struct Http1Exchange {
    io: MaybeTlsStream,
    /// Time of the last write on a reused connection, until the response's first byte. The complete request stays in
    /// `out` until then.
    unanswered: Option<Stamp>,
    /// A write failed while `unanswered` was set.
    write_failed: bool,
    /// The complete request must be written again.
    resending: bool,
    idempotent: bool,
    open: ConnectionGuard,
    /// Encoded request; the bytes from `written` on are pending.
    out: Vec<u8>,
    written: usize,
    /// Ranges of payload in `out` that are not observed yet.
    payload: Vec<Range<usize>>,
    chunked: bool,
    /// `out` has received the complete request.
    complete: bool,
    /// A write failed. The server may still have responded.
    write_closed: bool,
    /// A close resets the connection: the server is slow to read a request that is not complete.
    resets_on_close: bool,
    to_head: bool,
    /// Received but not decoded, with the arrival of the last bytes.
    inbox: Vec<u8>,
    searched: usize,
    /// Length of the final head, which stays at the start of the inbox until the body is decoded. Dropping it alone
    /// would move a whole burst.
    head_bytes: usize,
    arrival: Option<Arrival>,
    body: Option<BodyDecoder>,
    /// The last read violated the body's framing.
    malformed: Option<BodyError>,
    kind: ReplyKind,
    keep: bool,
    /// The server's `Keep-Alive` timeout, in seconds.
    keep_alive_seconds: Option<u64>,
}

impl Http1Exchange {
    /// Starts an exchange at `now`.
    pub(super) fn begin(
        connection: Http1Connection,
        request: &UpstreamRequest<'_>,
        connector: &UpstreamConnector,
        now: Stamp,
    ) -> Self {
        let Http1Connection { io, mut out, inbox, used, open } = connection;
        out.clear();
        request.write(connector, &mut out);
        let method = request.head.method();
        Self {
            io,
            unanswered: used.then_some(now),
            write_failed: false,
            resending: false,
            idempotent: matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"),
            open,
            out,
            written: 0,
            payload: Vec::new(),
            chunked: request.framing == Framing::Chunked,
            complete: false,
            write_closed: false,
            resets_on_close: false,
            to_head: method == "HEAD",
            inbox,
            searched: 0,
            head_bytes: 0,
            arrival: None,
            body: None,
            malformed: None,
            kind: ReplyKind::FixedLength,
            keep: false,
            keep_alive_seconds: None,
        }
    }

    /// True if the request may be sent again after `broken`, by the rules above.
    pub(super) async fn may_resend(&self, broken: &UpstreamError) -> bool {
        let reset = match broken {
            UpstreamError::Reset => true,
            UpstreamError::Closed => self.write_failed,
            _ => return false,
        };
        let Some(written) = self.unanswered else { return false };
        let in_time = Clock::Monotonic.now().since(written) <= MAX_HANG_UP_RACE;
        self.idempotent || in_time && (reset || self.io.is_reset(MAX_RESET_WAIT).await)
    }

    /// Sends the request again over a new connection.
    pub(super) fn resend(&mut self, connection: Http1Connection) {
        (self.io, self.open, self.written) = (connection.io, connection.open, 0);
        (self.unanswered, self.write_failed, self.resets_on_close) = (None, false, false);
        // Otherwise the next write of the remaining body also writes the bytes before it.
        self.resending = self.complete && self.payload.is_empty();
    }

    /// Appends to the request body.
    pub(super) fn send(&mut self, payload: &[u8]) {
        if self.write_closed || payload.is_empty() {
            return;
        }
        if self.chunked {
            ChunkWriter::head(&mut self.out, payload.len());
        }
        let start = self.out.len();
        self.out.extend_from_slice(payload);
        match self.payload.last_mut() {
            Some(last) if last.end == start => last.end = self.out.len(),
            _ => self.payload.push(start..self.out.len()),
        }
        if self.chunked {
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Ends the request body.
    pub(super) fn complete(&mut self, trailers: Option<&Head>) {
        if self.chunked && !self.write_closed {
            ChunkWriter::finish(&mut self.out, trailers);
        }
        self.complete = true;
    }

    /// Bytes that are not written, or not observed yet.
    pub(super) fn backlog(&self) -> usize {
        let first_unobserved = self.payload.first().map_or(self.written, |piece| piece.start.min(self.written));
        self.out.len() - first_unobserved
    }

    /// True if written bytes wait to be observed.
    pub(super) fn has_unobserved(&self) -> bool {
        self.written == self.out.len() && !self.payload.is_empty()
    }

    /// True if the server no longer accepts bytes.
    pub(super) fn write_closed(&self) -> bool {
        self.write_closed
    }

    /// Writes pending bytes; ready when none are left. Then calls `written` with each payload range that was sent.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        mut written: impl FnMut(&mut Context<'_>, &[u8]) -> Poll<()>,
    ) -> Poll<Result<(), UpstreamError>> {
        let before = self.written;
        if self.write_failed {
            self.written = self.out.len();
        }
        let flushed = self.io.poll_write_all(cx, &self.out, &mut self.written);
        // A FIN would wait behind megabytes in the kernel's buffers until the server reads on.
        let resets_on_close = flushed.is_pending() || self.resets_on_close && !self.complete;
        if std::mem::replace(&mut self.resets_on_close, resets_on_close) != resets_on_close {
            self.io.set_reset_on_close(resets_on_close);
        }
        match ready!(flushed) {
            Ok(()) => {}
            // The server's response, or its absence, decides whether the request is sent again.
            Err(_) if self.unanswered.is_some() => (self.write_failed, self.written) = (true, self.out.len()),
            Err(_) => self.write_closed = true,
        }
        if let Some(last_write) = self.unanswered.as_mut().filter(|_| self.written > before) {
            *last_write = Clock::Monotonic.now();
        }
        let mut pieces = self.payload.iter();
        let pending = pieces.position(|piece| written(cx, &self.out[piece.clone()]).is_pending());
        if let Some(observed) = pending {
            self.payload.drain(..observed);
            return Poll::Pending;
        }
        self.payload.clear();
        if self.unanswered.is_none() {
            self.clear_written();
        }
        Poll::Ready(Ok(()))
    }

    /// Drops the request's bytes after all were written.
    fn clear_written(&mut self) {
        self.out.clear();
        self.written = 0;
        self.out.shrink_to(MAX_IDLE_BUFFER_BYTES);
    }

    /// After the response's first byte the request is not sent again.
    fn on_response_start(&mut self) {
        if self.unanswered.take().is_some() {
            self.write_closed |= take(&mut self.write_failed);
            if self.backlog() == 0 && self.payload.is_empty() {
                self.clear_written();
            }
        }
    }

    /// Reads the next response head: interim heads, then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<Arrival, UpstreamError>> {
        if self.resending && self.poll_flush(cx, |_, _| Poll::Ready(())).is_ready() {
            self.resending = false;
        }
        loop {
            if let Some(end) = end_of_head(&self.inbox, self.searched).filter(|end| *end <= MAX_HEAD) {
                head.parse_response(&self.inbox[..end]).map_err(UpstreamError::Head)?;
                self.searched = 0;
                if matches!(head.status(), 100 | 102..=199) {
                    self.inbox.drain(..end);
                } else {
                    self.head_bytes = end;
                    let framing = head.response_framing(self.to_head).map_err(UpstreamError::Head)?;
                    self.keep = head.keeps_alive() && framing != Framing::UntilClose;
                    self.kind = if matches!(framing, Framing::Length(_)) {
                        ReplyKind::FixedLength
                    } else {
                        ReplyKind::Streamed
                    };
                    self.keep_alive_seconds = head.get(KnownHeader::KeepAlive).and_then(timeout);
                    self.body = Some(BodyDecoder::new(framing));
                }
                let Some(arrival) = self.arrival else { return Poll::Ready(Err(UpstreamError::Closed)) };
                return Poll::Ready(Ok(arrival));
            }
            check_partial_response(&self.inbox, self.searched).map_err(UpstreamError::Head)?;
            self.searched = self.inbox.len();
            if self.searched > MAX_HEAD {
                return Poll::Ready(Err(UpstreamError::Head(crate::net::http1::HeadError::TooLarge)));
            }
            let inbox = &mut self.inbox;
            let read = ready!(self.io.poll_read(cx, |bytes, arrival| {
                inbox.extend_from_slice(bytes);
                arrival
            }));
            self.arrival = Some(read.map_err(UpstreamError::from_io)?.ok_or(UpstreamError::Closed)?);
            self.on_response_start();
        }
    }

    /// Appends the next piece of the response body to `out`.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<BodyStep, UpstreamError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Err(UpstreamError::Closed)) };
        if let Some(error) = self.malformed.take() {
            return Poll::Ready(Err(UpstreamError::Body(error)));
        }
        let before = out.len();
        let mut decoded = Ok(0);
        // Without the reservations, a burst of small chunks would double the buffer several times.
        let (head, received) = (take(&mut self.head_bytes), self.inbox.len());
        if received > head && !body.is_done() {
            out.reserve(received - head);
            decoded = body.decode(&self.inbox[head..], |payload| out.extend_from_slice(payload));
        }
        self.inbox.drain(..decoded.map_or(received, |taken| head + taken));
        while decoded.is_ok() && out.len() == before && !body.is_done() {
            let inbox = &mut self.inbox;
            let read = ready!(self.io.poll_read(cx, |bytes, arrival| {
                out.reserve(bytes.len());
                let decoded = body.decode(bytes, |payload| out.extend_from_slice(payload));
                inbox.extend_from_slice(&bytes[decoded.unwrap_or(bytes.len())..]);
                (arrival, decoded)
            }));
            match read.map_err(UpstreamError::from_io)? {
                Some((arrival, outcome)) => (self.arrival, decoded) = (Some(arrival), outcome),
                None if body.ends_with_close() && self.io.peer_sent_close_notify() => {
                    return Poll::Ready(Ok(BodyStep::End));
                }
                None => return Poll::Ready(Err(UpstreamError::Closed)),
            }
        }
        match decoded {
            // The data before the error is forwarded first.
            Err(error) if out.len() > before => self.malformed = Some(error),
            Err(error) => return Poll::Ready(Err(UpstreamError::Body(error))),
            Ok(_) => {}
        }
        Poll::Ready(Ok(match self.arrival {
            Some(arrival) if out.len() > before => BodyStep::Data(arrival),
            _ => BodyStep::End,
        }))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    pub(super) fn trailers(&self) -> Option<&Head> {
        self.body.as_ref()?.trailers()
    }

    /// The server's `Keep-Alive` timeout, in seconds.
    pub(super) fn keep_alive_seconds(&self) -> Option<u64> {
        self.keep_alive_seconds
    }

    /// The connection, if it is reusable.
    pub(super) fn into_connection(self) -> Option<(Http1Connection, ReplyKind)> {
        let is_read = self.has_ended() && self.inbox.len() == self.head_bytes;
        let whole = self.complete && self.backlog() == 0 && !self.write_closed && is_read;
        (self.keep && whole).then(|| {
            let Self { io, out, mut inbox, open, kind, .. } = self;
            inbox.clear();
            inbox.shrink_to(MAX_IDLE_BUFFER_BYTES);
            (Http1Connection { io, out, inbox, used: true, open }, kind)
        })
    }

    /// The raw connection after a protocol switch, and the bytes already received on it.
    pub(super) fn into_tunnel(mut self) -> (MaybeTlsStream, Vec<u8>, ConnectionGuard) {
        self.inbox.drain(..self.head_bytes);
        (self.io, self.inbox, self.open)
    }
}

/// Parses the `timeout` of a `Keep-Alive` field, in seconds.
fn timeout(value: &[u8]) -> Option<u64> {
    let value = std::str::from_utf8(value).ok()?;
    value.split(',').find_map(|part| part.trim().strip_prefix("timeout=")?.parse().ok())
}

impl UpstreamError {
    fn from_io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Self::Reset
            }
            _ => Self::Io(error),
        }
    }
}

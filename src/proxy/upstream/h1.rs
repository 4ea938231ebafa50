//! Our own HTTP/1.1 client connection, and one exchange on it.
//!
//! Everything that one read of the socket brought is handled at once: decoded straight into the buffer that goes to the
//! client, with the stamp of its arrival. A connection is given back only when the reply ended as its framing says and
//! nothing is left over; in every other case it is closed where it stands, which is also how a client's disconnect
//! reaches the server.
//!
//! # When a request is sent again
//! A server may close a kept connection while the next request is on its way. The request then goes over a new
//! connection, once, if no byte of an answer came and either
//! * its method is idempotent (RFC 9110, section 9.2.2), or
//! * the server's TCP reset the connection within [`MAX_HANG_UP_RACE`] of the last write. A host resets a connection
//!   that is closed before all its bytes were read (RFC 1122, section 4.2.2.13). So the server has not read the whole
//!   request. A server that reads a request and then dies closes with a FIN instead, and the client gets a 502.

use std::io;
use std::mem::take;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use super::pool::ReplyKind;
use super::{BodyStep, UpstreamConnector, UpstreamError, UpstreamRequest};
use crate::clock::Clock;
use crate::export::thread_gauges::OpenConnection;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::body::{BodyError, ChunkWriter};
use crate::net::http1::head::MAX_HEAD;
use crate::net::http1::head_scan::{check_partial_response, end_of_head};
use crate::net::http1::{BodyDecoder, Framing, Head, KnownHeader};
use crate::net::io::{Arrival, MaybeTlsStream};

/// A buffer larger than this is given back when it is empty, so that a long prompt does not stay with its stream.
const MAX_IDLE_BUFFER_BYTES: usize = 4 * 1024;
/// A reset later than this after the last write says nothing of whether the request was read: a router or a host on the
/// way may have gone. A server decides to hang up before it sees the request; what remains is a round trip, a lost
/// segment's retransmission (200 ms at first) and the server's scheduling.
const MAX_HANG_UP_RACE: Gap = Gap::from_millis(1_000);
/// How long the reset may take that follows a FIN: a round trip and one retransmission.
const MAX_RESET_WAIT: Gap = Gap::from_millis(500);

/// A connection between exchanges.
#[derive(Debug)]
pub(super) struct Http1Connection {
    io: MaybeTlsStream,
    /// Its buffers, kept from exchange to exchange: that of the request, and that of what was received.
    out: Vec<u8>,
    inbox: Vec<u8>,
    /// It has carried a reply.
    used: bool,
    open: OpenConnection,
}

impl Http1Connection {
    pub(super) fn new(io: MaybeTlsStream, open: OpenConnection) -> Self {
        Self { io, out: Vec::new(), inbox: Vec::new(), used: false, open }
    }

    /// It goes into the pool, or comes out.
    pub(super) fn set_idle(&mut self, idle: bool) {
        self.open.set_idle(idle);
    }

    /// Whether it can be used again.
    pub(super) fn is_alive(&mut self) -> bool {
        self.io.is_idle_and_open()
    }
}

/// One request and its reply.
#[derive(Debug)]
pub(in crate::proxy) struct Http1Exchange {
    io: MaybeTlsStream,
    /// The time of the last write, on a connection that has carried another reply and not yet a byte of this one. The
    /// whole request stays in `out` meanwhile.
    unanswered: Option<Stamp>,
    /// A write failed on it.
    write_failed: bool,
    /// The request is whole, and has to be written again.
    resending: bool,
    idempotent: bool,
    open: OpenConnection,
    /// The request as it goes over the wire; from `written` on it is still to be written.
    out: Vec<u8>,
    written: usize,
    /// Where payload lies in `out`, for the observer.
    payload: Vec<Range<usize>>,
    chunked: bool,
    /// The whole request has been put into `out`.
    complete: bool,
    /// Writing has failed. The server may have answered all the same.
    write_closed: bool,
    to_head: bool,
    /// Received and not yet decoded, with the arrival of its last bytes.
    inbox: Vec<u8>,
    searched: usize,
    arrival: Option<Arrival>,
    body: Option<BodyDecoder>,
    /// What came last does not follow the body's framing.
    malformed: Option<BodyError>,
    kind: ReplyKind,
    keep: bool,
    /// How long the server says it keeps an idle connection, in seconds.
    keep_alive_seconds: Option<u64>,
}

impl Http1Exchange {
    /// Begins an exchange, at `now`.
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
            to_head: method == "HEAD",
            inbox,
            searched: 0,
            arrival: None,
            body: None,
            malformed: None,
            kind: ReplyKind::FixedLength,
            keep: false,
            keep_alive_seconds: None,
        }
    }

    /// Whether the request may be sent once more after `broken`; see the module.
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
        (self.unanswered, self.write_failed) = (None, false);
        // Otherwise whoever sends the rest writes what came before it as well.
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

    /// The request body is whole.
    pub(super) fn complete(&mut self, trailers: Option<&Head>) {
        if self.chunked && !self.write_closed {
            ChunkWriter::finish(&mut self.out, trailers);
        }
        self.complete = true;
    }

    /// Bytes that wait to be written.
    pub(super) fn backlog(&self) -> usize {
        self.out.len() - self.written
    }

    /// Whether the server no longer takes bytes.
    pub(super) fn write_closed(&self) -> bool {
        self.write_closed
    }

    /// Writes what waits; ready when nothing does. `written` is then called with each piece of payload that went out.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        mut written: impl FnMut(&[u8]),
    ) -> Poll<Result<(), UpstreamError>> {
        let before = self.written;
        if self.write_failed {
            self.written = self.out.len();
        }
        match ready!(self.io.poll_write_all(cx, &self.out, &mut self.written)) {
            Ok(()) => {}
            // What the server says, or that it says nothing, decides whether the request is sent again.
            Err(_) if self.unanswered.is_some() => (self.write_failed, self.written) = (true, self.out.len()),
            Err(_) => self.write_closed = true,
        }
        for piece in self.payload.drain(..) {
            written(&self.out[piece]);
        }
        match &mut self.unanswered {
            Some(last_write) if self.written > before => *last_write = Clock::Monotonic.now(),
            Some(_) => {}
            None => self.clear_written(),
        }
        Poll::Ready(Ok(()))
    }

    /// Gives up the bytes of the request, all of which were written.
    fn clear_written(&mut self) {
        self.out.clear();
        self.written = 0;
        self.out.shrink_to(MAX_IDLE_BUFFER_BYTES);
    }

    /// The first byte of an answer came: the request is not sent again.
    fn on_response_start(&mut self) {
        if self.unanswered.take().is_some() {
            self.write_closed |= take(&mut self.write_failed);
            if self.backlog() == 0 && self.payload.is_empty() {
                self.clear_written();
            }
        }
    }

    /// The next response head: interim ones, then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<Arrival, UpstreamError>> {
        if self.resending && self.poll_flush(cx, |_| ()).is_ready() {
            self.resending = false;
        }
        loop {
            if let Some(end) = end_of_head(&self.inbox, self.searched).filter(|end| *end <= MAX_HEAD) {
                head.parse_response(&self.inbox[..end]).map_err(UpstreamError::Head)?;
                self.inbox.drain(..end);
                self.searched = 0;
                if !matches!(head.status(), 100 | 102..=199) {
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

    /// The next piece of the response body, appended to `out`.
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
        if !self.inbox.is_empty() && !body.is_done() {
            decoded = body.decode(&self.inbox, |payload| out.extend_from_slice(payload));
            self.inbox.drain(..decoded.unwrap_or(self.inbox.len()));
        }
        while decoded.is_ok() && out.len() == before && !body.is_done() {
            let inbox = &mut self.inbox;
            let read = ready!(self.io.poll_read(cx, |bytes, arrival| {
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
            // What came before it goes on first.
            Err(error) if out.len() > before => self.malformed = Some(error),
            Err(error) => return Poll::Ready(Err(UpstreamError::Body(error))),
            Ok(_) => {}
        }
        Poll::Ready(Ok(match self.arrival {
            Some(arrival) if out.len() > before => BodyStep::Data(arrival),
            _ => BodyStep::End,
        }))
    }

    /// Whether the response body has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    /// The trailers that ended the response body.
    pub(super) fn trailers(&self) -> Option<&Head> {
        self.body.as_ref()?.trailers()
    }

    /// How long the server says it keeps an idle connection, in seconds.
    pub(super) fn keep_alive_seconds(&self) -> Option<u64> {
        self.keep_alive_seconds
    }

    /// The connection, if it can carry another exchange.
    pub(super) fn into_connection(self) -> Option<(Http1Connection, ReplyKind)> {
        let whole =
            self.complete && self.backlog() == 0 && !self.write_closed && self.has_ended() && self.inbox.is_empty();
        (self.keep && whole).then(|| {
            let Self { io, out, mut inbox, open, kind, .. } = self;
            inbox.shrink_to(MAX_IDLE_BUFFER_BYTES);
            (Http1Connection { io, out, inbox, used: true, open }, kind)
        })
    }

    /// The raw connection after a switch of protocols, and what was already received over it.
    pub(super) fn into_tunnel(self) -> (MaybeTlsStream, Vec<u8>, OpenConnection) {
        (self.io, self.inbox, self.open)
    }
}

/// The `timeout` of a `Keep-Alive` field.
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

//! The upstream side: connections to the inference server, and exchanges on them.
//!
//! HTTP/1.1 is our own ([`h1`], [`pool`]); HTTP/2 is hyper's ([`h2`]). [`UpstreamExchange`] is the common interface: it
//! takes a request piece by piece, and returns heads and body with their arrival timestamps.

mod connect;
mod h1;
mod h2;
mod pool;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

pub(super) use connect::{ConnectionGuard, UpstreamConnector};
pub(super) use h2::field_map;

use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::body::BodyError;
use crate::net::http1::{Framing, Head, HeadError, KnownHeader};
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::added_headers::{AddedHeaders, TraceFields};
use crate::proxy::usage_injection::UsageInjection;

/// Pending request bytes at which the proxy stops reading the client's body.
pub(super) const HIGH_WATER_BYTES: usize = 64 * 1024;
/// Largest request body kept for a retry until its response begins, in bytes: a pooled connection may turn out to be
/// closed.
const MAX_RETRY_BODY_BYTES: u64 = 64 * 1024;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    /// The connection failed.
    #[error("cannot connect to {place}: {why}")]
    Connect {
        /// Host and port.
        place: String,
        /// The error and its remedy.
        why: String,
    },
    /// The connection timed out.
    #[error("cannot connect to {place} within {limit}")]
    ConnectTimeout {
        /// Host and port.
        place: String,
        /// The timeout.
        limit: Gap,
    },
    /// The process is out of file descriptors. The server was not contacted.
    #[error(
        "no descriptor is left for a connection to {place}; raise the limit on open files, or lower --max-connections"
    )]
    NoDescriptor {
        /// Host and port.
        place: String,
    },
    /// The connection closed before it took a byte: a retry is safe.
    #[error("the connection was closed before it took the request")]
    Unprocessed,
    /// The server closed before the end of its response.
    #[error("the connection was closed before the answer was whole")]
    Closed,
    /// The server reset the connection.
    #[error("the connection was reset before the answer was whole")]
    Reset,
    /// The response head is not valid HTTP.
    #[error("the answer cannot be passed on: {0}")]
    Head(HeadError),
    /// The response body violates its framing.
    #[error("the answer cannot be passed on: {0}")]
    Body(BodyError),
    /// Any other socket error.
    #[error("the connection failed: {}", connect::describe(.0))]
    Io(io::Error),
    /// The HTTP/2 exchange failed.
    #[error("the HTTP/2 exchange failed: {}", connect::describe(reason(.0)))]
    Http2(hyper::Error),
}

/// The cause of an HTTP/2 failure, which hyper hides behind a generic error. Cuts the bracketed part, which may contain
/// the peer's own text.
fn reason(error: &hyper::Error) -> String {
    let mut reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    reason.truncate(reason.find(" (").unwrap_or(reason.len()));
    reason
}

/// A step of a response body.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyStep {
    /// Payload and its arrival.
    Data(Arrival),
    End,
}

/// One worker's upstream connections.
pub(super) struct UpstreamClient {
    connector: UpstreamConnector,
    pool: RefCell<pool::UpstreamPool>,
    http2: RefCell<h2::Http2Connections>,
}

/// One request and its response, over either HTTP version.
pub(super) enum UpstreamExchange {
    Http1(Box<h1::Http1Exchange>),
    Http2(Box<h2::Http2Exchange>),
}

/// A request head for the upstream.
pub(super) struct UpstreamRequest<'a> {
    /// The client's head.
    pub(super) head: &'a Head,
    /// The body's framing to the upstream.
    pub(super) framing: Framing,
    /// True if the body is known to be small enough for a retry.
    pub(super) repeatable: bool,
    /// Header lines added by the proxy; usually none.
    pub(super) added: &'a [(&'static str, String)],
    /// Which of the client's trace fields are forwarded.
    pub(super) trace: TraceFields,
    /// The response is edited, so it must not be compressed.
    pub(super) edited: bool,
}

impl UpstreamClient {
    pub(super) fn new(connector: UpstreamConnector) -> Self {
        Self { connector, pool: RefCell::default(), http2: RefCell::default() }
    }

    /// The server's host and port for records, once they may be known.
    pub(super) fn server(&self) -> Option<(Arc<str>, u16)> {
        self.connector.server()
    }

    /// Starts an exchange over a rested connection or a new one.
    ///
    /// A body of unknown or large size always gets a new connection. It could not be sent again if a pooled one turned
    /// out to be closed.
    pub(super) async fn begin(&self, request: &UpstreamRequest<'_>) -> Result<UpstreamExchange, UpstreamError> {
        let now = Clock::Monotonic.now();
        let grpc = request.head.grpc().is_some();
        let pooled = if self.connector.is_http2(grpc) {
            let open = self.http2.borrow_mut().open();
            if let Some(connection) = open {
                return self.begin_http2(connection, request);
            }
            None
        } else {
            request.repeatable.then(|| self.pool.borrow_mut().take(now)).flatten()
        };
        let connection = match pooled {
            Some(connection) => connection,
            None => {
                let io = self.connect().await?;
                // TLS negotiates the version separately for each connection.
                if self.connector.is_http2(grpc) {
                    return self.begin_http2(self.adopt_http2(io).await?, request);
                }
                self.adopt_http1(io)
            }
        };
        Ok(UpstreamExchange::Http1(Box::new(h1::Http1Exchange::begin(connection, request, &self.connector, now))))
    }

    /// Opens a connection; at the descriptor limit it first closes an idle one.
    ///
    /// The attempt is boxed: without, every stream's task has 3 KiB of room for it until the stream ends.
    async fn connect(&self) -> Result<MaybeTlsStream, UpstreamError> {
        if self.connector.is_at_limit() {
            self.pool.borrow_mut().close_oldest();
        }
        Box::pin(self.connector.connect()).await
    }

    fn begin_http2(
        &self,
        connection: h2::Http2Connection,
        request: &UpstreamRequest<'_>,
    ) -> Result<UpstreamExchange, UpstreamError> {
        Ok(UpstreamExchange::Http2(Box::new(h2::Http2Exchange::begin(connection, request, &self.connector)?)))
    }

    async fn http2_connection(&self, is_new: bool) -> Result<h2::Http2Connection, UpstreamError> {
        let open = if is_new { None } else { self.http2.borrow_mut().open() };
        match open {
            Some(connection) => Ok(connection),
            None => self.adopt_http2(self.connect().await?).await,
        }
    }

    fn adopt_http1(&self, io: MaybeTlsStream) -> h1::Http1Connection {
        let counted = self.connector.count_connection(&io);
        h1::Http1Connection::new(io, counted)
    }

    async fn adopt_http2(&self, io: MaybeTlsStream) -> Result<h2::Http2Connection, UpstreamError> {
        let counted = self.connector.count_connection(&io);
        let connection = Box::pin(h2::handshake(io, counted)).await?;
        Ok(self.http2.borrow_mut().adopt(connection))
    }

    /// Continues on another connection if the request may be sent again; otherwise returns `broken`.
    pub(super) async fn retry(
        &self,
        exchange: &mut UpstreamExchange,
        broken: UpstreamError,
    ) -> Result<(), UpstreamError> {
        match exchange {
            UpstreamExchange::Http1(exchange) if exchange.may_resend(&broken).await => {
                tracing::debug!(%broken, "the server closed a kept connection; the request is sent again");
                exchange.resend(self.adopt_http1(self.connect().await?));
            }
            UpstreamExchange::Http2(exchange) if exchange.can_retry() => {
                // A restarting server closes all its connections, so the last attempt uses a new one.
                let is_refused = matches!(&broken, UpstreamError::Http2(error) if h2::is_refused(error));
                let is_new = exchange.is_last_attempt() && !is_refused;
                exchange.retry(self.http2_connection(is_new).await?);
            }
            _ => return Err(broken),
        }
        Ok(())
    }

    /// Recycles the connection of an exchange that ended at `now`.
    pub(super) fn finish(&self, exchange: UpstreamExchange, now: Stamp) {
        let UpstreamExchange::Http1(exchange) = exchange else { return };
        let mut pool = self.pool.borrow_mut();
        if let Some(seconds) = exchange.keep_alive_seconds() {
            pool.set_server_keep_alive(seconds);
        }
        if let Some((connection, kind)) = exchange.into_connection() {
            pool.put(connection, kind, now);
        }
    }

    /// Closes connections that the server has closed or that have idled too long.
    pub(super) fn evict(&self) {
        self.pool.borrow_mut().evict(Clock::Monotonic.now());
        self.http2.borrow_mut().close_idle();
    }

    /// True if no connection waits for a further request.
    pub(super) fn is_unused(&self) -> bool {
        self.pool.borrow().is_empty() && self.http2.borrow().is_unused()
    }
}

impl UpstreamExchange {
    /// Appends to the request body.
    pub(super) fn send(&mut self, payload: &[u8]) {
        match self {
            Self::Http1(exchange) => exchange.send(payload),
            Self::Http2(exchange) => exchange.send(payload),
        }
    }

    /// Ends the request body.
    pub(super) fn complete(&mut self, trailers: Option<&Head>) {
        match self {
            Self::Http1(exchange) => exchange.complete(trailers),
            Self::Http2(exchange) => exchange.complete(trailers),
        }
    }

    /// Bytes of the request that are not written, or not observed yet.
    pub(super) fn backlog(&self) -> usize {
        match self {
            Self::Http1(exchange) => exchange.backlog(),
            Self::Http2(exchange) => exchange.backlog(),
        }
    }

    /// True if the server no longer accepts bytes of the request; it may still respond.
    pub(super) fn write_closed(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.write_closed(),
            Self::Http2(exchange) => exchange.write_closed(),
        }
    }

    /// True if written bytes of the request wait to be observed, because the task has to yield first.
    pub(super) fn has_unobserved(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.has_unobserved(),
            Self::Http2(exchange) => exchange.has_unobserved(),
        }
    }

    /// Writes pending bytes; ready when none are left. Then calls `written` with each payload range that was sent, and
    /// again with the same one after it was pending.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        written: impl FnMut(&mut Context<'_>, &[u8]) -> Poll<()>,
    ) -> Poll<Result<(), UpstreamError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_flush(cx, written),
            Self::Http2(exchange) => exchange.poll_flush(cx, written),
        }
    }

    /// Reads the next response head: interim heads, then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<Arrival, UpstreamError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_head(cx, head),
            Self::Http2(exchange) => exchange.poll_head(cx, head),
        }
    }

    /// Appends the next piece of the response body to `out`.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<BodyStep, UpstreamError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_body(cx, out),
            Self::Http2(exchange) => exchange.poll_body(cx, out),
        }
    }

    /// True if the response body is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.has_ended(),
            Self::Http2(exchange) => exchange.has_ended(),
        }
    }

    /// True if nothing follows: no more body and no trailers.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended() && self.trailers().is_none()
    }

    pub(super) fn trailers(&self) -> Option<&Head> {
        match self {
            Self::Http1(exchange) => exchange.trailers(),
            Self::Http2(exchange) => exchange.trailers(),
        }
    }

    /// The raw connection after a protocol switch, and the bytes already received on it.
    pub(super) fn into_tunnel(self) -> Option<(MaybeTlsStream, Vec<u8>, ConnectionGuard)> {
        match self {
            Self::Http1(exchange) => Some(exchange.into_tunnel()),
            Self::Http2(_) => None,
        }
    }
}

impl<'a> UpstreamRequest<'a> {
    /// The upstream request for a client's head and body framing; `asking` if usage injection edits it.
    pub(super) fn new(head: &'a Head, framed: Framing, added: &'a AddedHeaders, asking: bool) -> Self {
        let framing = if asking { UsageInjection::request_framing(framed) } else { framed };
        let repeatable = matches!(framed, Framing::Length(0..=MAX_RETRY_BODY_BYTES));
        Self { head, framing, repeatable, added: added.fields(), trace: added.trace(), edited: asking }
    }

    /// Writes the head for HTTP/1.1, with every end-to-end line unchanged.
    fn write(&self, connector: &UpstreamConnector, out: &mut Vec<u8>) {
        let head = self.head;
        let upgrade = head.upgrade().is_some();
        head.write_request_line(out);
        if head.get(KnownHeader::Host).is_none() {
            push(out, "Host", head.authority().unwrap_or(connector.authority().as_bytes()));
        }
        let chunked = self.framing == Framing::Chunked;
        let trailers = head.has_token(KnownHeader::Te, "trailers");
        let came_chunked = chunked && head.get(KnownHeader::TransferEncoding).is_some();
        head.write_fields(out, |known, hop| match known {
            KnownHeader::TransferEncoding => came_chunked,
            KnownHeader::Upgrade => upgrade,
            KnownHeader::ContentLength => !chunked,
            KnownHeader::AcceptEncoding => !self.edited,
            known => !hop && self.trace.forwards(known),
        });
        if chunked && !came_chunked {
            push(out, "Transfer-Encoding", b"chunked");
        }
        if upgrade {
            push(out, "Connection", b"Upgrade");
        } else if trailers {
            out.extend_from_slice(b"TE: trailers\r\nConnection: TE\r\n");
        }
        for (name, value) in self.added {
            push(out, name, value.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn push(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

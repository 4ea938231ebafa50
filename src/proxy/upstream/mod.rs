//! The way to the inference server: connections, and one exchange on one of them.
//!
//! HTTP/1.1 is our own ([`h1`], [`pool`]); HTTP/2 is hyper's ([`h2`]). [`Exchange`] is what the rest of the proxy sees
//! of either: a request goes in by pieces, heads and body come out with their arrivals.

mod connect;
mod h1;
mod h2;
mod pool;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

pub(super) use connect::UpstreamConnector;
pub(super) use h2::field_map;

use crate::clock::Clock;
use crate::export::thread_gauges::OpenConnection;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::body::BodyError;
use crate::net::http1::{Framing, Head, HeadError, KnownHeader};
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::added_headers::AddedHeaders;
use crate::proxy::usage_injection::UsageInjection;

/// Bytes of a request that may wait to be written before the client's body is no longer read.
pub(super) const HIGH_WATER_BYTES: usize = 64 * 1024;
/// Largest request body that is kept until its answer begins, in bytes: a kept connection may turn out to be closed.
const MAX_RETRY_BODY_BYTES: u64 = 64 * 1024;

/// Why an exchange broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    /// No connection could be made.
    #[error("cannot connect to {place}: {why}")]
    Connect {
        /// Host and port.
        place: String,
        /// Why, and what to do.
        why: String,
    },
    /// Connecting took too long.
    #[error("cannot connect to {place} within {limit}")]
    ConnectTimeout {
        /// Host and port.
        place: String,
        /// The limit.
        limit: Gap,
    },
    /// This process may open no more files. The server was not asked.
    #[error(
        "no descriptor is left for a connection to {place}; raise the limit on open files, or lower --max-connections"
    )]
    NoDescriptor {
        /// Host and port.
        place: String,
    },
    /// A connection turned out to be closed before it took a byte: another one may be used.
    #[error("the connection was closed before it took the request")]
    Unprocessed,
    /// The server closed before its answer was whole.
    #[error("the connection was closed before the answer was whole")]
    Closed,
    /// The server reset the connection.
    #[error("the connection was reset before the answer was whole")]
    Reset,
    /// The answer's head is not HTTP.
    #[error("the answer cannot be passed on: {0}")]
    Head(HeadError),
    /// The answer's body is not framed as it says.
    #[error("the answer cannot be passed on: {0}")]
    Body(BodyError),
    /// Anything else that a socket reports.
    #[error("the connection failed: {}", connect::describe(.0))]
    Io(io::Error),
    /// The HTTP/2 exchange failed.
    #[error("the HTTP/2 exchange failed: {}", connect::describe(reason(.0)))]
    Http2(hyper::Error),
}

/// Why an exchange over HTTP/2 failed, which hyper only calls an error: without what the other side may have written of
/// its own, which stands in brackets.
fn reason(error: &hyper::Error) -> String {
    let mut reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    reason.truncate(reason.find(" (").unwrap_or(reason.len()));
    reason
}

/// What a response body brought.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyStep {
    /// Payload, which arrived then.
    Data(Arrival),
    /// Its end.
    End,
}

/// One worker's connections to the upstream.
pub(super) struct UpstreamClient {
    connector: UpstreamConnector,
    pool: RefCell<pool::UpstreamPool>,
    http2: RefCell<h2::Http2Connections>,
}

/// One request and its reply, over either version of HTTP.
pub(super) enum UpstreamExchange {
    Http1(Box<h1::Http1Exchange>),
    Http2(Box<h2::Http2Exchange>),
}

/// Which of the client's trace fields go on. Ours, if any, is among the added fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TraceFields {
    pub(super) parent: bool,
    pub(super) state: bool,
}

impl TraceFields {
    fn forwards(self, known: KnownHeader) -> bool {
        match known {
            KnownHeader::Traceparent => self.parent,
            KnownHeader::Tracestate => self.state,
            _ => true,
        }
    }
}

/// A request head on its way upstream.
pub(super) struct UpstreamRequest<'a> {
    /// The client's head.
    pub(super) head: &'a Head,
    /// How its body goes on.
    pub(super) framing: Framing,
    /// Whether its body is known to be small enough to be kept for another connection.
    pub(super) repeatable: bool,
    /// Fields of ours, as they go over the wire; usually none.
    pub(super) added: &'a [(&'static str, String)],
    /// Which of the client's trace fields go on.
    pub(super) trace: TraceFields,
    /// The reply is edited on its way, for which it must not be compressed.
    pub(super) edited: bool,
}

impl UpstreamClient {
    pub(super) fn new(connector: UpstreamConnector) -> Self {
        Self { connector, pool: RefCell::default(), http2: RefCell::default() }
    }

    /// The server's host and port, as configured.
    pub(super) fn server(&self) -> (Arc<str>, u16) {
        self.connector.server()
    }

    /// Begins an exchange over a connection that has rested, or a new one.
    ///
    /// A body whose length is unknown or large always gets a new connection: it could not be repeated if a kept one
    /// turned out to be closed.
    pub(super) async fn begin(&self, request: &UpstreamRequest<'_>) -> Result<UpstreamExchange, UpstreamError> {
        let now = Clock::Monotonic.now();
        let grpc = request.head.grpc().is_some();
        let kept = if self.connector.is_http2(grpc) {
            let open = self.http2.borrow_mut().open();
            if let Some(connection) = open {
                return self.begin_http2(connection, request);
            }
            None
        } else {
            request.repeatable.then(|| self.pool.borrow_mut().take(now)).flatten()
        };
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let io = self.connect().await?;
                // TLS agrees on the version anew with each connection.
                if self.connector.is_http2(grpc) {
                    return self.begin_http2(self.adopt_http2(io).await?, request);
                }
                h1::Http1Connection::new(io, self.connector.count_connection())
            }
        };
        Ok(UpstreamExchange::Http1(Box::new(h1::Http1Exchange::begin(connection, request, &self.connector, now))))
    }

    /// A new connection, for which an idle one may have to go.
    async fn connect(&self) -> Result<MaybeTlsStream, UpstreamError> {
        if self.connector.is_at_limit() {
            self.pool.borrow_mut().close_oldest();
        }
        self.connector.connect().await
    }

    fn begin_http2(
        &self,
        connection: h2::Http2Connection,
        request: &UpstreamRequest<'_>,
    ) -> Result<UpstreamExchange, UpstreamError> {
        Ok(UpstreamExchange::Http2(Box::new(h2::Http2Exchange::begin(connection, request, &self.connector)?)))
    }

    async fn http2_connection(&self) -> Result<h2::Http2Connection, UpstreamError> {
        let open = self.http2.borrow_mut().open();
        match open {
            Some(connection) => Ok(connection),
            None => self.adopt_http2(self.connect().await?).await,
        }
    }

    async fn adopt_http2(&self, io: MaybeTlsStream) -> Result<h2::Http2Connection, UpstreamError> {
        let connection = h2::handshake(io, self.connector.count_connection()).await?;
        Ok(self.http2.borrow_mut().adopt(connection))
    }

    /// Goes on with another connection, where the request may be sent again; else `broken` is how it ends.
    pub(super) async fn retry(
        &self,
        exchange: &mut UpstreamExchange,
        broken: UpstreamError,
    ) -> Result<(), UpstreamError> {
        match exchange {
            UpstreamExchange::Http1(exchange) if exchange.may_resend(&broken).await => {
                tracing::debug!(%broken, "the server closed a kept connection; the request is sent again");
                exchange.resend(h1::Http1Connection::new(self.connect().await?, self.connector.count_connection()));
            }
            UpstreamExchange::Http2(exchange) if exchange.can_retry() => exchange.retry(self.http2_connection().await?),
            _ => return Err(broken),
        }
        Ok(())
    }

    /// Takes the connection of an exchange back that was finished at `now`.
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

    /// Closes what the server has closed, and what has idled too long.
    pub(super) fn evict(&self) {
        self.pool.borrow_mut().evict(Clock::Monotonic.now());
        self.http2.borrow_mut().close_idle();
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

    /// The request body is whole.
    pub(super) fn complete(&mut self, trailers: Option<&Head>) {
        match self {
            Self::Http1(exchange) => exchange.complete(trailers),
            Self::Http2(exchange) => exchange.complete(trailers),
        }
    }

    /// Bytes of the request that wait to be written.
    pub(super) fn backlog(&self) -> usize {
        match self {
            Self::Http1(exchange) => exchange.backlog(),
            Self::Http2(exchange) => exchange.backlog(),
        }
    }

    /// Whether the server no longer takes bytes of the request; it may still answer.
    pub(super) fn write_closed(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.write_closed(),
            Self::Http2(exchange) => exchange.write_closed(),
        }
    }

    /// Writes what waits; ready when nothing does. `written` gets each piece of payload that went out.
    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        written: impl FnMut(&[u8]),
    ) -> Poll<Result<(), UpstreamError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_flush(cx, written),
            Self::Http2(exchange) => exchange.poll_flush(cx, written),
        }
    }

    /// The next response head: interim ones, then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<Arrival, UpstreamError>> {
        match self {
            Self::Http1(exchange) => exchange.poll_head(cx, head),
            Self::Http2(exchange) => exchange.poll_head(cx, head),
        }
    }

    /// The next piece of the response body, appended to `out`.
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

    /// Whether the response body is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.has_ended(),
            Self::Http2(exchange) => exchange.has_ended(),
        }
    }

    /// Whether nothing comes behind what has been read: no more of the body, and no trailers.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended() && self.trailers().is_none()
    }

    /// The trailers that ended the response body.
    pub(super) fn trailers(&self) -> Option<&Head> {
        match self {
            Self::Http1(exchange) => exchange.trailers(),
            Self::Http2(exchange) => exchange.trailers(),
        }
    }

    /// The raw connection after a switch of protocols, and what was already received over it.
    pub(super) fn into_tunnel(self) -> Option<(MaybeTlsStream, Vec<u8>, OpenConnection)> {
        match self {
            Self::Http1(exchange) => Some(exchange.into_tunnel()),
            Self::Http2(_) => None,
        }
    }
}

impl<'a> UpstreamRequest<'a> {
    /// A request of the client's, whose body is `framed` like this; `asking` if that is edited on its way.
    pub(super) fn new(head: &'a Head, framed: Framing, added: &'a AddedHeaders, asking: bool) -> Self {
        let framing = if asking { UsageInjection::request_framing(framed) } else { framed };
        let repeatable = matches!(framed, Framing::Length(0..=MAX_RETRY_BODY_BYTES));
        Self { head, framing, repeatable, added: added.fields(), trace: added.trace(), edited: asking }
    }

    /// Writes the head for HTTP/1.1: every end-to-end line as it came.
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

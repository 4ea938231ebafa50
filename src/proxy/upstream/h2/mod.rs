//! HTTP/2 to the upstream: hyper's client, with the interface of our own HTTP/1.1.
//!
//! Streams of many requests share a connection. Data on a stream gets the timestamp of its connection's last read. That
//! is the read that brought the data, unless several reads came before the stream's task ran.

mod body;
mod progress;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http2};
use hyper_util::rt::TokioIo;

use self::body::{RetryBuffer, SendQueue, UploadBody};
use self::progress::{UnfinishedUploadGuard, UploadProgress};
use super::{BodyStep, ConnectionGuard, UpstreamConnector, UpstreamError, UpstreamRequest};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::head_error::MAX_HEAD;
use crate::net::http1::{Framing, Head, KnownHeader};
use crate::net::io::{Arrival, MAX_READ_BYTES, MaybeTlsStream, SocketView, TimestampedIo};
use crate::proxy::LocalExecutor;
use crate::proxy::flow_control::{
    MAX_SEND_BUFFER_BYTES, MAX_UPSTREAM_STREAMS, UPSTREAM_CONNECTION_WINDOW_BYTES, UPSTREAM_STREAM_WINDOW_BYTES,
};

/// Limit on attempts for a request that no server has processed.
const MAX_ATTEMPTS: usize = 3;

/// If a client disconnects after this long without a byte from the server, the connection becomes suspect. The peer may
/// be gone without a FIN, which the kernel would not notice for a quarter of an hour.
const SUSPECT_AFTER: Gap = Gap::from_millis(1_000);

type SendResult = Result<Response<Incoming>, TrySendError<Request<UploadBody>>>;

/// An open connection.
#[derive(Clone)]
pub(super) struct Http2Connection {
    sender: http2::SendRequest<UploadBody>,
    /// Driven by its own task; `None` once that has ended, because only then the sender reports closed.
    driver: Rc<RefCell<Option<Driver>>>,
    arrival: Rc<Cell<Option<Arrival>>>,
    socket: SocketView,
    streams: Rc<Cell<usize>>,
    /// No traffic since the last check.
    idle: Rc<Cell<bool>>,
    uploads: Arc<UploadProgress>,
    /// No further request uses it.
    suspect: Rc<Cell<bool>>,
}

type Driver = http2::Connection<TokioIo<TimestampedIo>, UploadBody, LocalExecutor>;

impl Http2Connection {
    /// The server's stream limit: a stream above it would wait until another one ends.
    fn max_streams(&self) -> usize {
        self.driver
            .borrow()
            .as_ref()
            .map_or(MAX_UPSTREAM_STREAMS, |driver| driver.current_max_send_streams().clamp(1, MAX_UPSTREAM_STREAMS))
    }
}

impl Http2Connection {
    fn take_stream(&self) {
        self.streams.set(self.streams.get() + 1);
        self.idle.set(false);
    }
}

/// The open connections of one worker.
#[derive(Default)]
pub(super) struct Http2Connections(Vec<Http2Connection>);

impl Http2Connections {
    /// A connection with capacity for another stream. An idle one with unread bytes is passed over: they may be a
    /// GOAWAY, and a request that crosses a close is lost. At most one upload per connection may be unfinished. If the
    /// server stops reading it, requests beside it could lack a window and never arrive.
    pub(super) fn open(&mut self) -> Option<Http2Connection> {
        self.0.retain(|connection| !connection.sender.is_closed() && !connection.suspect.get());
        let is_open = |connection: &&Http2Connection| {
            let (streams, uploads) = (connection.streams.get(), &connection.uploads);
            let is_quiet = || streams > 0 || !connection.socket.has_unread();
            streams < connection.max_streams() && !uploads.is_unfinished() && !uploads.is_stalled() && is_quiet()
        };
        self.0.iter().find(is_open).cloned()
    }

    /// Closes connections without traffic since the last call. The first one stays for the next request.
    pub(super) fn close_idle(&mut self) {
        let mut first = true;
        self.0.retain(|connection| {
            let was_idle = connection.idle.replace(connection.streams.get() == 0);
            std::mem::take(&mut first) || !was_idle || connection.streams.get() > 0
        });
    }

    /// True if all connections are closed, or have had no traffic since the last two checks.
    pub(super) fn is_unused(&self) -> bool {
        self.0.iter().all(|connection| connection.sender.is_closed() || connection.idle.get())
    }

    pub(super) fn adopt(&mut self, connection: Http2Connection) -> Http2Connection {
        self.0.push(connection.clone());
        connection
    }
}

/// Opens HTTP/2 on a new connection.
pub(super) async fn handshake(io: MaybeTlsStream, open: ConnectionGuard) -> Result<Http2Connection, UpstreamError> {
    let arrival = Rc::new(Cell::new(None));
    let io = TimestampedIo::new(io, Vec::new(), Rc::clone(&arrival));
    let (socket, io) = (io.socket_view(), TokioIo::new(io));
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .initial_stream_window_size(UPSTREAM_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(UPSTREAM_CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX));
    let (sender, connection) = builder.handshake(io).await.map_err(UpstreamError::Http2)?;
    let driver = Rc::new(RefCell::new(Some(connection)));
    let driven = Rc::clone(&driver);
    tokio::task::spawn_local(async move {
        // The connection's streams report its error.
        let _closed = poll_fn(|cx| match driven.borrow_mut().as_mut() {
            Some(connection) => Pin::new(connection).poll(cx).map(|ended| ended.is_ok()),
            None => Poll::Ready(true),
        })
        .await;
        driven.take();
        drop(open);
    });
    Ok(Http2Connection {
        sender,
        driver,
        arrival,
        socket,
        streams: Rc::default(),
        idle: Rc::default(),
        uploads: Arc::default(),
        suspect: Rc::default(),
    })
}

/// One request and its response.
pub(in crate::proxy) struct Http2Exchange {
    request: Rc<RefCell<SendQueue>>,
    unobserved: Vec<Bytes>,
    response: Option<Pin<Box<dyn Future<Output = SendResult>>>>,
    /// Until the response begins, unless it is too large.
    retry_buffer: Option<RetryBuffer>,
    /// The request, if no server has processed it.
    unprocessed: Option<Request<UploadBody>>,
    /// Attempts so far.
    attempts: usize,
    body: Option<Incoming>,
    ended: bool,
    trailers: Option<Head>,
    started: Stamp,
    arrival: Rc<Cell<Option<Arrival>>>,
    streams: Rc<Cell<usize>>,
    uploads: Arc<UploadProgress>,
    unfinished: Option<UnfinishedUploadGuard>,
    suspect: Rc<Cell<bool>>,
}

impl Http2Exchange {
    pub(super) fn begin(
        mut connection: Http2Connection,
        request: &UpstreamRequest<'_>,
        connector: &UpstreamConnector,
    ) -> Result<Self, UpstreamError> {
        let (outbox, retry_buffer) = (Rc::default(), RetryBuffer::new(request.to_http2(connector)?));
        let response =
            Box::pin(connection.sender.try_send_request(retry_buffer.to_request(&outbox, &connection.uploads)));
        connection.take_stream();
        // gRPC streams may stay open for long and send little.
        let uploads = request.head.grpc().is_none();
        let unfinished = uploads.then(|| UnfinishedUploadGuard::new(&connection.uploads));
        Ok(Self {
            request: outbox,
            unobserved: Vec::new(),
            response: Some(response),
            retry_buffer: Some(retry_buffer),
            unprocessed: None,
            attempts: 1,
            body: None,
            ended: false,
            trailers: None,
            started: Clock::Monotonic.now(),
            arrival: connection.arrival,
            streams: connection.streams,
            uploads: connection.uploads,
            unfinished,
            suspect: connection.suspect,
        })
    }

    /// Rebuilds the request from the start, if its copy is complete.
    fn rebuild_request(&mut self) -> Option<Request<UploadBody>> {
        let outbox = self.retry_buffer.as_ref()?.to_send_queue(self.request.borrow().complete);
        self.request = Rc::new(RefCell::new(outbox));
        self.retry_buffer.as_ref().map(|buffer| buffer.to_request(&self.request, &self.uploads))
    }

    /// True if another connection may take the request.
    pub(super) fn can_retry(&self) -> bool {
        self.unprocessed.is_some() && self.attempts < MAX_ATTEMPTS
    }

    /// True if the next attempt is the last one.
    pub(super) fn is_last_attempt(&self) -> bool {
        self.attempts + 1 == MAX_ATTEMPTS
    }

    /// Sends the unprocessed request over another connection.
    pub(super) fn retry(&mut self, mut connection: Http2Connection) {
        if let Some(mut message) = self.unprocessed.take() {
            self.attempts += 1;
            message.body_mut().uploads = Arc::clone(&connection.uploads);
            self.uploads = Arc::clone(&connection.uploads);
            self.unfinished = self.unfinished.take().map(|_| UnfinishedUploadGuard::new(&connection.uploads));
            self.response = Some(Box::pin(connection.sender.try_send_request(message)));
            self.streams.set(self.streams.get().saturating_sub(1));
            connection.take_stream();
            (self.arrival, self.streams, self.suspect) = (connection.arrival, connection.streams, connection.suspect);
        }
    }

    pub(super) fn send(&mut self, payload: &[u8]) {
        self.retry_buffer = self.retry_buffer.take().and_then(|buffer| buffer.append(payload));
        let payload = Bytes::copy_from_slice(payload);
        self.unobserved.push(payload.clone());
        self.request.borrow_mut().push(Frame::data(payload));
    }

    pub(super) fn complete(&mut self, trailers: Option<&Head>) {
        let trailers = trailers.map(|trailers| field_map(trailers.end_to_end().map(|(name, value, _)| (name, value))));
        if let Some(buffer) = &mut self.retry_buffer {
            buffer.end(trailers.as_ref());
        }
        self.request.borrow_mut().end(trailers);
        self.unfinished = None;
    }

    pub(super) fn backlog(&self) -> usize {
        self.request.borrow().queued_bytes + self.unobserved.iter().map(Bytes::len).sum::<usize>()
    }

    pub(super) fn has_unobserved(&self) -> bool {
        self.request.borrow().is_empty() && !self.unobserved.is_empty()
    }

    /// A request that is still retryable may yet be accepted completely.
    pub(super) fn write_closed(&self) -> bool {
        self.request.borrow().dropped && self.retry_buffer.is_none()
    }

    pub(super) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        mut written: impl FnMut(&mut Context<'_>, &[u8]) -> Poll<()>,
    ) -> Poll<Result<(), UpstreamError>> {
        ready!(self.request.borrow_mut().poll_drained(cx));
        let pending = self.unobserved.iter().position(|payload| written(cx, payload).is_pending());
        self.unobserved.drain(..pending.unwrap_or(self.unobserved.len()));
        if pending.is_some() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, head: &mut Head) -> Poll<Result<Arrival, UpstreamError>> {
        let Some(response) = &mut self.response else { return Poll::Ready(Err(UpstreamError::Closed)) };
        let response = match ready!(response.as_mut().poll(cx)) {
            Ok(response) => response,
            Err(mut error) => {
                self.unprocessed = error.take_message();
                // The request was never sent.
                if self.unprocessed.is_some() {
                    return Poll::Ready(Err(UpstreamError::Unprocessed));
                }
                let error = error.into_error();
                self.unprocessed = if is_unprocessed(&error) { self.rebuild_request() } else { None };
                return Poll::Ready(Err(UpstreamError::Http2(error)));
            }
        };
        (self.response, self.retry_buffer) = (None, None);
        let (parts, body) = response.into_parts();
        head.compose_response(parts.status.as_u16());
        for (name, value) in &parts.headers {
            head.push(name.as_str().as_bytes(), value.as_bytes());
        }
        self.ended = body.is_end_stream();
        self.body = Some(body);
        Poll::Ready(self.arrival.get().ok_or(UpstreamError::Closed))
    }

    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Poll<Result<BodyStep, UpstreamError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Err(UpstreamError::Closed)) };
        let before = out.len();
        while !self.ended && out.len() - before < MAX_READ_BYTES {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => out.extend_from_slice(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok().map(|trailers| to_trailers(&trailers)),
                },
                Poll::Ready(None) if body.is_end_stream() => self.ended = true,
                // Earlier data is forwarded first; a failed stream reports its error again at the next poll.
                Poll::Ready(_) if out.len() > before => break,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(UpstreamError::Http2(error))),
                // hyper reports a stream that was reset with NO_ERROR as ended, too.
                Poll::Ready(None) => return Poll::Ready(Err(UpstreamError::Closed)),
                Poll::Pending if out.len() == before => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(match self.arrival.get() {
            Some(arrival) if out.len() > before => Ok(BodyStep::Data(arrival)),
            _ => Ok(BodyStep::End),
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn trailers(&self) -> Option<&Head> {
        self.trailers.as_ref()
    }
}

impl Drop for Http2Exchange {
    /// Dropping the response resets the stream; the server must not take the request body for complete either.
    fn drop(&mut self) {
        self.streams.set(self.streams.get().saturating_sub(1));
        let is_silent = self.arrival.get().is_none_or(|arrival| arrival.at < self.started);
        if self.response.is_some() && is_silent && Clock::Monotonic.now().since(self.started) >= SUSPECT_AFTER {
            self.suspect.set(true);
        }
        self.request.borrow_mut().abandon();
    }
}

impl UpstreamRequest<'_> {
    fn to_http2(&self, connector: &UpstreamConnector) -> Result<Request<()>, UpstreamError> {
        let bad = |error: http::Error| UpstreamError::Io(io::Error::new(io::ErrorKind::InvalidInput, error));
        let authority = self.head.get(KnownHeader::Host).unwrap_or(connector.authority().as_bytes());
        let path = match self.head.target() {
            target if target.starts_with('/') => target,
            _ => self.head.path(),
        };
        let uri =
            Uri::builder().scheme(connector.scheme()).authority(authority).path_and_query(path).build().map_err(bad)?;
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(self.head.method().as_bytes()).map_err(|error| bad(error.into()))?;
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_2;
        let keeps = |known| match known {
            KnownHeader::Host => false,
            KnownHeader::ContentLength => self.framing != Framing::Chunked,
            KnownHeader::AcceptEncoding => !self.edited,
            known => self.trace.forwards(known),
        };
        let fields = self.head.end_to_end().filter(|(_, _, known)| keeps(*known));
        let added = self.added.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let te = self.head.has_token(KnownHeader::Te, "trailers").then_some((&b"te"[..], &b"trailers"[..]));
        *request.headers_mut() = field_map(fields.map(|(name, value, _)| (name, value)).chain(added).chain(te));
        Ok(request)
    }
}

/// Converts fields; any field that is invalid in HTTP/2 is invalid in HTTP/1 too.
pub(in crate::proxy) fn field_map<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

fn to_trailers(fields: &HeaderMap) -> Head {
    let mut head = Head::default();
    head.compose_response(200);
    for (name, value) in fields {
        head.push(name.as_str().as_bytes(), value.as_bytes());
    }
    head
}

/// True if the server has not processed a request, which may then be sent again (RFC 9113, section 8.7). It refused the
/// stream, or sent a GOAWAY below the stream's id.
fn is_unprocessed(error: &hyper::Error) -> bool {
    is_refused(error)
        || http2_error(error).is_some_and(|error| {
            error.is_remote() && error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR)
        })
}

/// True if the server refused the stream, while its connection stays open.
pub(super) fn is_refused(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| {
        error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
    })
}

fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>())
}

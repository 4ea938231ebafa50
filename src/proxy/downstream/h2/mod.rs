//! The server for HTTP/2 clients: hyper's, in front of the same exchange.
//!
//! Interim responses do not reach HTTP/2 clients; hyper has no way to send them.

mod batched_io;
mod call;
mod response_body;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use self::batched_io::BatchedIo;
use self::call::{Call, CallError};
use self::response_body::{Http2ResponseBody, RelayedBody, ResponseBodySource};
use super::client::LINGER_TIMEOUT;
use super::drain_body;
use crate::clock::Clock;
use crate::measure::record::Ending;
use crate::net::http1::{Framing, Head};
use crate::net::io::{Arrival, MaybeTlsStream, TimestampedIo};
use crate::proxy::LocalExecutor;
use crate::proxy::added_headers::{AddedHeaders, Scheme};
use crate::proxy::error_response::ProxyError;
use crate::proxy::flow_control::{
    DOWNSTREAM_CONNECTION_WINDOW_BYTES, DOWNSTREAM_STREAM_WINDOW_BYTES, MAX_DOWNSTREAM_STREAMS, MAX_SEND_BUFFER_BYTES,
};
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::{UpstreamClient, UpstreamRequest};
use crate::proxy::worker_context::{ConnectionSlot, WorkerContext};

/// Serves a connection, of which `first` has already been received.
pub(super) async fn serve(io: MaybeTlsStream, first: Vec<u8>, seat: ConnectionSlot, upstream: Rc<UpstreamClient>) {
    let worker = Rc::clone(seat.worker());
    let (peer, scheme) = (io.peer(), Scheme::from_io(&io));
    let arrival = Rc::new(Cell::new(None));
    let io = BatchedIo::new(TimestampedIo::new(io, first, Rc::clone(&arrival)));
    let limits = worker.config().limits;
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        // Only the server sets the `date` header.
        .auto_date_header(false)
        .initial_stream_window_size(DOWNSTREAM_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(DOWNSTREAM_CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(u32::try_from(limits.streams).unwrap_or(u32::MAX).min(MAX_DOWNSTREAM_STREAMS));
    let in_flight = InFlightGuard::default();
    let service = service_fn({
        let in_flight = in_flight.clone();
        move |request| {
            let arrival = arrival.get().unwrap_or_else(Arrival::now);
            let (worker, upstream, in_flight) = (Rc::clone(&worker), Rc::clone(&upstream), in_flight.clone());
            // hyper and the runtime move a request's future several times, and it has several kilobytes.
            Box::pin(async move {
                let body = handle_request(request, (worker, upstream), arrival, peer, scheme).await;
                Ok::<_, Infallible>(body.map(|body| Http2ResponseBody::new(body, in_flight)))
            })
        }
    });
    let idle_at_most = limits.idle_timeout;
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io.clone()), service));
    let (mut closing, mut idle_since) = (false, None);
    let is_broken = std::future::poll_fn(|cx| {
        in_flight.0.set_waker(cx);
        if !closing && seat.worker().is_draining() {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        loop {
            let ended = connection.as_mut().poll(cx);
            let sent = io.poll_send(cx);
            in_flight.0.observe(cx);
            let ended = match (ended, sent) {
                (Poll::Ready(ended), _) => Poll::Ready(ended.map_err(io::Error::other)),
                (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (Poll::Pending, _) => Poll::Pending,
            };
            if let Poll::Ready(ended) = ended {
                if let Err(error) = &ended {
                    tracing::debug!(%error, "an HTTP/2 connection broke");
                }
                return Poll::Ready(ended.is_err());
            }
            // A request begins with its whole head: a client that stops in the middle of a head is idle as well.
            let now = Clock::Monotonic.now();
            idle_since = idle_since.or(Some(now)).filter(|_| in_flight.is_idle());
            let since = idle_since.unwrap_or(now);
            ready!(seat.poll_until(cx, since.after(if closing { LINGER_TIMEOUT } else { idle_at_most })));
            if closing {
                return Poll::Ready(false);
            }
            (closing, idle_since) = (true, None);
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
    in_flight.0.close();
    if !is_broken {
        io.linger().await;
    }
}

/// A connection's finished bodies, and by its clones the count of its open requests: each holds one until hyper has its
/// response's last byte.
#[derive(Clone, Default)]
struct InFlightGuard(Rc<FinishedBodies>);

impl InFlightGuard {
    /// True if no request is open: only the connection and its service hold a clone.
    fn is_idle(&self) -> bool {
        Rc::strong_count(&self.0) == 2
    }
}

/// Bodies whose last frame hyper has taken. hyper drops a body before the connection's task writes that frame. Bytes
/// are written before they are observed, so the task observes these bodies after the write.
#[derive(Default)]
struct FinishedBodies {
    bodies: RefCell<VecDeque<Box<RelayedBody>>>,
    waker: RefCell<Option<Waker>>,
}

impl FinishedBodies {
    fn set_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Once the connection's task has ended, `body` is observed here.
    fn push(&self, body: Box<RelayedBody>) {
        if let Some(waker) = &*self.waker.borrow() {
            self.bodies.borrow_mut().push_back(body);
            // Usually the frame has woken the task already. If the client reset the stream, nothing else would.
            waker.wake_by_ref();
        }
    }

    fn close(&self) {
        self.waker.take();
        self.bodies.take();
    }

    /// Observes and ends as many as the task's turn allows.
    fn observe(&self, cx: &mut Context<'_>) {
        let mut is_observed = || {
            let mut bodies = self.bodies.borrow_mut();
            bodies.front_mut().is_some_and(|body| body.poll_observe(cx).is_ready())
        };
        while is_observed() {
            let body = self.bodies.borrow_mut().pop_front();
            drop(body);
        }
    }
}

async fn handle_request(
    request: Request<Incoming>,
    (worker, upstream): (Rc<WorkerContext>, Rc<UpstreamClient>),
    arrival: Arrival,
    peer: Option<SocketAddr>,
    scheme: Scheme,
) -> Response<ResponseBodySource> {
    let (mut head, body) = to_head(request);
    let finished = head.finish_request();
    let mut observation = RequestObserver::begin(&worker, upstream.server(), &head, arrival);
    if let Err(error) = finished {
        return build_error_response(&error.into(), &head, observation);
    }
    if head.method() == "CONNECT" {
        return build_error_response(&ProxyError::connect_unsupported(), &head, observation);
    }
    let permit = match worker.admit(observation.is_probe()) {
        Ok(permit) => permit,
        Err(refusal) => {
            drain_body::drain_http2(body, &mut observation).await;
            return build_error_response(&refusal, &head, observation);
        }
    };
    let framing = match head.request_framing() {
        Ok(Framing::Length(0)) if !body.is_end_stream() => Framing::Chunked,
        Ok(framing) => framing,
        Err(error) => return build_error_response(&error.into(), &head, observation),
    };
    let added = AddedHeaders::new(&worker.config(), &head, || peer, scheme, observation.trace());
    let outgoing = UpstreamRequest::new(&head, framing, &added, observation.usage_injection().is_some());
    let exchange = match upstream.begin(&outgoing).await {
        Ok(exchange) => exchange,
        Err(broken) => {
            drain_body::drain_http2(body, &mut observation).await;
            return build_error_response(&ProxyError::from(&broken), &head, observation);
        }
    };
    observation.set_server(upstream.server());
    let mut call = Call::new(body, exchange);
    let mut response = Head::default();
    let arrived = loop {
        let polled = std::future::poll_fn(|cx| {
            if let ControlFlow::Break(stopped) = call.poll_upload(cx, &mut observation) {
                return Poll::Ready(Err(stopped));
            }
            // The response ends the request's observation.
            if call.exchange.has_unobserved() {
                return Poll::Pending;
            }
            call.exchange.poll_head(cx, &mut response).map_err(CallError::Upstream)
        });
        match polled.await {
            Ok(_) if matches!(response.status(), 100..=199) => {}
            Ok(arrival) => break arrival,
            Err(CallError::Upstream(broken)) => {
                if let Err(broken) = upstream.retry(&mut call.exchange, broken).await {
                    return build_error_response(&ProxyError::from(&broken), &head, observation);
                }
            }
            Err(CallError::ClientGone) => {
                observation.end(Ending::DownstreamGone);
                // Of a stream that is gone hyper sends nothing.
                return Response::new(ResponseBodySource::Text(None));
            }
        }
    };
    if let Some(asking) = observation.usage_injection() {
        asking.on_response_head(&response);
    }
    observation.on_response_head(arrived, &response);
    observation.on_response_head_written(arrived, Clock::Monotonic.now());
    let fields = to_http2(&response);
    let relayed = RelayedBody::new(call, observation, upstream, permit);
    let mut reply = Response::new(ResponseBodySource::Relayed(Some(Box::new(relayed))));
    *reply.status_mut() = StatusCode::from_u16(response.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    *reply.headers_mut() = fields;
    reply
}

fn build_error_response(
    refusal: &ProxyError,
    request: &Head,
    mut observation: RequestObserver,
) -> Response<ResponseBodySource> {
    let answer = refusal.to_response(request, observation.dialect());
    // A response that ends with its head must have no body at all: to a gRPC client such a head is the trailers.
    let body = Some(answer.body).filter(|body| !body.is_empty()).map(Bytes::from);
    let mut reply = Response::new(ResponseBodySource::Text(body));
    *reply.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in answer.fields {
        if let Ok(value) = HeaderValue::try_from(value) {
            reply.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    observation.on_error_response(refusal);
    observation.end(refusal.ending());
    reply
}

/// The request as a head of ours. The authority becomes `Host`, and is a second one beside another that differs; cookies,
/// which HTTP/2 may split, become one again.
fn to_head(request: Request<Incoming>) -> (Head, Incoming) {
    let (parts, body) = request.into_parts();
    let mut head = Head::default();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    head.compose_request(parts.method.as_str(), target);
    if let Some(authority) = parts.uri.authority().map(|authority| authority.as_str().as_bytes())
        && parts.headers.get(http::header::HOST).is_none_or(|host| !host.as_bytes().eq_ignore_ascii_case(authority))
    {
        head.push(b"host", authority);
    }
    let cookies: Vec<&[u8]> = parts.headers.get_all(http::header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    for (name, value) in &parts.headers {
        if name != http::header::COOKIE {
            head.push(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    if !cookies.is_empty() {
        head.push(b"cookie", &cookies.join(&b"; "[..]));
    }
    (head, body)
}

fn to_http2(response: &Head) -> http::HeaderMap {
    let pairs = response.end_to_end().map(|(name, value, _)| (name, value));
    crate::proxy::upstream::field_map(pairs)
}

//! The server for HTTP/2 clients: hyper's, in front of the same exchange.
//!
//! Interim responses do not reach HTTP/2 clients; hyper has no way to send them.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::clock::Clock;
use crate::measure::dialect;
use crate::measure::record::Ending;
use crate::measure::time::Gap;
use crate::net::http1::{Framing, Head};
use crate::net::io::{Arrival, Io, Stamped};
use crate::proxy::LocalExecutor;
use crate::proxy::forward::{Additions, Scheme};
use crate::proxy::observation::Observation;
use crate::proxy::refusal::{ERROR_FIELD, Refusal};
use crate::proxy::shared::Permit;
use crate::proxy::upstream::{BodyStep, Broken, Exchange, HIGH_WATER, Outgoing};
use crate::proxy::worker::{Seat, Worker};

/// How often a request that no server has taken is offered again.
const OFFERS: usize = 3;

/// Serves a connection, of which `first` has already been received.
pub(super) async fn serve(io: Io, first: Vec<u8>, seat: Seat) {
    let worker = Rc::clone(seat.worker());
    let (peer, scheme) = (io.peer(), Scheme::of(&io));
    let arrival = Rc::new(Cell::new(None));
    let io = TokioIo::new(Stamped::new(io, first, Rc::clone(&arrival)));
    let limits = worker.config().limits;
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .adaptive_window(true)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(u32::try_from(limits.streams).unwrap_or(u32::MAX));
    let service = service_fn(move |request| {
        let arrival = arrival.get().unwrap_or_else(Arrival::now);
        let worker = Rc::clone(&worker);
        async move { Ok::<_, Infallible>(answer(request, worker, arrival, peer, scheme).await) }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut draining = false;
    std::future::poll_fn(|cx| {
        if !draining && seat.worker().is_draining() {
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
        seat.watch_drain(cx.waker());
        connection.as_mut().poll(cx).map(|ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP/2 connection broke");
            }
        })
    })
    .await;
}

async fn answer(
    request: Request<Incoming>,
    worker: Rc<Worker>,
    arrival: Arrival,
    peer: Option<SocketAddr>,
    scheme: Scheme,
) -> Response<Reply> {
    let (head, body) = composed(request);
    let mut observation = Observation::begin(&worker, &head, arrival);
    let limit = worker.config().limits.streams;
    let Some(permit) = worker.shared().admit(limit) else {
        return refused(&head, &Refusal::busy(limit), observation, Ending::Complete);
    };
    let framing = match head.request_framing() {
        Ok(Framing::Length(0)) if !body.is_end_stream() => Framing::Chunked,
        Ok(framing) => framing,
        Err(error) => return refused(&head, &error.into(), observation, Ending::Complete),
    };
    let added = Additions::new(&worker.config(), &head, || peer, scheme, observation.trace());
    let outgoing = Outgoing::new(&head, framing, &added, observation.asking().is_some());
    let exchange = match worker.upstream().begin(&outgoing).await {
        Ok(exchange) => exchange,
        Err(broken) => {
            return refused(&head, &Refusal::from(&broken), observation, Ending::UpstreamFailed);
        }
    };
    let mut call = Call { request: Some(body), complete: false, exchange };
    let mut response = Head::default();
    let mut offers = 1;
    let arrived = loop {
        let polled = std::future::poll_fn(|cx| {
            if let ControlFlow::Break(broken) = call.poll_upload(cx, &mut observation) {
                return Poll::Ready(Err(broken));
            }
            call.exchange.poll_head(cx, &mut response)
        });
        match polled.await {
            Ok(_) if matches!(response.status(), 100..=199) => {}
            Ok(arrival) => break arrival,
            Err(Broken::NotTaken) if offers < OFFERS => {
                offers += 1;
                if let Err(broken) = worker.upstream().again(&mut call.exchange).await {
                    return refused(&head, &Refusal::from(&broken), observation, Ending::UpstreamFailed);
                }
            }
            Err(broken) => return refused(&head, &Refusal::from(&broken), observation, Ending::UpstreamFailed),
        }
    };
    if let Some(asking) = observation.asking() {
        asking.reply_begins(&response);
    }
    observation.head(arrived, &response);
    observation.head_handed_on(arrived, Clock::Monotonic.now());
    let head = to_http2(&response);
    let relayed = Relayed {
        call: Some(call),
        observation: Some(observation),
        handed_on: None,
        read: false,
        ended: false,
        worker,
        _permit: permit,
    };
    let mut reply = Response::new(Reply::Relayed(Box::new(relayed)));
    *reply.status_mut() = StatusCode::from_u16(response.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    *reply.headers_mut() = head;
    reply
}

fn refused(request: &Head, refusal: &Refusal, mut observation: Observation, ending: Ending) -> Response<Reply> {
    let text = refusal.body(dialect::for_path(request.path()));
    let mut reply = Response::new(Reply::Text(Some(Bytes::from(text))));
    *reply.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = reply.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(value) = HeaderValue::from_str(&refusal.field()) {
        headers.insert(HeaderName::from_static(ERROR_FIELD), value);
    }
    observation.refused(refusal.status);
    observation.end(ending);
    reply
}

/// The request as a head of ours. The authority becomes `Host`; cookies, which HTTP/2 may split, become one again.
fn composed(request: Request<Incoming>) -> (Head, Incoming) {
    let (parts, body) = request.into_parts();
    let mut head = Head::default();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    head.compose_request(parts.method.as_str(), target);
    if let Some(authority) = parts.uri.authority()
        && !parts.headers.contains_key(http::header::HOST)
    {
        head.push(b"host", authority.as_str().as_bytes());
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
    head.finish();
    (head, body)
}

fn to_http2(response: &Head) -> http::HeaderMap {
    let pairs = response.end_to_end().map(|(name, value, _)| (name, value));
    crate::proxy::upstream::field_map(pairs)
}

/// One exchange on behalf of an HTTP/2 stream.
struct Call {
    request: Option<Incoming>,
    complete: bool,
    exchange: Exchange,
}

impl Call {
    /// Moves the request body upstream.
    fn poll_upload(&mut self, cx: &mut Context<'_>, observation: &mut Observation) -> ControlFlow<Broken> {
        while !self.complete {
            let full = self.exchange.backlog() >= HIGH_WATER;
            let mut read = false;
            if let Some(body) = self.request.as_mut().filter(|_| !full) {
                match Pin::new(body).poll_frame(cx) {
                    Poll::Pending => {}
                    Poll::Ready(frame) => {
                        read = true;
                        match frame {
                            Some(Ok(frame)) => self.take(frame, observation),
                            // The client gave up on its request: so do we, by dropping what belongs to it.
                            Some(Err(_)) => return ControlFlow::Break(Broken::Closed),
                            None => {
                                self.exchange.complete(None);
                                self.request = None;
                            }
                        }
                    }
                }
            }
            match self.exchange.poll_flush(cx, |payload| observation.request(payload)) {
                Poll::Ready(Err(broken)) => return ControlFlow::Break(broken),
                Poll::Ready(Ok(())) if self.exchange.is_deaf() => (self.request, self.complete) = (None, true),
                Poll::Ready(Ok(())) if self.request.is_none() => {
                    observation.sent();
                    self.complete = true;
                }
                Poll::Ready(Ok(())) if full => {}
                _ if read => {}
                // Nothing more can be written, or nothing more read.
                _ => break,
            }
        }
        ControlFlow::Continue(())
    }

    fn take(&mut self, frame: Frame<Bytes>, observation: &mut Observation) {
        match frame.into_data() {
            Ok(data) => observation.send(&data, &mut self.exchange),
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    let mut head = Head::default();
                    for (name, value) in &trailers {
                        head.push(name.as_str().as_bytes(), value.as_bytes());
                    }
                    self.exchange.complete(Some(&head));
                    self.request = None;
                }
            }
        }
    }
}

/// The body of an answer.
enum Reply {
    Relayed(Box<Relayed>),
    Text(Option<Bytes>),
}

/// A response body on its way to an HTTP/2 client.
///
/// hyper asks for the next frame at once after taking one, before the connection has written it. The second time it is
/// asked, a body with something unobserved therefore steps back behind the connection's task, and observes after.
struct Relayed {
    call: Option<Call>,
    observation: Option<Observation>,
    handed_on: Option<HandedOn>,
    /// The reply has been read to its end.
    read: bool,
    /// The last frame has been given out.
    ended: bool,
    worker: Rc<Worker>,
    _permit: Permit,
}

struct HandedOn {
    arrival: Arrival,
    payload: Bytes,
    stepped_back: bool,
}

impl Relayed {
    fn observe(&mut self) {
        if let (Some(HandedOn { arrival, payload, .. }), Some(observation)) =
            (self.handed_on.take(), &mut self.observation)
        {
            observation.body(arrival, &payload, Clock::Monotonic.now(), Gap::ZERO);
        }
    }

    fn finish(&mut self, ending: Ending) {
        self.observe();
        if let Some(observation) = self.observation.take() {
            observation.end(ending);
        }
        if let Some(call) = self.call.take()
            && ending == Ending::Complete
        {
            self.worker.upstream().done(call.exchange);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(handed_on) = &mut self.handed_on {
            if !std::mem::replace(&mut handed_on.stepped_back, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.observe();
        }
        let (Some(call), Some(observation)) = (&mut self.call, &mut self.observation) else {
            return Poll::Ready(None);
        };
        // A request that breaks now shows in the response as well.
        let _broken = call.poll_upload(cx, observation).is_break();
        let mut payload = Vec::new();
        let step = match self.read {
            true => Ok(BodyStep::End),
            false => std::task::ready!(call.exchange.poll_body(cx, &mut payload)),
        };
        self.read = matches!(step, Ok(BodyStep::End));
        if let Some(asking) = observation.asking() {
            asking.reply(&mut payload, 0, self.read);
        }
        match step {
            // The beginning of an event, which was held back.
            Ok(BodyStep::End) if !payload.is_empty() => Poll::Ready(Some(Ok(Frame::data(payload.into())))),
            Ok(BodyStep::Data(arrival)) => {
                let payload = Bytes::from(payload);
                self.handed_on = Some(HandedOn { arrival, payload: payload.clone(), stepped_back: false });
                self.ended = call.exchange.has_ended() && call.exchange.trailers().is_none();
                Poll::Ready(Some(Ok(Frame::data(payload))))
            }
            Ok(BodyStep::End) => {
                let trailers = call.exchange.trailers().filter(|_| !self.ended).map(to_http2);
                self.ended = true;
                self.finish(Ending::Complete);
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(broken) => {
                self.finish(Ending::UpstreamFailed);
                Poll::Ready(Some(Err(broken)))
            }
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        // What has not ended ends with the observation, which knows why.
        if self.ended { self.finish(Ending::Complete) } else { self.observe() }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.get_mut() {
            Self::Relayed(relayed) => relayed.poll_frame(cx),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Relayed(relayed) => relayed.ended,
            Self::Text(text) => text.is_none(),
        }
    }
}

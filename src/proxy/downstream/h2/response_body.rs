//! Response bodies for HTTP/2 clients.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::call::Call;
use super::{InFlightGuard, to_http2};
use crate::clock::Clock;
use crate::measure::record::Ending;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::Arrival;
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::{BodyStep, UpstreamClient, UpstreamError};
use crate::proxy::worker_context::StreamPermit;

/// hyper polls for the next frame at once, unless the client's window is full. A longer delay counts as time in which
/// the client did not read.
const MAX_TURN_WAIT: Gap = Gap::from_millis(1);

/// Bytes of a body that may be with hyper unobserved before the body observes them and asks the server for more.
const MAX_UNOBSERVED_BYTES: usize = 64 * 1024;

/// A response body, with what it shares with its connection.
pub(super) struct Http2ResponseBody {
    body: ResponseBodySource,
    in_flight: InFlightGuard,
}

impl Http2ResponseBody {
    pub(super) fn new(body: ResponseBodySource, in_flight: InFlightGuard) -> Self {
        Self { body, in_flight }
    }
}

impl Drop for Http2ResponseBody {
    fn drop(&mut self) {
        if let ResponseBodySource::Relayed(relayed) = &mut self.body
            && let Some(relayed) = relayed.take_if(|relayed| relayed.ended && !relayed.unobserved.is_empty())
        {
            self.in_flight.0.push(relayed);
        }
    }
}

/// Where a response body comes from. `None` only while it is dropped.
pub(super) enum ResponseBodySource {
    Relayed(Option<Box<RelayedBody>>),
    Text(Option<Bytes>),
}

/// A response body on its way to an HTTP/2 client.
///
/// hyper polls for the next frame as soon as it has sent one, before the connection's task has written it. The body
/// then hands on what else has already arrived. When nothing has, it wakes itself behind the connection's task once,
/// and observes all of these frames then.
pub(super) struct RelayedBody {
    call: Option<Call>,
    observation: Option<RequestObserver>,
    /// Frames that hyper has taken since the last observation.
    unobserved: Vec<UnobservedFrame>,
    unobserved_bytes: usize,
    /// The body has woken itself to observe.
    yielded: bool,
    /// How the upstream's body ended, found before the frames ahead of it were observed.
    held_end: Option<Result<BodyStep, UpstreamError>>,
    /// The reply has been read to its end.
    read: bool,
    /// hyper has the last frame.
    ended: bool,
    upstream: Rc<UpstreamClient>,
    _permit: StreamPermit,
}

struct UnobservedFrame {
    arrival: Arrival,
    payload: Bytes,
    delivered_at: Stamp,
    /// Time until hyper polled for the next frame.
    repoll_delay: Option<Gap>,
}

impl UnobservedFrame {
    /// How long the client did not read.
    fn blocked(&self) -> Gap {
        self.repoll_delay.filter(|delay| *delay > MAX_TURN_WAIT).unwrap_or(Gap::ZERO)
    }
}

thread_local! {
    /// Where a piece is decoded before its frame gets a buffer of exactly its size.
    static PIECE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl RelayedBody {
    /// The body of `call`'s answer, whose head has been handed on.
    pub(super) fn new(
        call: Call,
        observation: RequestObserver,
        upstream: Rc<UpstreamClient>,
        permit: StreamPermit,
    ) -> Self {
        // A response that ends with its head must end so here too. To a gRPC client such a head is the trailers, and an
        // empty piece behind it an error.
        let ended = call.exchange.is_over();
        let (call, observation) = (Some(call), Some(observation));
        Self {
            call,
            observation,
            unobserved: Vec::new(),
            unobserved_bytes: 0,
            yielded: false,
            held_end: None,
            read: false,
            ended,
            upstream,
            _permit: permit,
        }
    }

    /// Observes the frames that hyper has taken, as many as the task's turn allows.
    pub(super) fn poll_observe(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(observation) = &mut self.observation else { return Poll::Ready(()) };
        let pending = self.unobserved.iter().position(|frame| {
            let (piece, blocked) = ((frame.arrival, &*frame.payload), frame.blocked());
            observation.poll_response_body(cx, piece, Clock::Monotonic.now(), blocked).is_pending()
        });
        self.unobserved.drain(..pending.unwrap_or(self.unobserved.len()));
        if pending.is_some() {
            return Poll::Pending;
        }
        (self.yielded, self.unobserved_bytes) = (false, 0);
        Poll::Ready(())
    }

    /// Observes all of these frames before the body ends.
    fn observe(&mut self) {
        if let Some(observation) = &mut self.observation {
            for frame in self.unobserved.drain(..) {
                observation.on_response_body((frame.arrival, &frame.payload), Clock::Monotonic.now(), frame.blocked());
            }
        }
    }

    fn finish(&mut self, ending: Ending) {
        self.observe();
        let now = Clock::Monotonic.now();
        if let Some(observation) = self.observation.take() {
            observation.end_at(now, ending);
        }
        if let Some(call) = self.call.take()
            && ending == Ending::Complete
        {
            self.upstream.finish(call.exchange, now);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if let Some(last) = self.unobserved.last_mut() {
            last.repoll_delay.get_or_insert_with(|| Clock::Monotonic.now().since(last.delivered_at));
        }
        if self.yielded {
            ready!(self.poll_observe(cx));
        }
        let (Some(call), Some(observation)) = (&mut self.call, &mut self.observation) else {
            return Poll::Ready(None);
        };
        // An edited reply keeps only its last piece as the server sent it, for the observer.
        let may_join = observation.usage_injection().is_none() && self.unobserved_bytes < MAX_UNOBSERVED_BYTES;
        if !self.unobserved.is_empty() && !may_join {
            return self.yield_to_connection(cx);
        }
        // A request that breaks now shows in the response as well.
        let _broken = call.poll_upload(cx, observation).is_break();
        let mut payload = PIECE.take();
        payload.clear();
        let step = match self.held_end.take() {
            Some(step) => Poll::Ready(step),
            None if self.read => Poll::Ready(Ok(BodyStep::End)),
            None => call.exchange.poll_body(cx, &mut payload),
        };
        let step = match step {
            Poll::Ready(Ok(BodyStep::Data(arrival))) => Ok(BodyStep::Data(arrival)),
            // The frames before it are written and observed first.
            step if !self.unobserved.is_empty() => {
                if let Poll::Ready(end) = step {
                    self.held_end = Some(end);
                }
                PIECE.set(payload);
                return self.yield_to_connection(cx);
            }
            Poll::Ready(step) => step,
            Poll::Pending => {
                PIECE.set(payload);
                return Poll::Pending;
            }
        };
        // After its last piece the body is not polled again, so the injection writes the rest of the text now.
        self.read = matches!(step, Ok(BodyStep::End)) || call.exchange.has_ended();
        if let Some(asking) = observation.usage_injection() {
            asking.edit_response(&mut payload, 0, self.read);
        }
        let frame = Bytes::copy_from_slice(&payload);
        PIECE.set(payload);
        match step {
            // The beginning of an event, which was held back.
            Ok(BodyStep::End) if !frame.is_empty() => Poll::Ready(Some(Ok(Frame::data(frame)))),
            Ok(BodyStep::Data(arrival)) => {
                let delivered_at = Clock::Monotonic.now();
                self.unobserved_bytes += frame.len();
                self.unobserved.push(UnobservedFrame {
                    arrival,
                    payload: frame.clone(),
                    delivered_at,
                    repoll_delay: None,
                });
                self.ended = call.exchange.is_over();
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
            Ok(BodyStep::End) => {
                call.exchange.trailers().into_iter().for_each(|trailers| observation.on_response_trailers(trailers));
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

    /// Lets the connection's task write the unobserved frames; the next poll observes them.
    fn yield_to_connection<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        // A body that has not ended ends with its observer, which knows the reason.
        if self.ended { self.finish(Ending::Complete) } else { self.observe() }
    }
}

impl Body for Http2ResponseBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match &mut self.get_mut().body {
            ResponseBodySource::Relayed(Some(relayed)) => relayed.poll_frame(cx),
            ResponseBodySource::Relayed(None) => Poll::Ready(None),
            ResponseBodySource::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ResponseBodySource::Relayed(relayed) => relayed.as_ref().is_none_or(|relayed| relayed.ended),
            ResponseBodySource::Text(text) => text.is_none(),
        }
    }
}

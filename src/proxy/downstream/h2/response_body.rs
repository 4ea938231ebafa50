//! Bodies of answers to HTTP/2 clients.

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
use crate::proxy::upstream::{BodyStep, UpstreamError};
use crate::proxy::worker::{StreamPermit, WorkerContext};

/// hyper asks for the next frame at once, unless the client's window is full. What takes longer than this is not the
/// wait for a turn.
const MAX_TURN_WAIT: Gap = Gap::from_millis(1);

/// The body of an answer, on a connection.
pub(super) struct Http2ResponseBody {
    body: ResponseBodySource,
    _in_flight: InFlightGuard,
}

impl Http2ResponseBody {
    pub(super) fn new(body: ResponseBodySource, in_hand: InFlightGuard) -> Self {
        Self { body, _in_flight: in_hand }
    }
}

/// The body of an answer.
pub(super) enum ResponseBodySource {
    Relayed(Box<RelayedBody>),
    Text(Option<Bytes>),
}

/// A response body on its way to an HTTP/2 client.
///
/// hyper asks for the next frame at once after taking one, before the connection has written it. The second time it is
/// asked, a body with something unobserved therefore steps back behind the connection's task, and observes after.
pub(super) struct RelayedBody {
    call: Option<Call>,
    observation: Option<RequestObserver>,
    unobserved: Option<UnobservedFrame>,
    /// The reply has been read to its end.
    read: bool,
    /// The last frame has been given out.
    ended: bool,
    worker: Rc<WorkerContext>,
    _permit: StreamPermit,
}

struct UnobservedFrame {
    arrival: Arrival,
    payload: Bytes,
    delivered_at: Stamp,
    /// How long it was until hyper asked for the next.
    repoll_delay: Option<Gap>,
}

impl RelayedBody {
    /// The body of `call`'s answer, whose head has been handed on.
    pub(super) fn new(
        call: Call,
        observation: RequestObserver,
        worker: Rc<WorkerContext>,
        permit: StreamPermit,
    ) -> Self {
        // What ends with its head must end so here: to a gRPC client such a head is the trailers, and an empty piece
        // behind it an error.
        let ended = call.exchange.is_over();
        let (call, observation) = (Some(call), Some(observation));
        Self { call, observation, unobserved: None, read: false, ended, worker, _permit: permit }
    }

    fn observe(&mut self) {
        if let (Some(UnobservedFrame { arrival, payload, repoll_delay: waited, .. }), Some(observation)) =
            (self.unobserved.take(), &mut self.observation)
        {
            let blocked = waited.filter(|waited| *waited > MAX_TURN_WAIT).unwrap_or(Gap::ZERO);
            observation.on_response_body(arrival, &payload, Clock::Monotonic.now(), blocked);
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
            self.worker.upstream().finish(call.exchange, now);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if let Some(handed_on) = &mut self.unobserved {
            if handed_on.repoll_delay.is_none() {
                handed_on.repoll_delay = Some(Clock::Monotonic.now().since(handed_on.delivered_at));
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
            false => ready!(call.exchange.poll_body(cx, &mut payload)),
        };
        // What ends with its last piece is not asked for another, in which the rest of it could follow.
        self.read = matches!(step, Ok(BodyStep::End)) || call.exchange.has_ended();
        if let Some(asking) = observation.usage_injection() {
            asking.edit_response(&mut payload, 0, self.read);
        }
        match step {
            // The beginning of an event, which was held back.
            Ok(BodyStep::End) if !payload.is_empty() => Poll::Ready(Some(Ok(Frame::data(payload.into())))),
            Ok(BodyStep::Data(arrival)) => {
                let payload = Bytes::from(payload);
                let (copy, given) = (payload.clone(), Clock::Monotonic.now());
                self.unobserved =
                    Some(UnobservedFrame { arrival, payload: copy, delivered_at: given, repoll_delay: None });
                self.ended = call.exchange.is_over();
                Poll::Ready(Some(Ok(Frame::data(payload))))
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
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        // What has not ended ends with the observation, which knows why.
        if self.ended { self.finish(Ending::Complete) } else { self.observe() }
    }
}

impl Body for Http2ResponseBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match &mut self.get_mut().body {
            ResponseBodySource::Relayed(relayed) => relayed.poll_frame(cx),
            ResponseBodySource::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            ResponseBodySource::Relayed(relayed) => relayed.ended,
            ResponseBodySource::Text(text) => text.is_none(),
        }
    }
}

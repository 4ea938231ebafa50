//! One request under observation: the state machine, the gauges it moves, and its one ending.
//!
//! # When does it end?
//! When the response's last byte has been handed on, when the upstream breaks, or when this is dropped, which is what
//! happens when the client leaves: the connection's task or the HTTP/2 stream goes away, and everything it owns with it.
//! When the process stops before a stream's end, that is what drops it. Whatever comes first fires, once.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use tokio::task::coop;

use super::error_response::ProxyError;
use super::upstream::UpstreamExchange;
use super::usage_injection::UsageInjection;
use super::worker::WorkerContext;
use crate::clock::Clock;
use crate::export::capture_hook::CaptureHandle;
use crate::export::queue::FinishedRequest;
use crate::export::thread_gauges::ActiveRequest;
use crate::export::trace_context::RequestTrace;
use crate::measure::dialect::Dialect;
use crate::measure::observer::{ResponseHead, StreamObserver};
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::{Head, KnownHeader};
use crate::net::io::Arrival;

/// Where gRPC says how a call ended: among the trailers, or in the head of an answer that has nothing else.
const GRPC_STATUS: &str = "grpc-status";

/// Work of observing that counts as one operation of its task, in units of nanoseconds: tokio lets a task do 128 before
/// the others have their turn, so that one that had much to understand gives way as one that moved many bytes does.
const WORK_NANOS_PER_OPERATION: u64 = 4_000;

/// See the module.
pub(super) struct RequestObserver {
    observer: Option<Box<StreamObserver>>,
    /// Work of the observer that its task has given way for.
    charged_work: u64,
    worker: Rc<WorkerContext>,
    trace: Option<RequestTrace>,
    active: ActiveRequest,
    usage_injection: Option<Box<UsageInjection>>,
    capture_handle: Option<CaptureHandle>,
    /// The last read of the request.
    last_read: Stamp,
}

impl RequestObserver {
    /// A request whose head arrived with `arrival`.
    pub(super) fn begin(worker: &Rc<WorkerContext>, head: &Head, arrival: Arrival) -> Self {
        let config = worker.config();
        let mut shape = RequestShape::of(head.method(), head.path(), &config.routes);
        shape.server = Some(worker.upstream().server());
        let is_traced = shape.probe.is_none() || config.trace_probes;
        let asking = UsageInjection::begin(&config, shape.dialect, head);
        let may_speak = shape.dialect.is_some() || shape.shared.is_some();
        let capture = worker.shared().capture.as_ref().filter(|_| may_speak);
        let following = capture.map(|capture| {
            let open = worker.shared().open_streams.load(Ordering::Relaxed);
            capture.begin_request(|name| head.value(name), open)
        });
        let observer = StreamObserver::begin(shape, head.body_coding(), None, arrival.at)
            .with_slos(config.slos.clone(), config.stall);
        let trace = worker.shared().sampler.as_ref().filter(|_| is_traced).map(|sampler| {
            RequestTrace::begin(sampler, head.get(KnownHeader::Traceparent), head.get(KnownHeader::Tracestate))
        });
        Self {
            observer: Some(observer),
            charged_work: 0,
            worker: Rc::clone(worker),
            trace,
            active: worker.levels().request(head.method()),
            usage_injection: asking,
            capture_handle: following,
            last_read: arrival.at,
        }
    }

    /// The request's dialect, as far as it is known.
    pub(super) fn dialect(&self) -> Option<&'static Dialect> {
        self.observer.as_ref()?.shape().dialect
    }

    /// The trace context under which the upstream is called.
    pub(super) fn trace(&self) -> Option<&RequestTrace> {
        self.trace.as_ref()
    }

    /// What asks for usage in the client's stead, if that is wanted.
    pub(super) fn usage_injection(&mut self) -> Option<&mut UsageInjection> {
        self.usage_injection.as_deref_mut()
    }

    /// A read of the request arrived.
    pub(super) fn on_request_read(&mut self, arrival: Arrival) {
        self.last_read = arrival.at;
    }

    /// Puts a piece of the request body into the exchange, edited if that is wanted.
    pub(super) fn forward_request_body(&mut self, payload: &[u8], exchange: &mut UpstreamExchange) {
        match &mut self.usage_injection {
            None => exchange.send(payload),
            Some(asking) => asking.edit_request(payload, |bytes| exchange.send(bytes)),
        }
    }

    /// A piece of the request body was written upstream.
    pub(super) fn on_request_body(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request(payload);
        }
        self.charge_coop_budget();
        if let (Some(following), Some(capture)) = (&mut self.capture_handle, &self.worker.shared().capture) {
            capture.push_body(following, payload);
        }
    }

    /// A piece of a request body that nobody is to have: it only tells what was asked.
    pub(super) fn on_drained_body(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request_chunk(payload);
        }
        self.charge_coop_budget();
    }

    /// Counts what observing has cost as operations of the task.
    fn charge_coop_budget(&mut self) {
        let work = self.observer.as_ref().map_or(0, |observer| observer.work());
        let operations = work.saturating_sub(self.charged_work) / WORK_NANOS_PER_OPERATION;
        if operations > 0 {
            self.charged_work += operations * WORK_NANOS_PER_OPERATION;
            consume_coop_budget(operations);
        }
    }

    /// The whole request was written upstream.
    pub(super) fn on_request_sent(&mut self) {
        let now = Clock::Monotonic.now();
        if let Some(observer) = &mut self.observer {
            observer.sent(now, Some(now.since(self.last_read)));
            let shape = observer.shape();
            self.active.set_model(shape.model.as_deref());
            if shape.stream == Some(true) {
                self.active.set_stream_phase(false);
            }
            if let (Some(following), Some(capture)) = (&mut self.capture_handle, &self.worker.shared().capture) {
                capture.finish_body(following, shape.dialect);
            }
        }
    }

    /// The response head arrived.
    pub(super) fn on_response_head(&mut self, arrival: Arrival, head: &Head) {
        if head.is_simulated() {
            self.worker.shared().gauges.set_simulated();
        }
        if let Some(observer) = &mut self.observer {
            let response = ResponseHead {
                status: head.status(),
                content_type: head.get(KnownHeader::ContentType).unwrap_or_default(),
                content_encoding: head.body_coding(),
            };
            observer.head(arrival.at, response, arrival.source);
            if let Some(status) = head.value(GRPC_STATUS) {
                observer.call_ended(status);
            }
            if observer.is_stream() {
                self.active.set_stream_phase(false);
            }
            let tokenizing = self.worker.shared().tokenizing.as_ref();
            if let Some(budget) = tokenizing.and_then(|counts| counts.budget(observer.shape().model.as_deref())) {
                observer.collect_text(budget);
            }
        }
    }

    /// The response's trailers arrived.
    pub(super) fn on_response_trailers(&mut self, trailers: &Head) {
        if let (Some(observer), Some(status)) = (&mut self.observer, trailers.value(GRPC_STATUS)) {
            observer.call_ended(status);
        }
    }

    /// The response head was written to the client at `now`.
    pub(super) fn on_response_head_written(&mut self, arrival: Arrival, now: Stamp) {
        if let Some(observer) = &mut self.observer {
            observer.head_forwarded(now.since(arrival.at));
        }
    }

    /// A piece of the response body, which arrived with `arrival`, was written to the client at `now`; `blocked` is how
    /// long the client would not take it.
    pub(super) fn on_response_body(&mut self, arrival: Arrival, payload: &[u8], now: Stamp, blocked: Gap) {
        let Some(observer) = &mut self.observer else { return };
        let raw = self.usage_injection.as_ref().and_then(|asking| asking.original());
        observer.bytes(arrival.at, raw.unwrap_or(payload));
        if blocked == Gap::ZERO {
            observer.forwarded(now.since(arrival.at));
        } else {
            observer.write_blocked(blocked);
        }
        if observer.has_token() {
            self.active.set_stream_phase(true);
        }
        let progress = observer.progress(now);
        self.charge_coop_budget();
        if let Some(progress) = progress {
            if let Some(following) = &mut self.capture_handle {
                following.push_gaps(&progress.gaps);
            }
            self.worker.reporter().progress(progress);
        }
    }

    /// The proxy answered in the upstream's stead.
    pub(super) fn on_error_response(&mut self, refusal: &ProxyError) {
        if let Some(observer) = &mut self.observer {
            observer.refused(refusal.status, refusal.origin.failure_origin());
        }
    }

    /// The end, now.
    pub(super) fn end(self, ending: Ending) {
        self.end_at(Clock::Monotonic.now(), ending);
    }

    /// The end, which was at `at`.
    pub(super) fn end_at(mut self, at: Stamp, ending: Ending) {
        self.finish(at, ending);
    }

    fn finish(&mut self, at: Stamp, ending: Ending) {
        let Some(observer) = self.observer.take() else { return };
        let (record, text) = observer.end_with_text(at, ending);
        let finished = FinishedRequest { record, trace: self.trace.take(), capture_handle: self.capture_handle.take() };
        match (text, &self.worker.shared().tokenizing) {
            (Some(text), Some(tokenizing)) => tokenizing.finished(finished, text),
            _ => self.worker.reporter().finished(finished),
        }
    }
}

/// Counts operations of the task at hand, until it is its neighbours' turn: its next read or write then waits for that.
fn consume_coop_budget(operations: u64) {
    // Whoever reads or writes next is woken by that.
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..operations {
        match coop::poll_proceed(&mut cx) {
            Poll::Ready(operation) => operation.made_progress(),
            Poll::Pending => break,
        }
    }
}

impl Drop for RequestObserver {
    fn drop(&mut self) {
        // Most have ended before.
        if self.observer.is_some() {
            let ending = if self.worker.is_stopped() { Ending::TimedOut } else { Ending::DownstreamGone };
            self.finish(Clock::Monotonic.now(), ending);
        }
    }
}

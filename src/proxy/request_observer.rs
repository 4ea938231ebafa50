//! One observed request: its state machine, its gauges, and its single ending.
//!
//! # When a request ends
//! It ends when the response's last byte has been forwarded, when the upstream fails, or when this is dropped. A
//! disconnected client, or the process's stop, drops the task or HTTP/2 stream with everything it owns. The first of
//! these is reported, once.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::error_response::ProxyError;
use super::upstream::UpstreamExchange;
use super::usage_injection::UsageInjection;
use super::worker_context::WorkerContext;
use crate::capture::message::CaptureHandle;
use crate::clock::Clock;
use crate::export::control::queue::FinishedRequest;
use crate::export::registry::thread_gauges::ActiveRequest;
use crate::export::trace_context::RequestTrace;
use crate::measure::dialect::Dialect;
use crate::measure::observer::StreamObserver;
use crate::measure::record::Ending;
use crate::measure::reply_body::ResponseHead;
use crate::measure::shape::RequestShape;
use crate::measure::slo::RequestSlo;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::{Head, KnownHeader};
use crate::net::io::Arrival;

/// Holds a gRPC call's status: in the trailers, or in the head of a response without a body.
const GRPC_STATUS: &str = "grpc-status";

/// Observer work that counts as one cooperative operation of its task, in nanoseconds. Tokio lets a task do 128
/// operations before it yields, so a client waits at most this often for each task with much to do.
const WORK_NANOS_PER_OPERATION: u64 = 1_000;
/// Forwarded bytes that count as one operation.
const BYTES_PER_OPERATION: u64 = 1_024;

/// The observation of one request; ends the request when dropped.
pub(super) struct RequestObserver {
    observer: Option<Box<StreamObserver>>,
    /// Observer work already charged to the task's budget.
    charged_work: u64,
    /// Bytes of the current piece of the request that are counted, and of those the observed ones.
    request_piece: (usize, usize),
    /// Observed bytes of the current piece of the response; `None` between two pieces.
    response_piece: Option<usize>,
    /// When the response's last byte was written, while its observation may go on.
    written: Option<Stamp>,
    worker: Rc<WorkerContext>,
    trace: Option<RequestTrace>,
    active: ActiveRequest,
    usage_injection: Option<Box<UsageInjection>>,
    capture_handle: Option<CaptureHandle>,
    /// Time of the last read of the request.
    last_read: Stamp,
}

impl RequestObserver {
    /// Starts the observation of a request whose head arrived with `arrival`, to a server if it is known.
    pub(super) fn begin(
        worker: &Rc<WorkerContext>,
        server: Option<(Arc<str>, u16)>,
        head: &Head,
        arrival: Arrival,
    ) -> Self {
        let config = worker.config();
        let mut shape = RequestShape::of(head.method(), head.path(), &config.routes);
        shape.server = server;
        let classes = &config.classes;
        if !classes.is_empty() {
            let digest = |key: &[u8]| worker.shared().class_key.digest(b"class", key);
            shape.classes = classes.of_head(|name| head.value(name), digest);
        }
        if config.slos.read_headers() {
            shape.slo = RequestSlo::of_head(|name| head.value(name));
        }
        let is_traced = shape.probe.is_none() || config.trace_probes;
        let asking = UsageInjection::begin(&config, shape.dialect, head);
        let may_speak = shape.dialect.is_some() || shape.shared.is_some();
        let capture = worker.shared().capture.as_ref().filter(|_| may_speak);
        let following = capture.map(|capture| {
            let open = worker.shared().open_streams.load(Ordering::Relaxed);
            capture.begin_request(|name| head.value(name), open)
        });
        let observer = StreamObserver::begin(shape, head.body_coding(), None, arrival.at)
            .with_slos(config.slos.clone(), config.stall)
            .with_classes(classes)
            .with_reserve(worker.work_reserve());
        let trace = worker.shared().sampler.as_ref().filter(|_| is_traced).map(|sampler| {
            RequestTrace::begin(sampler, head.get(KnownHeader::Traceparent), head.get(KnownHeader::Tracestate))
        });
        Self {
            observer: Some(observer),
            charged_work: 0,
            request_piece: (0, 0),
            response_piece: None,
            written: None,
            worker: Rc::clone(worker),
            trace,
            active: worker.levels().request(head.method()),
            usage_injection: asking,
            capture_handle: following,
            last_read: arrival.at,
        }
    }

    /// Sets the server, which is known once a connection to it is open.
    pub(super) fn set_server(&mut self, server: Option<(Arc<str>, u16)>) {
        if let Some(observer) = &mut self.observer {
            observer.set_server(server);
        }
    }

    /// True if this is a health probe.
    pub(super) fn is_probe(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.shape().probe.is_some())
    }

    /// The request's dialect, if already known.
    pub(super) fn dialect(&self) -> Option<&'static Dialect> {
        self.observer.as_ref()?.shape().dialect
    }

    /// The trace context for the upstream request.
    pub(super) fn trace(&self) -> Option<&RequestTrace> {
        self.trace.as_ref()
    }

    /// The editor that requests usage for this exchange, if enabled.
    pub(super) fn usage_injection(&mut self) -> Option<&mut UsageInjection> {
        self.usage_injection.as_deref_mut()
    }

    pub(super) fn on_request_read(&mut self, arrival: Arrival) {
        self.last_read = arrival.at;
    }

    /// Appends a piece of the request body to the exchange, edited if enabled.
    pub(super) fn forward_request_body(&mut self, payload: &[u8], exchange: &mut UpstreamExchange) {
        match &mut self.usage_injection {
            None => exchange.send(payload),
            Some(asking) => asking.edit_request(payload, |bytes| exchange.send(bytes)),
        }
    }

    /// Reports a piece of the request body that was written upstream. Pending if the task has to yield first; the
    /// caller then passes the same piece again, which may have become longer.
    pub(super) fn poll_request_body(&mut self, cx: &mut Context<'_>, payload: &[u8]) -> Poll<()> {
        let Some(observer) = &mut self.observer else { return Poll::Ready(()) };
        let (counted, observed) = &mut self.request_piece;
        if let Some(new @ [_, ..]) = payload.get(*counted..) {
            *counted = payload.len();
            observer.begin_request_read(new.len());
            if let (Some(following), Some(capture)) = (&mut self.capture_handle, &self.worker.shared().capture) {
                capture.push_body(following, new);
            }
            consume_coop_budget(new.len() as u64 / BYTES_PER_OPERATION);
        }
        while let Some(used) = observer.request_slice(&payload[*observed..]) {
            *observed += used;
            charge_work(observer, &mut self.charged_work);
            ready!(poll_coop_budget(cx));
        }
        charge_work(observer, &mut self.charged_work);
        self.request_piece = (0, 0);
        Poll::Ready(())
    }

    /// Reports a piece of the request body without a chance to yield: one that is cheap to observe.
    pub(super) fn on_request_body(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request(payload);
            charge_work(observer, &mut self.charged_work);
        }
        consume_coop_budget(payload.len() as u64 / BYTES_PER_OPERATION);
    }

    /// Reports a piece of a rejected request's body: it only identifies the request.
    pub(super) fn on_drained_body(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request_chunk(payload);
            charge_work(observer, &mut self.charged_work);
        }
    }

    /// Reports that the complete request was written upstream.
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

    pub(super) fn on_response_trailers(&mut self, trailers: &Head) {
        if let (Some(observer), Some(status)) = (&mut self.observer, trailers.value(GRPC_STATUS)) {
            observer.call_ended(status);
        }
    }

    /// Reports that the response head was written to the client at `now`.
    pub(super) fn on_response_head_written(&mut self, arrival: Arrival, now: Stamp) {
        if let Some(observer) = &mut self.observer {
            observer.head_forwarded(now.since(arrival.at));
        }
    }

    /// Reports a piece of the response body that was written to the client at `now`. `blocked` is the time during which
    /// the client did not accept it. Pending if the task has to yield first; the caller then passes the same piece
    /// again.
    pub(super) fn poll_response_body(
        &mut self,
        cx: &mut Context<'_>,
        piece: (Arrival, &[u8]),
        now: Stamp,
        blocked: Gap,
    ) -> Poll<()> {
        self.observe_response_body(piece, now, blocked, || poll_coop_budget(cx))
    }

    /// Reports a piece of the response body like [`poll_response_body`](Self::poll_response_body), without a chance to
    /// yield. The piece is cheap to observe, or the last one of a response that has ended.
    pub(super) fn on_response_body(&mut self, piece: (Arrival, &[u8]), now: Stamp, blocked: Gap) {
        _ = self.observe_response_body(piece, now, blocked, || Poll::Ready(())).is_ready();
    }

    fn observe_response_body(
        &mut self,
        (arrival, payload): (Arrival, &[u8]),
        now: Stamp,
        blocked: Gap,
        mut poll_budget: impl FnMut() -> Poll<()>,
    ) -> Poll<()> {
        let Some(observer) = &mut self.observer else { return Poll::Ready(()) };
        let raw = self.usage_injection.as_ref().and_then(|asking| asking.original()).unwrap_or(payload);
        let observed = self.response_piece.get_or_insert_with(|| {
            observer.begin_read(arrival.at, raw.len());
            consume_coop_budget(raw.len() as u64 / BYTES_PER_OPERATION);
            0
        });
        while let Some(used) = observer.slice(arrival.at, &raw[*observed..]) {
            *observed += used;
            charge_work(observer, &mut self.charged_work);
            ready!(poll_budget());
        }
        self.response_piece = None;
        if blocked == Gap::ZERO {
            observer.forwarded(now.since(arrival.at));
        } else {
            observer.write_blocked(blocked);
        }
        if observer.has_token() {
            self.active.set_stream_phase(true);
        }
        let progress = observer.progress(now);
        charge_work(observer, &mut self.charged_work);
        if let Some(progress) = progress {
            if let Some(following) = &mut self.capture_handle {
                following.push_gaps(&progress.gaps);
            }
            self.worker.reporter().progress(progress);
        }
        Poll::Ready(())
    }

    /// Reports that the response's last byte was written to the client. Its last piece may still have to be observed.
    pub(super) fn on_response_written(&mut self, now: Stamp) {
        self.written = Some(now);
    }

    /// Reports that the proxy sent its own error response.
    pub(super) fn on_error_response(&mut self, refusal: &ProxyError) {
        if let Some(observer) = &mut self.observer {
            observer.refused(refusal.status, refusal.origin.failure_origin());
        }
    }

    /// Ends the request now.
    pub(super) fn end(self, ending: Ending) {
        self.end_at(Clock::Monotonic.now(), ending);
    }

    /// Ends the request at `at`.
    pub(super) fn end_at(mut self, at: Stamp, ending: Ending) {
        self.finish(at, ending);
    }

    fn finish(&mut self, at: Stamp, ending: Ending) {
        let Some(observer) = self.observer.take() else { return };
        let (record, text) = observer.end_with_text(at, ending);
        let finished = FinishedRequest {
            trace: self.trace.take(),
            capture_handle: self.capture_handle.take(),
            ..FinishedRequest::from(record)
        };
        match (text, &self.worker.shared().tokenizing) {
            (Some(text), Some(tokenizing)) => tokenizing.finished(finished, text),
            _ => self.worker.reporter().finished(finished),
        }
    }
}

/// Charges the observer's work since the last call to the task's cooperative budget.
fn charge_work(observer: &StreamObserver, charged: &mut u64) {
    let operations = observer.work().saturating_sub(*charged) / WORK_NANOS_PER_OPERATION;
    if operations > 0 {
        *charged += operations * WORK_NANOS_PER_OPERATION;
        consume_coop_budget(operations);
    }
}

/// Ready if the current task has operations left. Otherwise it runs again after the others.
fn poll_coop_budget(cx: &mut Context<'_>) -> Poll<()> {
    coop::poll_proceed(cx).map(drop)
}

/// Consumes operations of the current task's budget. When none is left, its next read or write yields.
fn consume_coop_budget(operations: u64) {
    // The next read or write registers its own waker.
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
        // Most requests have ended before the drop.
        if self.observer.is_some() {
            let now = Clock::Monotonic.now();
            let (at, ending) = match self.written {
                Some(at) => (at, Ending::Complete),
                None if self.worker.is_stopped() => (now, Ending::TimedOut),
                None => (now, Ending::DownstreamGone),
            };
            self.finish(at, ending);
        }
    }
}

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

use super::asking::Asking;
use super::refusal::Refusal;
use super::upstream::Exchange;
use super::worker::Worker;
use crate::clock::Clock;
use crate::export::capturing::Following;
use crate::export::levels::ActiveRequest;
use crate::export::queue::Finished;
use crate::export::trace_context::RequestTrace;
use crate::measure::dialect::Dialect;
use crate::measure::observer::{ResponseHead, StreamObserver};
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::{Head, Known};
use crate::net::io::Arrival;

/// Where gRPC says how a call ended: among the trailers, or in the head of an answer that has nothing else.
const GRPC_STATUS: &str = "grpc-status";

/// Work of observing that counts as one operation of its task, in units of nanoseconds: tokio lets a task do 128 before
/// the others have their turn, so that one that had much to understand gives way as one that moved many bytes does.
const WORK_PER_OPERATION: u64 = 4_000;

/// See the module.
pub(super) struct Observation {
    observer: Option<Box<StreamObserver>>,
    /// Work of the observer that its task has given way for.
    work: u64,
    worker: Rc<Worker>,
    trace: Option<RequestTrace>,
    active: ActiveRequest,
    asking: Option<Box<Asking>>,
    following: Option<Following>,
    /// The last read of the request.
    last_read: Stamp,
}

impl Observation {
    /// A request whose head arrived with `arrival`.
    pub(super) fn begin(worker: &Rc<Worker>, head: &Head, arrival: Arrival) -> Self {
        let config = worker.config();
        let mut shape = RequestShape::of(head.method(), head.path(), &config.routes);
        shape.server = Some(worker.upstream().server());
        let is_traced = shape.probe.is_none() || config.trace_probes;
        let asking = Asking::begin(&config, shape.dialect, head);
        let may_speak = shape.dialect.is_some() || shape.shared.is_some();
        let capture = worker.shared().capture.as_ref().filter(|_| may_speak);
        let following = capture.map(|capture| {
            let open = worker.shared().open.load(Ordering::Relaxed);
            capture.follow(|name| head.value(name), open)
        });
        let observer = StreamObserver::begin(shape, head.body_coding(), None, arrival.at)
            .judged_by(config.slos.clone(), config.stall);
        let trace = worker
            .shared()
            .sampler
            .as_ref()
            .filter(|_| is_traced)
            .map(|sampler| RequestTrace::begin(sampler, head.get(Known::Traceparent), head.get(Known::Tracestate)));
        Self {
            observer: Some(observer),
            work: 0,
            worker: Rc::clone(worker),
            trace,
            active: worker.levels().request(head.method()),
            asking,
            following,
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
    pub(super) fn asking(&mut self) -> Option<&mut Asking> {
        self.asking.as_deref_mut()
    }

    /// A read of the request arrived.
    pub(super) fn read(&mut self, arrival: Arrival) {
        self.last_read = arrival.at;
    }

    /// Puts a piece of the request body into the exchange, edited if that is wanted.
    pub(super) fn send(&mut self, payload: &[u8], exchange: &mut Exchange) {
        match &mut self.asking {
            None => exchange.send(payload),
            Some(asking) => asking.request(payload, |bytes| exchange.send(bytes)),
        }
    }

    /// A piece of the request body was written upstream.
    pub(super) fn request(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request(payload);
        }
        self.give_way();
        if let (Some(following), Some(capture)) = (&mut self.following, &self.worker.shared().capture) {
            capture.request(following, payload);
        }
    }

    /// A piece of a request body that nobody is to have: it only tells what was asked.
    pub(super) fn asked(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.asked(payload);
        }
        self.give_way();
    }

    /// Counts what observing has cost as operations of the task.
    fn give_way(&mut self) {
        let work = self.observer.as_ref().map_or(0, |observer| observer.work());
        let operations = work.saturating_sub(self.work) / WORK_PER_OPERATION;
        if operations > 0 {
            self.work += operations * WORK_PER_OPERATION;
            count(operations);
        }
    }

    /// The whole request was written upstream.
    pub(super) fn sent(&mut self) {
        let now = Clock::Monotonic.now();
        if let Some(observer) = &mut self.observer {
            observer.sent(now, Some(now.since(self.last_read)));
            let shape = observer.shape();
            self.active.asks_for(shape.model.as_deref());
            if shape.stream == Some(true) {
                self.active.is_stream(false);
            }
            if let (Some(following), Some(capture)) = (&mut self.following, &self.worker.shared().capture) {
                capture.sent(following, shape.dialect);
            }
        }
    }

    /// The response head arrived.
    pub(super) fn head(&mut self, arrival: Arrival, head: &Head) {
        if head.is_simulated() {
            self.worker.shared().gauges.set_simulated();
        }
        if let Some(observer) = &mut self.observer {
            let response = ResponseHead {
                status: head.status(),
                content_type: head.get(Known::ContentType).unwrap_or_default(),
                content_encoding: head.body_coding(),
            };
            observer.head(arrival.at, response, arrival.source);
            if let Some(status) = head.value(GRPC_STATUS) {
                observer.call_ended(status);
            }
            if observer.is_stream() {
                self.active.is_stream(false);
            }
            let tokenizing = self.worker.shared().tokenizing.as_ref();
            if let Some(budget) = tokenizing.and_then(|counts| counts.budget(observer.shape().model.as_deref())) {
                observer.collect_text(budget);
            }
        }
    }

    /// The response's trailers arrived.
    pub(super) fn trailers(&mut self, trailers: &Head) {
        if let (Some(observer), Some(status)) = (&mut self.observer, trailers.value(GRPC_STATUS)) {
            observer.call_ended(status);
        }
    }

    /// The response head was written to the client at `now`.
    pub(super) fn head_handed_on(&mut self, arrival: Arrival, now: Stamp) {
        if let Some(observer) = &mut self.observer {
            observer.head_handed_on(now.since(arrival.at));
        }
    }

    /// A piece of the response body, which arrived with `arrival`, was written to the client at `now`; `blocked` is how
    /// long the client would not take it.
    pub(super) fn body(&mut self, arrival: Arrival, payload: &[u8], now: Stamp, blocked: Gap) {
        let Some(observer) = &mut self.observer else { return };
        let raw = self.asking.as_ref().and_then(|asking| asking.raw());
        observer.bytes(arrival.at, raw.unwrap_or(payload));
        if blocked == Gap::ZERO {
            observer.handed_on(now.since(arrival.at));
        } else {
            observer.write_blocked(blocked);
        }
        if observer.has_token() {
            self.active.is_stream(true);
        }
        let progress = observer.progress(now);
        self.give_way();
        if let Some(progress) = progress {
            if let Some(following) = &mut self.following {
                following.progress(&progress.gaps);
            }
            self.worker.reporter().progress(progress);
        }
    }

    /// The proxy answered in the upstream's stead.
    pub(super) fn refused(&mut self, refusal: &Refusal) {
        if let Some(observer) = &mut self.observer {
            observer.refused(refusal.status, refusal.fault.origin());
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
        let finished = Finished { record, trace: self.trace.take(), following: self.following.take() };
        match (text, &self.worker.shared().tokenizing) {
            (Some(text), Some(tokenizing)) => tokenizing.finished(finished, text),
            _ => self.worker.reporter().finished(finished),
        }
    }
}

/// Counts operations of the task at hand, until it is its neighbours' turn: its next read or write then waits for that.
fn count(operations: u64) {
    // Whoever reads or writes next is woken by that.
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..operations {
        match coop::poll_proceed(&mut cx) {
            Poll::Ready(operation) => operation.made_progress(),
            Poll::Pending => break,
        }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        // Most have ended before.
        if self.observer.is_some() {
            let ending = if self.worker.is_stopped() { Ending::TimedOut } else { Ending::DownstreamGone };
            self.finish(Clock::Monotonic.now(), ending);
        }
    }
}

//! One request under observation: the state machine, the gauges it moves, and its one ending.
//!
//! # When does it end?
//! When the response's last byte has been handed on, when the upstream breaks, or when this is dropped, which is what
//! happens when the client leaves: the connection's task or the HTTP/2 stream goes away, and everything it owns with it.
//! Whatever comes first fires, once.

use std::rc::Rc;
use std::sync::Arc;

use super::worker::Worker;
use crate::clock::Clock;
use crate::export::gauges::ActiveRequest;
use crate::export::trace_context::RequestTrace;
use crate::measure::dialect;
use crate::measure::observer::{ResponseHead, StreamObserver};
use crate::measure::record::Ending;
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::{Head, Known};
use crate::net::io::Arrival;

/// See the module.
pub(super) struct Observation {
    observer: Option<Box<StreamObserver>>,
    worker: Rc<Worker>,
    trace: Option<RequestTrace>,
    active: ActiveRequest,
    /// The last read of the request.
    last_read: Stamp,
}

impl Observation {
    /// A request whose head arrived with `arrival`.
    pub(super) fn begin(worker: &Rc<Worker>, head: &Head, arrival: Arrival) -> Self {
        let config = worker.config();
        let shape = RequestShape {
            dialect: dialect::for_path(head.path()),
            method: head.method().into(),
            server: Some((Arc::clone(&config.upstream.host), config.upstream.port)),
            ..RequestShape::default()
        };
        let encoding = head.get(Known::ContentEncoding).unwrap_or_default();
        let observer = StreamObserver::begin(shape, encoding, None, arrival.at);
        let observer = observer.judged_by(config.slos.clone(), config.stall);
        let trace = worker
            .shared()
            .sampler
            .as_ref()
            .map(|sampler| RequestTrace::begin(sampler, head.get(Known::Traceparent), head.get(Known::Tracestate)));
        Self {
            observer: Some(Box::new(observer)),
            worker: Rc::clone(worker),
            trace,
            active: worker.shared().gauges.request(head.method()),
            last_read: arrival.at,
        }
    }

    /// The trace context under which the upstream is called.
    pub(super) fn trace(&self) -> Option<&RequestTrace> {
        self.trace.as_ref()
    }

    /// A read of the request arrived.
    pub(super) fn read(&mut self, arrival: Arrival) {
        self.last_read = arrival.at;
    }

    /// A piece of the request body was written upstream.
    pub(super) fn request(&mut self, payload: &[u8]) {
        if let Some(observer) = &mut self.observer {
            observer.request(payload);
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
        }
    }

    /// The response head arrived.
    pub(super) fn head(&mut self, arrival: Arrival, head: &Head) {
        if let Some(observer) = &mut self.observer {
            let head = ResponseHead {
                status: head.status(),
                content_type: head.get(Known::ContentType).unwrap_or_default(),
                content_encoding: head.get(Known::ContentEncoding).unwrap_or_default(),
            };
            observer.head(arrival.at, head, arrival.source);
            if observer.is_stream() {
                self.active.is_stream(false);
            }
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
        observer.bytes(arrival.at, payload);
        if blocked == Gap::ZERO {
            observer.handed_on(now.since(arrival.at));
        } else {
            observer.write_blocked(blocked);
        }
        if observer.has_token() {
            self.active.is_stream(true);
        }
        if let Some(progress) = observer.progress(now) {
            self.worker.reporter().progress(progress);
        }
    }

    /// We answered in the upstream's stead, with this status.
    pub(super) fn refused(&mut self, status: u16) {
        if let Some(observer) = &mut self.observer {
            observer.refused(status);
        }
    }

    /// The end.
    pub(super) fn end(mut self, ending: Ending) {
        self.finish(ending);
    }

    fn finish(&mut self, ending: Ending) {
        let Some(observer) = self.observer.take() else { return };
        let record = observer.end(Clock::Monotonic.now(), ending);
        self.worker.reporter().finished(record, self.trace.take());
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.finish(Ending::DownstreamGone);
    }
}

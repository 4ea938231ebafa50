//! One exchange on behalf of an HTTP/2 stream.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use crate::net::http1::Head;
use crate::proxy::observation::Observation;
use crate::proxy::upstream::{Broken, Exchange, HIGH_WATER};

/// Why a request is not carried further.
pub(super) enum Stopped {
    /// The client gave up on it.
    ClientGone,
    Upstream(Broken),
}

/// See the module.
pub(super) struct Call {
    request: Option<Incoming>,
    complete: bool,
    pub(super) exchange: Exchange,
}

impl Call {
    pub(super) fn new(request: Incoming, exchange: Exchange) -> Self {
        Self { request: Some(request), complete: false, exchange }
    }

    /// Moves the request body upstream.
    pub(super) fn poll_upload(&mut self, cx: &mut Context<'_>, observation: &mut Observation) -> ControlFlow<Stopped> {
        while !self.complete {
            let full = self.exchange.backlog() >= HIGH_WATER;
            let mut read = false;
            if let Some(body) = self.request.as_mut().filter(|_| !full) {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Pending => {}
                    Poll::Ready(frame) => {
                        read = true;
                        // To hyper a stream that was reset with NO_ERROR has no more frames either.
                        let whole = body.is_end_stream();
                        match frame {
                            Some(Ok(frame)) => self.take(frame, observation),
                            None if whole => {
                                self.exchange.complete(None);
                                self.request = None;
                            }
                            // The client gave up on its request: so do we, by dropping what belongs to it.
                            Some(Err(_)) | None => return ControlFlow::Break(Stopped::ClientGone),
                        }
                    }
                }
            }
            match self.exchange.poll_flush(cx, |payload| observation.request(payload)) {
                Poll::Ready(Err(broken)) => return ControlFlow::Break(Stopped::Upstream(broken)),
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

//! One exchange on behalf of an HTTP/2 stream.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use crate::net::http1::Head;
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::{HIGH_WATER_BYTES, UpstreamError, UpstreamExchange};

/// Why a request is not carried further.
pub(super) enum CallError {
    /// The client gave up on it.
    ClientGone,
    Upstream(UpstreamError),
}

/// An exchange with the upstream, and the request body that it still uploads.
pub(super) struct Call {
    request: Option<Incoming>,
    complete: bool,
    pub(super) exchange: UpstreamExchange,
}

impl Call {
    pub(super) fn new(request: Incoming, exchange: UpstreamExchange) -> Self {
        Self { request: Some(request), complete: false, exchange }
    }

    /// Moves the request body upstream.
    pub(super) fn poll_upload(
        &mut self,
        cx: &mut Context<'_>,
        observation: &mut RequestObserver,
    ) -> ControlFlow<CallError> {
        while !self.complete {
            let full = self.exchange.backlog() >= HIGH_WATER_BYTES;
            let mut read = false;
            if let Some(body) = self.request.as_mut().filter(|_| !full) {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Pending => {}
                    Poll::Ready(frame) => {
                        read = true;
                        // To hyper a stream that was reset with NO_ERROR has no more frames either.
                        let whole = body.is_end_stream();
                        match frame {
                            Some(Ok(frame)) => self.forward_frame(frame, observation),
                            None if whole => {
                                self.exchange.complete(None);
                                self.request = None;
                            }
                            // The client gave up on its request: so do we, by dropping what belongs to it.
                            Some(Err(_)) | None => return ControlFlow::Break(CallError::ClientGone),
                        }
                    }
                }
            }
            match self.exchange.poll_flush(cx, |cx, payload| observation.poll_request_body(cx, payload)) {
                Poll::Ready(Err(broken)) => return ControlFlow::Break(CallError::Upstream(broken)),
                Poll::Ready(Ok(())) if self.exchange.write_closed() => (self.request, self.complete) = (None, true),
                Poll::Ready(Ok(())) if self.request.is_none() => {
                    observation.on_request_sent();
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

    fn forward_frame(&mut self, frame: Frame<Bytes>, observation: &mut RequestObserver) {
        match frame.into_data() {
            Ok(data) => observation.forward_request_body(&data, &mut self.exchange),
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

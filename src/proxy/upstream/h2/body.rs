//! The request body for hyper's task: queued frames, and a copy for a retry.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};

use super::super::MAX_RETRY_BODY_BYTES;
use super::progress::{UploadPiece, UploadProgress};

/// A copy of the request, kept while a retry is possible.
pub(super) struct RetryBuffer {
    head: Request<()>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl RetryBuffer {
    pub(super) fn new(head: Request<()>) -> Self {
        Self { head, body: Vec::new(), trailers: None }
    }

    /// Appends body bytes; `None` if the copy becomes too large to keep.
    pub(super) fn append(mut self, payload: &[u8]) -> Option<Self> {
        self.body.extend_from_slice(payload);
        (self.body.len() as u64 <= MAX_RETRY_BODY_BYTES).then_some(self)
    }

    pub(super) fn end(&mut self, trailers: Option<&HeaderMap>) {
        self.trailers = trailers.cloned();
    }

    /// Queues the copied body for a new attempt; `complete` if the body has ended.
    pub(super) fn to_send_queue(&self, complete: bool) -> SendQueue {
        let mut outbox = SendQueue::default();
        if !self.body.is_empty() {
            outbox.push(Frame::data(Bytes::copy_from_slice(&self.body)));
        }
        if complete {
            outbox.end(self.trailers.clone());
        }
        outbox
    }

    /// The request with this body.
    pub(super) fn to_request(
        &self,
        body: &Rc<RefCell<SendQueue>>,
        uploads: &Arc<UploadProgress>,
    ) -> Request<UploadBody> {
        let body = UploadBody { queue: Rc::clone(body), uploads: Arc::clone(uploads) };
        self.head.clone().map(|()| body)
    }
}

/// Frames of a request on their way to hyper's task.
#[derive(Default)]
pub(super) struct SendQueue {
    frames: VecDeque<Frame<Bytes>>,
    /// Payload bytes in the queue.
    pub(super) queued_bytes: usize,
    pub(super) complete: bool,
    /// The client disconnected mid-request: the stream must be reset, not ended.
    abandoned: bool,
    /// hyper has dropped the receiving side.
    pub(super) dropped: bool,
    consumer: Option<Waker>,
    producer: Option<Waker>,
}

impl SendQueue {
    pub(super) fn push(&mut self, frame: Frame<Bytes>) {
        if self.dropped {
            return;
        }
        self.queued_bytes += frame.data_ref().map_or(0, Bytes::len);
        self.frames.push_back(frame);
        self.wake();
    }

    /// Ends the body.
    pub(super) fn end(&mut self, trailers: Option<HeaderMap>) {
        if let Some(trailers) = trailers {
            self.push(Frame::trailers(trailers));
        }
        self.complete = true;
        self.wake();
    }

    /// Marks an unfinished body as abandoned.
    pub(super) fn abandon(&mut self) {
        self.abandoned = !self.complete;
        self.wake();
    }

    /// True if hyper has taken every frame.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Ready when hyper has taken every frame, or has dropped the body.
    pub(super) fn poll_drained(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.frames.is_empty() {
            return Poll::Ready(());
        }
        self.producer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake(&mut self) {
        if let Some(waker) = self.consumer.take() {
            waker.wake();
        }
    }
}

/// The request body that hyper polls.
pub(super) struct UploadBody {
    queue: Rc<RefCell<SendQueue>>,
    /// Progress of its connection's uploads.
    pub(super) uploads: Arc<UploadProgress>,
}

/// The client disconnected mid-request.
#[derive(Debug, thiserror::Error)]
#[error("the client left before its request was whole")]
pub(super) struct ClientDisconnected;

impl Body for UploadBody {
    type Data = UploadPiece;
    type Error = ClientDisconnected;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<UploadPiece>, ClientDisconnected>>> {
        let mut outbox = self.queue.borrow_mut();
        if outbox.abandoned {
            return Poll::Ready(Some(Err(ClientDisconnected)));
        }
        match outbox.frames.pop_front() {
            Some(frame) => {
                outbox.queued_bytes -= frame.data_ref().map_or(0, Bytes::len);
                if outbox.frames.is_empty()
                    && let Some(waker) = outbox.producer.take()
                {
                    waker.wake();
                }
                Poll::Ready(Some(Ok(frame.map_data(|payload| UploadPiece::new(payload, &self.uploads)))))
            }
            None if outbox.complete => Poll::Ready(None),
            None => {
                outbox.consumer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let outbox = self.queue.borrow();
        outbox.complete && outbox.frames.is_empty()
    }
}

impl Drop for UploadBody {
    fn drop(&mut self) {
        let mut outbox = self.queue.borrow_mut();
        outbox.dropped = !(outbox.complete && outbox.frames.is_empty());
        outbox.frames.clear();
        outbox.queued_bytes = 0;
        if let Some(waker) = outbox.producer.take() {
            waker.wake();
        }
    }
}

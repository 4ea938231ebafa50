//! Spans that wait for the capture to find the session of their request.

use std::sync::Arc;

use super::batch::BatchQueue;
use super::traces::{RequestSpans, SpanEncoder};

/// Spans of one request. They are queued when this is dropped, so none is lost wherever the request ends on its way
/// through the capture.
#[derive(Debug)]
pub struct PendingSpans {
    spans: Option<RequestSpans>,
    queue: Arc<BatchQueue<SpanEncoder>>,
}

impl PendingSpans {
    /// Holds the spans back.
    pub(in crate::export) fn new(spans: RequestSpans, queue: &Arc<BatchQueue<SpanEncoder>>) -> Box<Self> {
        Box::new(Self { spans: Some(spans), queue: Arc::clone(queue) })
    }

    /// Adds the id of the request's session.
    pub(in crate::export) fn set_conversation(&mut self, session: &str) {
        self.spans.iter_mut().for_each(|spans| spans.set_conversation(session));
    }
}

impl Drop for PendingSpans {
    fn drop(&mut self) {
        if let Some(spans) = self.spans.take() {
            self.queue.push(|| spans);
        }
    }
}

//! A part of a response on its way to the client, and then to the observer.

use std::ops::Range;
use std::task::{Context, Poll};

use crate::measure::time::{Gap, Stamp};
use crate::net::io::Arrival;
use crate::proxy::request_observer::RequestObserver;

/// Output in progress, which the observer gets once it is written.
#[derive(Default)]
pub(super) struct PendingWrite {
    pub(super) head: Option<Arrival>,
    /// Arrival and place of the payload in the output.
    pub(super) body: Option<(Arrival, Range<usize>)>,
    /// When the client had taken all of it, and for how long it took nothing.
    pub(super) written: Option<(Stamp, Gap)>,
}

impl PendingWrite {
    /// Passes the written payload to the observer, as far as the task's turn allows.
    pub(super) fn poll_observe(&self, cx: &mut Context<'_>, out: &[u8], observation: &mut RequestObserver) -> Poll<()> {
        match (self.written, &self.body) {
            (Some((now, blocked)), Some((arrival, payload))) => {
                observation.poll_response_body(cx, (*arrival, &out[payload.clone()]), now, blocked)
            }
            _ => Poll::Ready(()),
        }
    }

    /// Passes the rest of the written payload to the observer, because the exchange ends.
    pub(super) fn observe(self, out: &[u8], observation: &mut RequestObserver) {
        if let (Some((now, blocked)), Some((arrival, payload))) = (self.written, self.body) {
            observation.on_response_body((arrival, &out[payload]), now, blocked);
        }
    }
}

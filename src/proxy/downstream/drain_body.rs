//! Reads the body of a request that the proxy rejects. The body names the model, so that an outage counts against the
//! right SLO: one per model would otherwise miss it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use http_body::Body;
use hyper::body::Incoming;

use super::client::DownstreamConnection;
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::http1::{BodyDecoder, Framing};
use crate::proxy::request_observer::RequestObserver;

/// Limits on size and time. Most bodies arrive with their head or just after it.
const MAX_DRAIN_BYTES: usize = 256 * 1024;
const DRAIN_TIMEOUT: Gap = Gap::from_millis(100);

/// Reads an HTTP/1.x body.
pub(super) async fn drain_http1(
    client: &mut DownstreamConnection,
    framing: Framing,
    observation: &mut RequestObserver,
) {
    let (mut decoder, mut received) = (BodyDecoder::new(framing), 0);
    drain(|cx| {
        let Ok(used) = decoder.decode(&client.inbox, |payload| observation.on_drained_body(payload)) else {
            return Poll::Ready(false);
        };
        client.inbox.drain(..used);
        received += used;
        if decoder.is_done() || received >= MAX_DRAIN_BYTES {
            return Poll::Ready(false);
        }
        Poll::Ready(matches!(ready!(client.poll_read(cx)), Ok(true)))
    })
    .await;
}

/// Reads an HTTP/2 body.
pub(super) async fn drain_http2(mut body: Incoming, observation: &mut RequestObserver) {
    let mut received = 0;
    drain(|cx| {
        let Some(Ok(frame)) = ready!(std::pin::Pin::new(&mut body).poll_frame(cx)) else { return Poll::Ready(false) };
        if let Some(payload) = frame.data_ref() {
            observation.on_drained_body(payload);
            received += payload.len();
        }
        Poll::Ready(received < MAX_DRAIN_BYTES)
    })
    .await;
}

/// Calls `piece` until it returns true at the end, or until the timeout.
async fn drain(mut piece: impl FnMut(&mut Context<'_>) -> Poll<bool>) {
    let all = poll_fn(|cx| {
        while ready!(piece(cx)) {}
        Poll::Ready(())
    });
    let _whole = Clock::Monotonic.timeout(DRAIN_TIMEOUT, all).await.is_some();
}

//! The body of a request that nobody is to have. It tells what was asked and of which model, so that an outage is
//! counted where it belongs: an SLO for one model would otherwise not see it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use http_body::Body;
use hyper::body::Incoming;

use super::client::DownstreamConnection;
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::http1::{BodyDecoder, Framing};
use crate::proxy::request_observer::RequestObserver;

/// How much is listened to, and for how long. Most bodies are there already, or a moment after their head.
const MAX_DRAIN_BYTES: usize = 256 * 1024;
const DRAIN_TIMEOUT: Gap = Gap::from_millis(100);

/// What an HTTP/1.x client sends after the head of its request.
pub(super) async fn drain_http1(
    client: &mut DownstreamConnection,
    framing: Framing,
    observation: &mut RequestObserver,
) {
    let (mut decoder, mut heard) = (BodyDecoder::new(framing), 0);
    drain(|cx| {
        let Ok(used) = decoder.decode(&client.inbox, |payload| observation.on_drained_body(payload)) else {
            return Poll::Ready(false);
        };
        client.inbox.drain(..used);
        heard += used;
        if decoder.is_done() || heard >= MAX_DRAIN_BYTES {
            return Poll::Ready(false);
        }
        Poll::Ready(matches!(ready!(client.poll_read(cx)), Ok(true)))
    })
    .await;
}

/// The body of an HTTP/2 request.
pub(super) async fn drain_http2(mut body: Incoming, observation: &mut RequestObserver) {
    let mut heard = 0;
    drain(|cx| {
        let Some(Ok(frame)) = ready!(std::pin::Pin::new(&mut body).poll_frame(cx)) else { return Poll::Ready(false) };
        if let Some(payload) = frame.data_ref() {
            observation.on_drained_body(payload);
            heard += payload.len();
        }
        Poll::Ready(heard < MAX_DRAIN_BYTES)
    })
    .await;
}

/// Calls `piece` until it says that there is no more, or patience ends.
async fn drain(mut piece: impl FnMut(&mut Context<'_>) -> Poll<bool>) {
    let all = poll_fn(|cx| {
        while ready!(piece(cx)) {}
        Poll::Ready(())
    });
    let _whole = Clock::Monotonic.timeout(DRAIN_TIMEOUT, all).await.is_some();
}

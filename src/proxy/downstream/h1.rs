//! The server for HTTP/1.x clients.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use super::client::{DownstreamConnection, MAX_LINGER_BYTES, MAX_MALFORMED_LINGER_BYTES, ReadOutcome};
use super::relay::{Relay, RelayEnd};
use super::{drain_body, h2, tunnel};
use crate::clock::Clock;
use crate::measure::record::Ending;
use crate::measure::time::Stamp;
use crate::net::http1::Head;
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::added_headers::{AddedHeaders, Scheme};
use crate::proxy::error_response::{ErrorOrigin, ProxyError};
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::{UpstreamClient, UpstreamError, UpstreamExchange, UpstreamRequest};
use crate::proxy::worker_context::{ConnectionSlot, StreamPermit};

/// The fate of the connection after an exchange.
enum AfterExchange {
    /// Wait for another request; the last one ended at this time.
    Keep(Stamp),
    /// The client may still be sending: read at most this many bytes, then close.
    Linger(usize),
    /// Close.
    Close,
    /// Reset, as the upstream did.
    Reset,
    /// Tunnel bytes; the stream's permit is held throughout.
    Tunnel(Box<UpstreamExchange>, Box<RequestObserver>, StreamPermit),
}

/// Serves a client until either side closes the connection.
pub(super) async fn serve(io: MaybeTlsStream, seat: ConnectionSlot, upstream: Rc<UpstreamClient>) {
    let mut client = DownstreamConnection::new(io);
    let (mut request, mut response) = (Head::default(), Head::default());
    let (mut first, mut since) = (true, Clock::Monotonic.now());
    loop {
        let next = match client.read_head(&seat, &mut request, first, since).await {
            ReadOutcome::Request(arrival) => {
                exchange(&mut client, (&seat, &upstream), &request, &mut response, arrival).await
            }
            ReadOutcome::Http2 => return h2::serve(client.io, client.inbox, seat, upstream).await,
            ReadOutcome::Closed => return,
            ReadOutcome::Rejected(refusal) => {
                request.shrink();
                let begin = |arrival| RequestObserver::begin(seat.worker(), upstream.server(), &request, arrival);
                let observation = client.arrival.map(begin);
                send_error_response(&mut client, &request, &refusal, observation).await
            }
        };
        first = false;
        match next {
            AfterExchange::Keep(at) => {
                since = at;
                request.shrink();
                response.shrink();
            }
            AfterExchange::Linger(most) => return client.linger(most).await,
            AfterExchange::Close => return,
            AfterExchange::Reset => return client.io.reset(),
            AfterExchange::Tunnel(exchange, observation, _permit) => {
                if let Some(server) = exchange.into_tunnel() {
                    tunnel::run((client.io, client.inbox), server, *observation).await;
                }
                return;
            }
        }
    }
}

/// Answers a connection that cannot be served with an error, without reading its request.
pub(super) async fn reject(io: MaybeTlsStream, refusal: &ProxyError) {
    let (mut client, request) = (DownstreamConnection::new(io), Head::default());
    if let AfterExchange::Linger(most) = send_error_response(&mut client, &request, refusal, None).await {
        client.linger(most).await;
    }
}

async fn exchange(
    client: &mut DownstreamConnection,
    (seat, upstream): (&ConnectionSlot, &UpstreamClient),
    request: &Head,
    response: &mut Head,
    arrival: Arrival,
) -> AfterExchange {
    let worker = seat.worker();
    let mut observation = RequestObserver::begin(worker, upstream.server(), request, arrival);
    let framing = match request.request_framing() {
        Ok(framing) => framing,
        Err(error) => return send_error_response(client, request, &error.into(), Some(observation)).await,
    };
    if request.method() == "CONNECT" {
        return send_error_response(client, request, &ProxyError::connect_unsupported(), Some(observation)).await;
    }
    let permit = match worker.admit(observation.is_probe()) {
        Ok(permit) => permit,
        Err(refusal) => {
            drain_body::drain_http1(client, framing, &mut observation).await;
            return send_error_response(client, request, &refusal, Some(observation)).await;
        }
    };
    let added = AddedHeaders::new(
        &worker.config(),
        request,
        || client.io.peer(),
        Scheme::from_io(&client.io),
        observation.trace(),
    );
    let outgoing = UpstreamRequest::new(request, framing, &added, observation.usage_injection().is_some());
    // The wait for a connection must end with the client too.
    let outcome = unless_disconnected(client, pin!(upstream.begin(&outgoing))).await;
    let mut exchange = match outcome {
        Some(Ok(exchange)) => exchange,
        Some(Err(broken)) => {
            drain_body::drain_http1(client, framing, &mut observation).await;
            return send_error_response(client, request, &ProxyError::from(&broken), Some(observation)).await;
        }
        None => return AfterExchange::Close,
    };
    observation.set_server(upstream.server());
    let end = {
        let draining = worker.is_draining();
        let mut relay = Relay::new(client, (request, framing), response, &mut exchange, &mut observation, draining);
        loop {
            match poll_fn(|cx| relay.poll(cx)).await {
                RelayEnd::Upstream { broken, answered: false } => {
                    match unless_disconnected(relay.client, pin!(upstream.retry(relay.exchange, broken))).await {
                        Some(Ok(())) => {}
                        Some(Err(broken)) => break RelayEnd::Upstream { broken, answered: false },
                        None => break RelayEnd::ClientGone,
                    }
                }
                end => break end,
            }
        }
    };
    match end {
        RelayEnd::Complete { keep, at } => {
            observation.end_at(at, Ending::Complete);
            upstream.finish(exchange, at);
            if keep { AfterExchange::Keep(at) } else { AfterExchange::Linger(MAX_LINGER_BYTES) }
        }
        RelayEnd::ClientGone => {
            drop(exchange);
            observation.end(Ending::DownstreamGone);
            AfterExchange::Close
        }
        RelayEnd::Upstream { broken, answered: true } => {
            observation.end(Ending::UpstreamFailed);
            tracing::debug!(%broken, "the upstream broke off");
            if matches!(broken, UpstreamError::Reset) { AfterExchange::Reset } else { AfterExchange::Close }
        }
        RelayEnd::Upstream { broken, answered: false } => {
            send_error_response(client, request, &ProxyError::from(&broken), Some(observation)).await
        }
        RelayEnd::BadRequest(error) => send_error_response(client, request, &error.into(), Some(observation)).await,
        RelayEnd::Switched => AfterExchange::Tunnel(Box::new(exchange), Box::new(observation), permit),
    }
}

/// Waits for `part` until the client disconnects. The caller pins `part`: a parameter by value would be stored twice in
/// the task of every stream.
async fn unless_disconnected<T>(
    client: &mut DownstreamConnection,
    mut part: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    poll_fn(|cx| match part.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => client.poll_disconnected(cx).map(|()| None),
    })
    .await
}

/// Sends an error response and closes the connection.
async fn send_error_response(
    client: &mut DownstreamConnection,
    request: &Head,
    refusal: &ProxyError,
    observation: Option<RequestObserver>,
) -> AfterExchange {
    client.reset_buffers();
    let dialect = observation.as_ref().and_then(RequestObserver::dialect);
    refusal.to_response(request, dialect).write(&mut client.out, request.method() == "HEAD");
    let answered = poll_fn(|cx| client.poll_flush(cx)).await.is_ok();
    client.reset_buffers();
    if let Some(mut observation) = observation {
        observation.on_error_response(refusal);
        observation.end(if answered { refusal.ending() } else { Ending::DownstreamGone });
    }
    AfterExchange::Linger(if refusal.origin == ErrorOrigin::Downstream {
        MAX_MALFORMED_LINGER_BYTES
    } else {
        MAX_LINGER_BYTES
    })
}

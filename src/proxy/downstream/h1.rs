//! The server for HTTP/1.x clients.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::client::{Begun, Client, LINGER_BYTES, LINGER_BYTES_MALFORMED};
use super::relay::{End, Relay};
use super::{h2, overhear, tunnel};
use crate::clock::Clock;
use crate::measure::record::Ending;
use crate::measure::time::Stamp;
use crate::net::http1::Head;
use crate::net::io::{Arrival, Io};
use crate::proxy::forward::{Additions, Scheme};
use crate::proxy::observation::Observation;
use crate::proxy::refusal::{Fault, Refusal};
use crate::proxy::upstream::{Broken, Exchange, Outgoing};
use crate::proxy::worker::{Permit, Seat};

/// What to do with the connection after an exchange.
enum Next {
    /// Wait for another request; the last one was done with at this time.
    Keep(Stamp),
    /// The client may still be sending, so much at most: close in order.
    Linger(usize),
    /// Close.
    Close,
    /// Reset, as the upstream did.
    Reset,
    /// Carry bytes, which takes the place of a stream for as long as it lasts.
    Tunnel(Box<Exchange>, Box<Observation>, Permit),
}

/// Serves a client until either side is done with the connection.
pub(super) async fn serve(io: Io, seat: Seat) {
    let mut client = Client::new(io);
    let (mut request, mut response) = (Head::default(), Head::default());
    let (mut first, mut since) = (true, Clock::Monotonic.now());
    loop {
        let next = match client.read_head(&seat, &mut request, first, since).await {
            Begun::Request(arrival) => exchange(&mut client, &seat, &request, &mut response, arrival).await,
            Begun::Http2 => return h2::serve(client.io, client.inbox, seat).await,
            Begun::Closed => return,
            Begun::Refused(refusal) => {
                request.shrink();
                refuse(&mut client, &seat, &request, &refusal, None).await
            }
        };
        first = false;
        match next {
            Next::Keep(at) => {
                since = at;
                request.shrink();
                response.shrink();
            }
            Next::Linger(most) => return client.linger(most).await,
            Next::Close => return,
            Next::Reset => return client.io.reset(),
            Next::Tunnel(exchange, observation, _permit) => {
                if let Some(server) = exchange.into_tunnel() {
                    tunnel::run((client.io, client.inbox), server, *observation).await;
                }
                return;
            }
        }
    }
}

/// Tells a client that speaks HTTP in clear where TLS is spoken.
pub(super) async fn turn_away(io: Io, seat: Seat) {
    let (mut client, request) = (Client::new(io), Head::default());
    let refusal = Refusal::new(400, Fault::Downstream, "this port speaks TLS: try https://");
    if let Next::Linger(most) = refuse(&mut client, &seat, &request, &refusal, None).await {
        client.linger(most).await;
    }
}

async fn exchange(client: &mut Client, seat: &Seat, request: &Head, response: &mut Head, arrival: Arrival) -> Next {
    let worker = seat.worker();
    let mut observation = Observation::begin(worker, request, arrival);
    let framing = match request.request_framing() {
        Ok(framing) => framing,
        Err(error) => return refuse(client, seat, request, &error.into(), Some(observation)).await,
    };
    if request.method() == "CONNECT" {
        return refuse(client, seat, request, &Refusal::connect(), Some(observation)).await;
    }
    let limit = worker.config().limits.streams;
    let Some(permit) = worker.admit(limit) else {
        overhear::client(client, framing, &mut observation).await;
        return refuse(client, seat, request, &Refusal::busy(limit), Some(observation)).await;
    };
    let added =
        Additions::new(&worker.config(), request, || client.io.peer(), Scheme::of(&client.io), observation.trace());
    let outgoing = Outgoing::new(request, framing, &added, observation.asking().is_some());
    // The wait for a connection must not outlive the client either.
    let begun = unless_gone(client, worker.upstream().begin(&outgoing)).await;
    let mut exchange = match begun {
        Some(Ok(exchange)) => exchange,
        Some(Err(broken)) => {
            overhear::client(client, framing, &mut observation).await;
            return refuse(client, seat, request, &Refusal::from(&broken), Some(observation)).await;
        }
        None => return Next::Close,
    };
    let end = {
        let draining = worker.is_draining();
        let mut relay = Relay::new(client, (request, framing), response, &mut exchange, &mut observation, draining);
        loop {
            match poll_fn(|cx| relay.poll(cx)).await {
                End::Upstream { broken, answered: false } => {
                    match unless_gone(relay.client, worker.upstream().again(relay.exchange, broken)).await {
                        Some(Ok(())) => {}
                        Some(Err(broken)) => break End::Upstream { broken, answered: false },
                        None => break End::ClientGone,
                    }
                }
                end => break end,
            }
        }
    };
    match end {
        End::Whole { keep, at } => {
            observation.end_at(at, Ending::Complete);
            worker.upstream().done(exchange, at);
            if keep { Next::Keep(at) } else { Next::Linger(LINGER_BYTES) }
        }
        End::ClientGone => {
            drop(exchange);
            observation.end(Ending::DownstreamGone);
            Next::Close
        }
        End::Upstream { broken, answered: true } => {
            observation.end(Ending::UpstreamFailed);
            tracing::debug!(%broken, "the upstream broke off");
            if matches!(broken, Broken::Reset) { Next::Reset } else { Next::Close }
        }
        End::Upstream { broken, answered: false } => {
            refuse(client, seat, request, &Refusal::from(&broken), Some(observation)).await
        }
        End::BadRequest(error) => refuse(client, seat, request, &error.into(), Some(observation)).await,
        End::Switched => Next::Tunnel(Box::new(exchange), Box::new(observation), permit),
    }
}

/// Waits for `part` as long as the client stays.
async fn unless_gone<F: Future>(client: &mut Client, part: F) -> Option<F::Output> {
    let mut part = pin!(part);
    poll_fn(|cx| match part.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => client.poll_gone(cx).map(|()| None),
    })
    .await
}

/// Answers in the upstream's stead, and ends the connection.
async fn refuse(
    client: &mut Client,
    seat: &Seat,
    request: &Head,
    refusal: &Refusal,
    observation: Option<Observation>,
) -> Next {
    let arrival = client.arrival;
    let observation = observation.or_else(|| Some(Observation::begin(seat.worker(), request, arrival?)));
    client.written();
    let dialect = observation.as_ref().and_then(Observation::dialect);
    refusal.answer(request, dialect).write(&mut client.out, request.method() == "HEAD");
    let answered = poll_fn(|cx| client.poll_flush(cx)).await.is_ok();
    client.written();
    if let Some(mut observation) = observation {
        observation.refused(refusal);
        observation.end(if answered { refusal.ending() } else { Ending::DownstreamGone });
    }
    Next::Linger(if refusal.fault == Fault::Downstream { LINGER_BYTES_MALFORMED } else { LINGER_BYTES })
}

//! The client side: detects a connection's protocol and starts its server.

mod client;
mod drain_body;
mod h1;
mod h2;
mod pending_write;
mod relay;
mod tunnel;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::error_response::{ErrorOrigin, ProxyError};
use super::worker_context::ConnectionSlot;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::MaybeTlsStream;
use crate::net::socket::TcpConnection;

/// Serves an accepted connection to its end.
pub(super) async fn serve(socket: TcpStream, seat: ConnectionSlot) {
    let shared = seat.worker().shared();
    if shared.target.destinations().is_some() {
        // Until then the peer may be a connection of this process that is not known yet.
        let until = Clock::Monotonic.now().after(seat.worker().config().limits.idle_timeout);
        if !matches!(with_deadline(&seat, until, socket.peek(&mut [0])).await, Some(Ok(1))) {
            return;
        }
    }
    let upstream = match seat.worker().upstream_of(&socket) {
        Ok(upstream) => upstream,
        Err(refusal) => return h1::reject(MaybeTlsStream::plain(socket), &refusal).await,
    };
    let tls = shared.server_tls.as_ref().map(|tls| tls.load_full());
    let io = match tls {
        None => MaybeTlsStream::plain(socket),
        Some(config) => {
            let (until, mut first) = (Clock::Monotonic.now().after(seat.worker().config().limits.head_timeout), [0]);
            let peeked = with_deadline(&seat, until, socket.peek(&mut first)).await;
            // A TLS handshake does not start with a letter; every HTTP method does.
            if matches!(peeked, Some(Ok(1))) && first[0].is_ascii_alphabetic() {
                let refusal = ProxyError::new(400, ErrorOrigin::Downstream, "this port speaks TLS: try https://");
                return h1::reject(MaybeTlsStream::plain(socket), &refusal).await;
            }
            match with_deadline(&seat, until, TlsAcceptor::from(config).accept(TcpConnection::new(socket))).await {
                Some(Ok(stream)) => MaybeTlsStream::tls(TlsStream::Server(stream)),
                Some(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                None => return tracing::debug!("TLS handshake took too long, or the proxy drains"),
            }
        }
    };
    if io.alpn() == Some(b"h2") {
        h2::serve(io, Vec::new(), seat, upstream).await;
    } else {
        h1::serve(io, seat, upstream).await;
    }
}

/// Runs a step of the server's handshake; `None` after the deadline, or if the proxy drains as for an idle client.
async fn with_deadline<F: Future>(seat: &ConnectionSlot, until: Stamp, part: F) -> Option<F::Output> {
    let mut part = pin!(part);
    let done = poll_fn(|cx| match part.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if seat.worker().drain_idle_timeout() == Some(Gap::ZERO) => Poll::Ready(None),
        Poll::Pending => seat.poll_until(cx, until).map(|()| None),
    })
    .await;
    seat.clear_deadline();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F>(_task: impl FnOnce(TcpStream, ConnectionSlot) -> F) -> usize {
        size_of::<F>()
    }

    /// Each open stream holds this task, so what connecting upstream needs is boxed.
    #[test]
    fn the_task_of_a_connection_has_no_room_for_what_only_its_start_needs() {
        assert!(size_of_future(serve) <= 3_584, "{} bytes", size_of_future(serve));
    }
}

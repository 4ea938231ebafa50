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

use super::worker_context::ConnectionSlot;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::io::MaybeTlsStream;
use crate::net::socket::TcpConnection;

/// Serves an accepted connection to its end.
pub(super) async fn serve(socket: TcpStream, seat: ConnectionSlot) {
    let tls = seat.worker().shared().server_tls.as_ref().map(|tls| tls.load_full());
    let io = match tls {
        None => MaybeTlsStream::plain(socket),
        Some(config) => {
            let (until, mut first) = (Clock::Monotonic.now().after(seat.worker().config().limits.head_timeout), [0]);
            let begun = with_deadline(&seat, until, socket.peek(&mut first)).await;
            // A TLS handshake does not start with a letter; every HTTP method does.
            if matches!(begun, Some(Ok(1))) && first[0].is_ascii_alphabetic() {
                return h1::reject(MaybeTlsStream::plain(socket), seat).await;
            }
            match with_deadline(&seat, until, TlsAcceptor::from(config).accept(TcpConnection::new(socket))).await {
                Some(Ok(stream)) => MaybeTlsStream::tls(TlsStream::Server(stream)),
                Some(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                None => return tracing::debug!("TLS handshake took too long, or the proxy drains"),
            }
        }
    };
    if io.alpn() == Some(b"h2") {
        h2::serve(io, Vec::new(), seat).await;
    } else {
        h1::serve(io, seat).await;
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

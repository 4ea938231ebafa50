//! The client's side: which protocol a connection speaks, and the server of each.

mod client;
mod h1;
mod h2;
mod overhear;
mod relay;
mod tunnel;

use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::worker::Seat;
use crate::clock::Clock;
use crate::net::io::Io;

/// Serves one accepted connection to its end.
pub(super) async fn serve(socket: TcpStream, seat: Seat) {
    let tls = seat.worker().shared().server_tls.as_ref().map(|tls| tls.load_full());
    let io = match tls {
        None => Io::plain(socket),
        Some(config) => {
            let limit = seat.worker().config().limits.head_timeout;
            let handshake = TlsAcceptor::from(config).accept(socket);
            match Clock::Monotonic.timeout(limit, handshake).await {
                Some(Ok(stream)) => Io::tls(TlsStream::Server(stream)),
                Some(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                None => return tracing::debug!("TLS handshake took too long"),
            }
        }
    };
    if io.alpn() == Some(b"h2") {
        h2::serve(io, Vec::new(), seat).await;
    } else {
        h1::serve(io, seat).await;
    }
}

//! Tunnels bytes in both directions after a protocol switch: they are counted and not parsed.

use std::io;
use std::task::{Context, Poll};

use crate::clock::Clock;
use crate::measure::record::Ending;
use crate::measure::time::Gap;
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::request_observer::RequestObserver;
use crate::proxy::upstream::ConnectionGuard;

/// One direction.
struct Pipe {
    buffer: Vec<u8>,
    written: usize,
    arrival: Option<Arrival>,
}

impl Pipe {
    /// Moves available bytes. Ready with true if the source ended, and with false if the destination failed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut MaybeTlsStream,
        to: &mut MaybeTlsStream,
        mut moved: impl FnMut(Option<Arrival>, &[u8]),
    ) -> Poll<bool> {
        loop {
            match to.poll_write_all(cx, &self.buffer, &mut self.written) {
                Poll::Ready(Ok(())) if self.buffer.is_empty() => {}
                Poll::Ready(Ok(())) => {
                    moved(self.arrival, &self.buffer);
                    self.buffer.clear();
                    self.written = 0;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => return Poll::Pending,
            }
            let buffer = &mut self.buffer;
            let read: Poll<io::Result<_>> = from.poll_read(cx, |bytes, arrival| {
                buffer.extend_from_slice(bytes);
                arrival
            });
            match read {
                Poll::Ready(Ok(Some(arrival))) => self.arrival = Some(arrival),
                Poll::Ready(_) => return Poll::Ready(true),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Tunnels until either side closes, then closes both.
pub(super) async fn run(
    (mut client, from_client): (MaybeTlsStream, Vec<u8>),
    (mut server, from_server, _open): (MaybeTlsStream, Vec<u8>, ConnectionGuard),
    mut observation: RequestObserver,
) {
    let mut up = Pipe { buffer: from_client, written: 0, arrival: None };
    // Bytes received with the response head arrived with it, which is now.
    let mut down = Pipe { buffer: from_server, written: 0, arrival: Some(Arrival::now()) };
    let ending = std::future::poll_fn(|cx| {
        let upward = up.poll(cx, &mut client, &mut server, |_, bytes| observation.on_request_body(bytes));
        let downward = down.poll(cx, &mut server, &mut client, |arrival, bytes| {
            if let Some(arrival) = arrival {
                observation.on_response_body((arrival, bytes), Clock::Monotonic.now(), Gap::ZERO);
            }
        });
        // A client's FIN waits behind the bytes that the server has yet to take. A reset does not.
        let upward = match upward {
            Poll::Pending if !up.buffer.is_empty() => client.poll_reset(cx).map(|()| true),
            upward => upward,
        };
        match (upward, downward) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            // The server may close at any time after the switch.
            (_, Poll::Ready(true)) => Poll::Ready(Ending::Complete),
            (Poll::Ready(true), _) | (_, Poll::Ready(false)) => Poll::Ready(Ending::DownstreamGone),
            (Poll::Ready(false), _) => Poll::Ready(Ending::UpstreamFailed),
        }
    })
    .await;
    observation.end(ending);
}

//! A client's HTTP/1.x connection: its head read in time, its body undone, its answers written.

use std::io;
use std::task::{Context, Poll, ready};

use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::Head;
use crate::net::http1::head_scan::{check_partial_request, end_of_head};
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::error_response::{ErrorOrigin, ProxyError};
use crate::proxy::worker::ConnectionSlot;

/// What a client sends beyond its request is read ahead this far. More stays in the kernel's buffer.
const MAX_READ_AHEAD_BYTES: usize = 64 * 1024;
/// How long, and for how much, a client is listened to after an answer that came before its request was whole. Closing
/// at once would reset the connection, and the answer could be lost with it. A prompt with images has some megabytes;
/// what is malformed may have no end.
pub(super) const LINGER_TIMEOUT: Gap = Gap::from_millis(2_000);
pub(super) const MAX_LINGER_BYTES: usize = 64 << 20;
pub(super) const MAX_MALFORMED_LINGER_BYTES: usize = 1 << 20;
/// Buffers larger than this are given back when they are empty.
const MAX_IDLE_BUFFER_BYTES: usize = 4 * 1024;
/// What every HTTP/2 connection in clear begins with.
pub(super) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One client connection.
pub(super) struct DownstreamConnection {
    pub(super) io: MaybeTlsStream,
    /// Received and not yet consumed, with the arrival of its first bytes.
    pub(super) inbox: Vec<u8>,
    pub(super) arrival: Option<Arrival>,
    /// To be written, from `written` on.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
}

/// What came instead of a request, or a request.
pub(super) enum ReadOutcome {
    /// A whole head.
    Request(Arrival),
    /// An HTTP/2 connection.
    Http2,
    /// Nothing more: the client left, idled too long, or the proxy drains.
    Closed,
    /// Something that is refused.
    Rejected(ProxyError),
}

impl DownstreamConnection {
    pub(super) fn new(io: MaybeTlsStream) -> Self {
        Self { io, inbox: Vec::new(), arrival: None, out: Vec::new(), written: 0 }
    }

    /// Waits for a request head; `since` is when the connection was begun with, or else done with the request before.
    pub(super) async fn read_head(
        &mut self,
        seat: &ConnectionSlot,
        head: &mut Head,
        first: bool,
        since: Stamp,
    ) -> ReadOutcome {
        let limits = seat.worker().config().limits;
        let mut searched = 0;
        let begun = std::future::poll_fn(|cx| {
            loop {
                // Clients of old send an empty line after a body.
                let empty = self.inbox.chunks(2).take_while(|line| *line == b"\r\n").count();
                self.inbox.drain(..empty * 2);
                if first && self.inbox.starts_with(&HTTP2_PREFACE[..18]) {
                    return Poll::Ready(ReadOutcome::Http2);
                }
                if let Some(end) = end_of_head(&self.inbox, searched).filter(|end| *end <= limits.head_bytes) {
                    let parsed = head.parse_request(&self.inbox[..end]);
                    self.inbox.drain(..end);
                    return Poll::Ready(match (parsed, self.arrival) {
                        (Ok(()), Some(arrival)) => ReadOutcome::Request(arrival),
                        (Ok(()), None) => ReadOutcome::Closed,
                        (Err(error), _) => ReadOutcome::Rejected(error.into()),
                    });
                }
                if let Err(error) = check_partial_request(&self.inbox, searched) {
                    return Poll::Ready(ReadOutcome::Rejected(error.into()));
                }
                searched = self.inbox.len();
                if searched > limits.head_bytes {
                    let told = format!("the head is larger than {} bytes (--max-head-bytes)", limits.head_bytes);
                    return Poll::Ready(ReadOutcome::Rejected(ProxyError::new(431, ErrorOrigin::Downstream, told)));
                }
                match self.poll_read(cx) {
                    Poll::Ready(Ok(true)) => continue,
                    Poll::Ready(_) => return Poll::Ready(ReadOutcome::Closed),
                    Poll::Pending => {}
                }
                let idle = self.inbox.is_empty();
                let deadline = match (self.arrival, seat.worker().drain_idle_timeout()) {
                    // What was sent ahead could not be read before; its time begins when it can.
                    (Some(arrival), _) if !idle => arrival.at.max(since).after(limits.head_timeout),
                    (_, Some(Gap::ZERO)) if idle => return Poll::Ready(ReadOutcome::Closed),
                    (_, Some(gap)) if idle => since.after(gap.min(limits.idle_timeout)),
                    _ => since.after(limits.idle_timeout),
                };
                ready!(seat.poll_until(cx, deadline));
                return Poll::Ready(match idle {
                    true => ReadOutcome::Closed,
                    false => ReadOutcome::Rejected(ProxyError::new(
                        408,
                        ErrorOrigin::Downstream,
                        format!("the head took longer than {} (--head-timeout)", limits.head_timeout),
                    )),
                });
            }
        })
        .await;
        seat.clear_deadline();
        begun
    }

    /// Reads into the inbox; false at the client's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let (inbox, first) = (&mut self.inbox, &mut self.arrival);
        let fresh = inbox.is_empty();
        let read = ready!(self.io.poll_read(cx, |bytes, arrival| {
            inbox.extend_from_slice(bytes);
            if fresh {
                *first = Some(arrival);
            }
        }))?;
        Poll::Ready(Ok(read.is_some()))
    }

    /// Ready when the client has left. What it sends meanwhile is read ahead, within bounds.
    pub(super) fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.inbox.len() < MAX_READ_AHEAD_BYTES {
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                // A client that closes only its sending half has left as well: that is how every inference server
                // takes it.
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        self.io.poll_peer_closed(cx)
    }

    /// Writes what is to be written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.io.poll_write_all(cx, &self.out, &mut self.written))?;
        Poll::Ready(Ok(()))
    }

    /// Makes the output empty again, and gives back large buffers.
    pub(super) fn reset_buffers(&mut self) {
        self.out.clear();
        self.written = 0;
        self.out.shrink_to(MAX_IDLE_BUFFER_BYTES);
        if self.inbox.is_empty() {
            self.inbox.shrink_to(MAX_IDLE_BUFFER_BYTES);
        }
    }

    /// Ends the connection after an answer that the client may still be sending against, at most so many bytes.
    pub(super) async fn linger(mut self, most: usize) {
        let listen = async {
            let mut heard = 0;
            std::future::poll_fn(|cx| {
                ready!(self.io.poll_finish(cx)).ok();
                while heard < most {
                    match ready!(self.io.poll_read(cx, |bytes, _| bytes.len())) {
                        Ok(Some(n)) => heard += n,
                        _ => break,
                    }
                }
                Poll::Ready(())
            })
            .await;
        };
        let _in_time = Clock::Monotonic.timeout(LINGER_TIMEOUT, listen).await.is_some();
    }
}

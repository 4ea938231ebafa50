//! A client's HTTP/1.x connection: reads heads within a time limit, decodes bodies, writes responses.

use std::io;
use std::task::{Context, Poll, ready};

use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::net::http1::Head;
use crate::net::http1::head_scan::{check_partial_request, end_of_head};
use crate::net::io::{Arrival, MaybeTlsStream};
use crate::proxy::error_response::{ErrorOrigin, ProxyError};
use crate::proxy::worker_context::ConnectionSlot;

/// Read-ahead limit beyond the request. Further bytes stay in the kernel's buffer.
const MAX_READ_AHEAD_BYTES: usize = 64 * 1024;
/// Limits on reading after a response that preceded the end of its request. An immediate close would reset the
/// connection, and the client could lose the response. A prompt with images has several megabytes; a malformed body may
/// be endless.
pub(super) const LINGER_TIMEOUT: Gap = Gap::from_millis(2_000);
pub(super) const MAX_LINGER_BYTES: usize = 64 << 20;
pub(super) const MAX_MALFORMED_LINGER_BYTES: usize = 1 << 20;
/// Larger buffers are freed once they are empty.
const MAX_IDLE_BUFFER_BYTES: usize = 4 * 1024;
/// First bytes of every HTTP/2 connection without TLS.
pub(super) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection.
pub(super) struct DownstreamConnection {
    pub(super) io: MaybeTlsStream,
    /// Received but not consumed, with the arrival of the first bytes.
    pub(super) inbox: Vec<u8>,
    pub(super) arrival: Option<Arrival>,
    /// Output; the bytes from `written` on are pending.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
}

/// The result of waiting for a request.
pub(super) enum ReadOutcome {
    /// A complete head.
    Request(Arrival),
    /// An HTTP/2 connection.
    Http2,
    /// The client left, idled too long, or the proxy drains.
    Closed,
    /// An invalid request.
    Rejected(ProxyError),
}

impl DownstreamConnection {
    pub(super) fn new(io: MaybeTlsStream) -> Self {
        Self { io, inbox: Vec::new(), arrival: None, out: Vec::new(), written: 0 }
    }

    /// Waits for a request head. `since` is the start of the connection, or the end of the previous request.
    pub(super) async fn read_head(
        &mut self,
        seat: &ConnectionSlot,
        head: &mut Head,
        first: bool,
        since: Stamp,
    ) -> ReadOutcome {
        let limits = seat.worker().config().limits;
        let mut searched = 0;
        let outcome = std::future::poll_fn(|cx| {
            loop {
                // Old clients send an empty line after a body.
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
                    let message = format!("the head is larger than {} bytes (--max-head-bytes)", limits.head_bytes);
                    return Poll::Ready(ReadOutcome::Rejected(ProxyError::new(431, ErrorOrigin::Downstream, message)));
                }
                match self.poll_read(cx) {
                    Poll::Ready(Ok(true)) => continue,
                    Poll::Ready(_) => return Poll::Ready(ReadOutcome::Closed),
                    Poll::Pending => {}
                }
                let idle = self.inbox.is_empty();
                let deadline = match (self.arrival, seat.worker().drain_idle_timeout()) {
                    // Bytes sent ahead of time could not be read earlier; their timeout starts when they can.
                    (Some(arrival), _) if !idle => Some(arrival.at.max(since).after(limits.head_timeout)),
                    (_, Some(Gap::ZERO)) if idle => None,
                    (_, Some(gap)) if idle => Some(since.after(gap.min(limits.idle_timeout))),
                    _ => Some(since.after(limits.idle_timeout)),
                };
                if let Some(deadline) = deadline {
                    ready!(seat.poll_until(cx, deadline));
                }
                // A request that has arrived must not meet a close. The reactor, which may be late, wakes this task.
                if idle && self.io.has_unread() {
                    return Poll::Pending;
                }
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
        outcome
    }

    /// Reads into the inbox; false at the end of the stream.
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

    /// Ready when the client has disconnected. Data sent in the meantime is read ahead, up to the limit.
    pub(super) fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.inbox.len() < MAX_READ_AHEAD_BYTES {
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                // A client that closes only its sending half counts as disconnected, as in every inference server.
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        self.io.poll_peer_closed(cx)
    }

    /// Writes the pending output.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.io.poll_write_all(cx, &self.out, &mut self.written))?;
        Poll::Ready(Ok(()))
    }

    /// Clears the output and frees large buffers.
    pub(super) fn reset_buffers(&mut self) {
        self.out.clear();
        self.written = 0;
        self.out.shrink_to(MAX_IDLE_BUFFER_BYTES);
        if self.inbox.is_empty() {
            self.inbox.shrink_to(MAX_IDLE_BUFFER_BYTES);
        }
    }

    /// Closes the connection after a response to an unfinished request, and first reads at most `most` bytes of that
    /// request.
    pub(super) async fn linger(mut self, most: usize) {
        let listen = async {
            let mut received = 0;
            std::future::poll_fn(|cx| {
                ready!(self.io.poll_finish(cx)).ok();
                while received < most {
                    match ready!(self.io.poll_read(cx, |bytes, _| bytes.len())) {
                        Ok(Some(n)) => received += n,
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

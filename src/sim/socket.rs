//! The connection below HTTP: stamps the writes, and ends as a fault demands.
//!
//! hyper uses the [`Socket`]; the reply's body uses the [`SocketControl`] of the same connection. Through it the body
//! learns that its last event is written, and requests a reset or a hang-up.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::send_log::{SendEntry, SendLog};
use super::token_queue::lock;
use crate::clock::Clock;
use crate::measure::time::Stamp;

/// State shared by a connection's socket and the reply body that is written to it.
#[derive(Debug, Default)]
pub(super) struct SocketControl {
    state: Mutex<SocketState>,
    /// Several replies share the connection (HTTP/2): a write is not an event, and no reply may close it for the
    /// others.
    shared: bool,
}

#[derive(Debug, Default)]
struct SocketState {
    /// The event that hyper has received but not yet written.
    pending: Option<PendingEvent>,
    /// The task that waits until `pending` is written.
    waker: Option<Waker>,
    reset: bool,
    hangup: Hangup,
    /// The socket accepted fewer bytes than offered.
    blocked: bool,
}

#[derive(Debug)]
struct PendingEvent {
    log: Arc<SendLog>,
    tokens: u32,
    planned: Stamp,
    began: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hangup {
    #[default]
    No,
    /// Close after the next write, which completes the reply.
    Ordered,
    /// Close now: reads return end of stream, so hyper closes the idle connection.
    Due,
}

impl SocketControl {
    /// For a connection with several concurrent replies. Nothing is stamped. The body's error resets the stream, not
    /// the connection.
    pub(super) fn shared() -> Self {
        Self { shared: true, ..Self::default() }
    }

    /// Announces the next event for hyper. Until it is written, [`busy`](Self::busy) is true.
    pub(super) fn announce(&self, log: &Arc<SendLog>, tokens: u32, planned: Stamp) {
        if self.shared {
            return;
        }
        lock(&self.state).pending = Some(PendingEvent { log: log.clone(), tokens, planned, began: None });
    }

    /// True if the last event is not yet fully written.
    pub(super) fn busy(&self) -> bool {
        lock(&self.state).pending.is_some()
    }

    /// Wakes `cx` once the last event is written.
    pub(super) fn wake_when_written(&self, cx: &Context<'_>) {
        lock(&self.state).waker = Some(cx.waker().clone());
    }

    /// Makes the drop of the connection send a reset.
    pub(super) fn reset(&self) {
        lock(&self.state).reset = !self.shared;
    }

    /// Closes the connection unannounced after the rest of the reply.
    pub(super) fn hang_up(&self) {
        if !self.shared {
            lock(&self.state).hangup = Hangup::Ordered;
        }
    }

    /// Records one `write` of at most `offered` bytes.
    fn on_write(&self, began: Stamp, taken: &Poll<io::Result<usize>>, offered: usize) {
        let waker = {
            let mut state = lock(&self.state);
            let whole = matches!(taken, Poll::Ready(Ok(taken)) if *taken == offered);
            state.blocked = !whole;
            if !whole {
                if let (Some(pending), Poll::Ready(Ok(1..))) = (&mut state.pending, taken) {
                    pending.began.get_or_insert(began);
                }
                return;
            }
            if state.hangup == Hangup::Ordered {
                state.hangup = Hangup::Due;
            }
            let Some(done) = state.pending.take() else { return };
            done.log.push(SendEntry {
                tokens: done.tokens,
                planned: done.planned,
                began: done.began.unwrap_or(began),
                ended: Clock::Monotonic.now(),
            });
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn hung_up(&self) -> bool {
        let state = lock(&self.state);
        state.hangup == Hangup::Due && !state.blocked
    }
}

/// A connection as used by hyper.
#[derive(Debug)]
pub(super) struct Socket {
    io: TokioIo<TcpStream>,
    wire: Arc<SocketControl>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, wire: Arc<SocketControl>) -> Self {
        Self { io: TokioIo::new(stream), wire }
    }
}

impl Read for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.wire.hung_up() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let began = Clock::Monotonic.now();
        let taken = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wire.on_write(began, &taken, buf.len());
        taken
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Makes hyper join an event, its chunk size and its line ends in one `write`. For events of a few hundred bytes
    /// this is the cheapest way.
    fn is_write_vectored(&self) -> bool {
        false
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if lock(&self.wire.state).reset {
            // Without linger time close() sends RST. An error means that the socket is already closed.
            SockRef::from(self.io.inner()).set_linger(Some(Duration::ZERO)).ok();
        }
    }
}

//! A connection to an HTTP/2 client that collects frames and writes them with one system call.
//!
//! h2 writes and flushes every DATA frame by itself, and the client limits a frame to 16 KiB. A burst would cost one
//! write per frame, and short responses of streams that share a connection one write each. So [`BatchedIo`] accepts
//! all frames that are ready, and the connection's task calls [`BatchedIo::poll_send`] after each poll of hyper. No
//! frame waits for another one: what a poll leaves behind is written before the task waits.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::take;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::Clock;
use crate::net::io::TimestampedIo;
use crate::proxy::downstream::client::{LINGER_TIMEOUT, MAX_MALFORMED_LINGER_BYTES};

/// Bytes that one write may hold: a read of 64 KiB in frames, and the piece after it. h2 waits for the socket when the
/// batch is full.
const MAX_BATCH_BYTES: usize = 128 * 1024;

thread_local! {
    /// The buffer of the thread's next batch: a connection with nothing to write holds none.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// One connection. hyper holds one handle, and the connection's task another.
#[derive(Clone)]
pub(super) struct BatchedIo(Rc<RefCell<Batch>>);

struct Batch {
    io: TimestampedIo,
    bytes: Vec<u8>,
    written: usize,
    /// The socket did not take the whole batch. Nothing is added until it does.
    blocked: bool,
}

impl BatchedIo {
    pub(super) fn new(io: TimestampedIo) -> Self {
        Self(Rc::new(RefCell::new(Batch { io, bytes: Vec::new(), written: 0, blocked: false })))
    }

    /// Closes the connection without a reset. The client sends window updates for its last reply; a close with unread
    /// frames would be a reset, and the client would lose unread data. Ends with the client, if the client is silent
    /// for [`LINGER_TIMEOUT`], or after [`MAX_MALFORMED_LINGER_BYTES`].
    pub(super) async fn linger(mut self) {
        let mut received = 0;
        let mut read = |cx: &mut Context<'_>| {
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            let closed = ready!(Pin::new(&mut self).poll_shutdown(cx));
            let read = ready!(Pin::new(&mut self).poll_read(cx, &mut buffer));
            received += buffer.filled().len();
            let is_over = closed.is_err() || read.is_err() || buffer.filled().is_empty();
            Poll::Ready(is_over || received > MAX_MALFORMED_LINGER_BYTES)
        };
        while Clock::Monotonic.timeout(LINGER_TIMEOUT, poll_fn(&mut read)).await == Some(false) {}
    }

    /// Writes the batch; ready when the socket has taken all of it.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_send(cx)
    }
}

impl Batch {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.blocked = true;
        while self.written < self.bytes.len() {
            let n = ready!(Pin::new(&mut self.io).poll_write(cx, &self.bytes[self.written..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += n;
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        (self.written, self.blocked) = (0, false);
        self.bytes.clear();
        SPARE.set(take(&mut self.bytes));
        Poll::Ready(Ok(()))
    }

    fn append(&mut self, slices: &[IoSlice<'_>]) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE.take();
        }
        let before = self.bytes.len();
        for slice in slices {
            let n = slice.len().min(MAX_BATCH_BYTES - self.bytes.len());
            self.bytes.extend_from_slice(&slice[..n]);
        }
        self.bytes.len() - before
    }
}

impl AsyncRead for BatchedIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BatchedIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut batch = self.0.borrow_mut();
        if batch.blocked || batch.bytes.len() == MAX_BATCH_BYTES {
            ready!(batch.poll_send(cx))?;
        }
        Poll::Ready(Ok(batch.append(slices)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The connection's task writes the batch. Only a batch that the socket did not take holds h2 back.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = self.0.borrow_mut();
        match (batch.blocked, batch.bytes.is_empty()) {
            (true, _) => batch.poll_send(cx),
            (false, true) => Pin::new(&mut batch.io).poll_flush(cx),
            (false, false) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = self.0.borrow_mut();
        ready!(batch.poll_send(cx))?;
        Pin::new(&mut batch.io).poll_shutdown(cx)
    }
}

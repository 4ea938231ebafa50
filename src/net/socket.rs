//! A TCP socket that detects the peer's close even while nothing reads from it.
//!
//! The runtime keeps one readiness flag per socket. Unread bytes in the kernel's buffer keep the flag set, so a task
//! that does not want them cannot wait for anything else. [`TcpConnection::poll_peer_closed`] clears the flag and
//! records that bytes are unread; the next read then asks the kernel instead of the flag. Waiting costs no system call,
//! and epoll reports the peer's FIN or reset despite unread bytes.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::poll_proceed;

/// A TCP connection.
#[derive(Debug)]
pub struct TcpConnection {
    tcp: TcpStream,
    /// The kernel's buffer may hold bytes that the runtime's readiness no longer shows.
    unread: bool,
}

impl TcpConnection {
    /// Wraps a connection from which nothing has been read outside the runtime.
    pub fn new(tcp: TcpStream) -> Self {
        Self { tcp, unread: false }
    }

    /// Returns the runtime's socket.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Ready once the peer has closed its sending half or reset the connection; reads nothing. A FIN stays unseen while
    /// the kernel's full receive buffer keeps the peer from sending it.
    pub fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if ready!(self.tcp.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let readiness = pin!(self.tcp.ready(Interest::READABLE)).poll(&mut Context::from_waker(Waker::noop()));
            match readiness {
                Poll::Ready(Ok(readiness)) if !readiness.is_read_closed() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            self.unread = true;
            let _cleared = self.tcp.try_io(Interest::READABLE, || io::Result::<()>::Err(Errno::EAGAIN.into())).is_err();
        }
    }

    /// Reads with `receive` the bytes that the runtime's readiness does not show, if there may be any.
    pub(super) fn poll_unread<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut receive: impl FnMut(&TcpStream) -> io::Result<R>,
        filled: impl FnOnce(&R) -> bool,
    ) -> Poll<io::Result<Option<R>>> {
        while self.unread {
            let turn = ready!(poll_proceed(cx));
            turn.made_progress();
            match receive(&self.tcp) {
                Ok(received) => {
                    self.unread = filled(&received);
                    return Poll::Ready(Ok(Some(received)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.unread = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(None))
    }
}

impl AsyncRead for TcpConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread {
            let unfilled = buffer.initialize_unfilled();
            let room = unfilled.len();
            let receive = |tcp: &TcpStream| Ok(recv(tcp.as_raw_fd(), unfilled, MsgFlags::MSG_DONTWAIT)?);
            if let Some(n) = ready!(this.poll_unread(cx, receive, |n| *n == room))? {
                buffer.advance(n);
                return Poll::Ready(Ok(()));
            }
        }
        Pin::new(&mut this.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TcpConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}

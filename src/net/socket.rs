//! A TCP socket that shows its peer's leaving even while nothing is read from it.
//!
//! The runtime keeps one readiness flag per socket. While unread bytes lie in the kernel's buffer the flag stays set, and
//! a task that does not want them cannot wait for anything else. [`Socket::poll_peer_closed`] clears the flag and notes
//! that bytes were left unread; the next read then asks the kernel instead of the flag. Waiting costs no system call,
//! and epoll reports the peer's FIN or reset whatever lies unread before it.

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
    /// Bytes may lie in the kernel's buffer that the runtime's readiness no longer tells of.
    unread: bool,
}

impl TcpConnection {
    /// Wraps a connection of which nothing has been read past the runtime.
    pub fn new(tcp: TcpStream) -> Self {
        Self { tcp, unread: false }
    }

    /// The runtime's socket.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Ready when the peer has closed its sending half or reset the connection, without reading what came before.
    /// A FIN that the peer cannot send yet, because its bytes find no room in our kernel's buffer, is not there.
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

    /// Reads with `receive` what the runtime's readiness does not tell of, if anything may lie there.
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

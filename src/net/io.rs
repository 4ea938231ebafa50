//! One connection, plain or TLS, whose reads say when the bytes arrived.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use nix::sys::socket::{MsgFlags, recv};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::rx_timestamp;
use super::socket::TcpConnection;
use crate::clock::{self, Clock};
use crate::measure::record::StampSource;
use crate::measure::time::{Gap, Stamp};

/// The most that one read takes. Each thread has one buffer of this size and no connection has any: an open stream
/// that waits holds no read buffer.
pub const MAX_READ_BYTES: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_READ_BYTES].into_boxed_slice());
}

/// Asks the kernel for receive timestamps. It gives them from a moment later on, so this comes before the first
/// connection; whether it will is known only from the reads.
pub fn enable_rx_timestamps() {
    rx_timestamp::keep_enabled();
}

/// When bytes arrived, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Stamp,
    /// Whether the kernel said so, or the clock after the read.
    pub source: StampSource,
}

impl Arrival {
    /// For what came by some other way than a read.
    pub fn now() -> Self {
        Self::of(None)
    }

    fn of(kernel: Option<u64>) -> Self {
        match kernel {
            Some(wall) => Self { at: clock::of_kernel(wall), source: StampSource::Kernel },
            None => Self { at: Clock::Monotonic.now(), source: StampSource::Read },
        }
    }
}

/// One connection.
#[derive(Debug)]
pub enum MaybeTlsStream {
    /// TCP, with the kernel's receive timestamps where it gives them.
    Plain(TcpConnection),
    /// TLS over TCP. Bytes are stamped when they have been decrypted.
    Tls(Box<TlsStream<TcpConnection>>),
}

impl MaybeTlsStream {
    /// A plain connection.
    pub fn plain(socket: TcpStream) -> Self {
        set_nodelay(&socket);
        rx_timestamp::enable(&socket);
        Self::Plain(TcpConnection::new(socket))
    }

    /// A TLS connection whose handshake is done.
    pub fn tls(stream: TlsStream<TcpConnection>) -> Self {
        set_nodelay(stream.get_ref().0.tcp());
        Self::Tls(Box::new(stream))
    }

    /// The socket underneath.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket.tcp(),
            Self::Tls(stream) => stream.get_ref().0.tcp(),
        }
    }

    /// Ready when the other side has closed its sending half or reset the connection, whatever lies unread before that.
    pub fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_peer_closed(cx),
            Self::Tls(stream) => match &mut **stream {
                TlsStream::Client(stream) => stream.get_mut().0.poll_peer_closed(cx),
                TlsStream::Server(stream) => stream.get_mut().0.poll_peer_closed(cx),
            },
        }
    }

    /// As [`poll_peer_closed`](Self::poll_peer_closed), for a reset alone. One that follows a FIN may go unnoticed.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_peer_closed(cx));
        let readiness = pin!(self.socket().ready(Interest::WRITABLE)).poll(&mut Context::from_waker(Waker::noop()));
        match readiness {
            Poll::Ready(Ok(readiness)) if !readiness.is_write_closed() => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The application protocol agreed on in the TLS handshake.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }

    /// The other side's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket().peer_addr().ok()
    }

    /// Whether the other side has neither closed nor sent anything on a connection that owes us nothing.
    /// The kernel is asked only if the reactor has seen something come since the last read.
    pub fn is_idle_and_open(&mut self) -> bool {
        let socket = self.socket();
        let peek = || Ok(recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?);
        match (socket.try_io(Interest::READABLE, peek), self) {
            (Err(error), _) => error.kind() == io::ErrorKind::WouldBlock,
            (Ok(0), _) | (Ok(_), Self::Plain(_)) => false,
            // TLS sends session tickets after the handshake; let it read them, and see whether anything else comes.
            (Ok(_), io) => matches!(io.poll_read(&mut Context::from_waker(Waker::noop()), |_, _| ()), Poll::Pending),
        }
    }

    /// Reads what has arrived and hands it to `take`. `None` is the end: the other side sent all it will.
    pub fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8], Arrival) -> R,
    ) -> Poll<io::Result<Option<R>>> {
        BUFFER.with_borrow_mut(|buffer| {
            let (n, kernel) = match self {
                Self::Plain(socket) => ready!(rx_timestamp::poll_read(socket, cx, buffer))?,
                Self::Tls(stream) => {
                    let mut read = ReadBuf::new(buffer);
                    match ready!(Pin::new(stream).poll_read(cx, &mut read)) {
                        Ok(()) => (read.filled().len(), None),
                        // A peer that closes without `close_notify` has still closed; framing tells whether too early,
                        // and where there is none, `has_said_its_end`.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => (0, None),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            };
            Poll::Ready(Ok((n > 0).then(|| take(&buffer[..n], Arrival::of(kernel)))))
        })
    }

    /// Whether the end that was read is one that the other side meant: over TLS it says so, and one that nobody has said
    /// may be that of a process that died, or the work of somebody between (RFC 9112, section 9.8).
    pub fn peer_sent_close_notify(&mut self) -> bool {
        let Self::Tls(stream) = self else { return true };
        let state = match &mut **stream {
            TlsStream::Client(stream) => stream.get_mut().1.process_new_packets(),
            TlsStream::Server(stream) => stream.get_mut().1.process_new_packets(),
        };
        state.is_ok_and(|state| state.peer_has_closed())
    }

    /// Reads what has arrived into somebody else's buffer.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<Arrival>> {
        let kernel = match self {
            Self::Plain(socket) => {
                let (n, kernel) = ready!(rx_timestamp::poll_read(socket, cx, buffer.initialize_unfilled()))?;
                buffer.advance(n);
                kernel
            }
            Self::Tls(stream) => {
                ready!(Pin::new(stream).poll_read(cx, buffer))?;
                None
            }
        };
        Poll::Ready(Ok(Arrival::of(kernel)))
    }

    /// Writes all of `bytes` from `written` on, and moves `written` along; ready when everything has been handed to
    /// the kernel.
    pub fn poll_write_all(&mut self, cx: &mut Context<'_>, bytes: &[u8], written: &mut usize) -> Poll<io::Result<()>> {
        while *written < bytes.len() {
            let n = match self {
                Self::Plain(socket) => ready!(Pin::new(socket).poll_write(cx, &bytes[*written..]))?,
                Self::Tls(stream) => ready!(Pin::new(stream).poll_write(cx, &bytes[*written..]))?,
            };
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += n;
        }
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Says that nothing more will be written: `close_notify` and FIN. Never to an inference server that still owes an
    /// answer; every one of them takes that for a disconnect.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// Whether the other side resets the connection within this time.
    pub async fn is_reset(&self, within: Gap) -> bool {
        let error = Clock::Monotonic.timeout(within, self.socket().ready(Interest::ERROR)).await;
        matches!(error, Some(Ok(readiness)) if readiness.is_error())
    }

    /// Closes with a reset instead of a FIN, so that the other side sees the same kind of end that we saw.
    pub fn reset(self) {
        self.set_reset_on_close(true);
    }

    /// Makes every close a reset, or in order again: the kernel's own at the end of this process as well.
    pub fn set_reset_on_close(&self, reset: bool) {
        // Failing to set it leaves an orderly close, which is the next best end.
        let _set = SockRef::from(self.socket()).set_linger(reset.then_some(std::time::Duration::ZERO)).is_ok();
    }
}

fn set_nodelay(socket: &TcpStream) {
    // A token must not wait for the one before it to be acknowledged. An old kernel that refuses costs only delay.
    let _set = socket.set_nodelay(true).is_ok();
}

/// A connection lent to a library that knows nothing of arrivals: each read's arrival is left in a cell, where the
/// library's caller finds it.
#[derive(Debug)]
pub struct TimestampedIo {
    io: MaybeTlsStream,
    /// Received before the library came in.
    prefix: Vec<u8>,
    arrival: Rc<Cell<Option<Arrival>>>,
}

impl TimestampedIo {
    /// Lends `io`, of which `first` has already been received.
    pub fn new(io: MaybeTlsStream, first: Vec<u8>, arrival: Rc<Cell<Option<Arrival>>>) -> Self {
        Self { io, prefix: first, arrival }
    }
}

impl AsyncRead for TimestampedIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            let arrival = ready!(this.io.poll_fill(cx, buffer))?;
            this.arrival.set(Some(arrival));
        } else {
            let n = this.prefix.len().min(buffer.remaining());
            buffer.put_slice(&this.prefix[..n]);
            this.prefix.drain(..n);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TimestampedIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            MaybeTlsStream::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            MaybeTlsStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            MaybeTlsStream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            MaybeTlsStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            MaybeTlsStream::Plain(socket) => Pin::new(socket).poll_flush(cx),
            MaybeTlsStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().io.poll_finish(cx)
    }
}

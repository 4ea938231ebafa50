//! One connection, plain or TLS, whose reads return the bytes' arrival time.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use nix::errno::Errno;
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

/// Maximum size of one read, in bytes. Each thread has one buffer of this size, so a waiting stream holds no read
/// buffer.
pub const MAX_READ_BYTES: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_READ_BYTES].into_boxed_slice());
}

/// Enables kernel receive timestamps. The kernel starts shortly afterwards, so call this before the first connection;
/// only the reads show whether it worked.
pub fn enable_rx_timestamps() {
    rx_timestamp::keep_enabled();
}

/// Arrival time of bytes, with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time of arrival.
    pub at: Stamp,
    /// Source of the time: the kernel, or the clock after the read.
    pub source: StampSource,
}

impl Arrival {
    /// Stamps bytes that did not come from a read.
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
    /// TCP, with the kernel's receive timestamps where available.
    Plain(TcpConnection),
    /// TLS over TCP. Bytes are stamped after decryption.
    Tls(Box<TlsStream<TcpConnection>>),
}

impl MaybeTlsStream {
    /// Wraps a plain connection.
    pub fn plain(socket: TcpStream) -> Self {
        set_nodelay(&socket);
        rx_timestamp::enable(&socket);
        Self::Plain(TcpConnection::new(socket))
    }

    /// Wraps a TLS connection after its handshake.
    pub fn tls(stream: TlsStream<TcpConnection>) -> Self {
        set_nodelay(stream.get_ref().0.tcp());
        Self::Tls(Box::new(stream))
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket.tcp(),
            Self::Tls(stream) => stream.get_ref().0.tcp(),
        }
    }

    /// Ready once the peer has closed its sending half or reset the connection, even if earlier bytes are unread.
    pub fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(socket) => socket.poll_peer_closed(cx),
            Self::Tls(stream) => match &mut **stream {
                TlsStream::Client(stream) => stream.get_mut().0.poll_peer_closed(cx),
                TlsStream::Server(stream) => stream.get_mut().0.poll_peer_closed(cx),
            },
        }
    }

    /// Like [`poll_peer_closed`](Self::poll_peer_closed), for a reset alone. A reset that follows a FIN may go
    /// unnoticed.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_peer_closed(cx));
        let readiness = pin!(self.socket().ready(Interest::WRITABLE)).poll(&mut Context::from_waker(Waker::noop()));
        match readiness {
            Poll::Ready(Ok(readiness)) if !readiness.is_write_closed() => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Returns the application protocol negotiated in the TLS handshake.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket().peer_addr().ok()
    }

    /// Returns `true` if the peer has neither closed nor sent anything on an idle connection. It makes a system call
    /// only if the reactor has seen activity since the last read.
    pub fn is_idle_and_open(&mut self) -> bool {
        let socket = self.socket();
        let peek = || Ok(recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?);
        match (socket.try_io(Interest::READABLE, peek), self) {
            (Err(error), _) => error.kind() == io::ErrorKind::WouldBlock,
            (Ok(0), _) | (Ok(_), Self::Plain(_)) => false,
            // TLS servers send session tickets after the handshake: let TLS read them and check for other data.
            (Ok(_), io) => matches!(io.poll_read(&mut Context::from_waker(Waker::noop()), |_, _| ()), Poll::Pending),
        }
    }

    /// Returns `true` if the kernel holds unread bytes, an end or an error. Unlike
    /// [`is_idle_and_open`](Self::is_idle_and_open) it always asks the kernel: the reactor may not have run since.
    pub fn has_unread(&self) -> bool {
        has_unread(self.socket().as_raw_fd())
    }

    /// Reads the available bytes and passes them to `take`. `None` is the end of the stream.
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
                        // The peer closed without `close_notify`. Framing detects a premature end; for bodies without
                        // framing `peer_sent_close_notify` does.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => (0, None),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            };
            Poll::Ready(Ok((n > 0).then(|| take(&buffer[..n], Arrival::of(kernel)))))
        })
    }

    /// Returns `true` if the peer ended the stream on purpose. Over TLS an end without `close_notify` may be a crash or
    /// an attack (RFC 9112, section 9.8).
    pub fn peer_sent_close_notify(&mut self) -> bool {
        let Self::Tls(stream) = self else { return true };
        let state = match &mut **stream {
            TlsStream::Client(stream) => stream.get_mut().1.process_new_packets(),
            TlsStream::Server(stream) => stream.get_mut().1.process_new_packets(),
        };
        state.is_ok_and(|state| state.peer_has_closed())
    }

    /// Reads the available bytes into the caller's buffer.
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

    /// Writes `bytes` from `written` on and advances `written`. Ready once the kernel has accepted all bytes.
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

    /// Closes the sending half: `close_notify` and FIN. Never call it on an inference server that still owes a reply;
    /// every server treats it as a disconnect.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// Waits at most `within` and returns `true` if the peer resets the connection.
    pub async fn is_reset(&self, within: Gap) -> bool {
        let error = Clock::Monotonic.timeout(within, self.socket().ready(Interest::ERROR)).await;
        matches!(error, Some(Ok(readiness)) if readiness.is_error())
    }

    /// Closes with a reset instead of a FIN, to forward the kind of end that the other side sent.
    pub fn reset(self) {
        self.set_reset_on_close(true);
    }

    /// Switches every later close to a reset, or back to a FIN. It includes the kernel's own close when the process
    /// exits.
    pub fn set_reset_on_close(&self, reset: bool) {
        // If this fails, the connection closes with a FIN, the next best end.
        let _set = SockRef::from(self.socket()).set_linger(reset.then_some(std::time::Duration::ZERO)).is_ok();
    }
}

fn has_unread(socket: RawFd) -> bool {
    recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) != Err(Errno::EWOULDBLOCK)
}

fn set_nodelay(socket: &TcpStream) {
    // A token must not wait for the previous one's acknowledgement. If an old kernel refuses, only delay results.
    let _set = socket.set_nodelay(true).is_ok();
}

/// A connection for libraries that do not know arrival times. Each read stores its arrival in a cell that the library's
/// caller reads.
#[derive(Debug)]
pub struct TimestampedIo {
    io: MaybeTlsStream,
    /// Bytes received before the library took over.
    prefix: Vec<u8>,
    arrival: Rc<Cell<Option<Arrival>>>,
    socket: SocketView,
}

/// The socket of a [`TimestampedIo`] that a library owns.
#[derive(Clone, Debug)]
pub struct SocketView(Rc<Cell<Option<RawFd>>>);

impl SocketView {
    /// Returns `true` if the connection is closed, or like [`MaybeTlsStream::has_unread`].
    pub fn has_unread(&self) -> bool {
        self.0.get().is_none_or(has_unread)
    }
}

impl TimestampedIo {
    /// Wraps `io`, from which `first` has already been read.
    pub fn new(io: MaybeTlsStream, first: Vec<u8>, arrival: Rc<Cell<Option<Arrival>>>) -> Self {
        let socket = SocketView(Rc::new(Cell::new(Some(io.socket().as_raw_fd()))));
        Self { io, prefix: first, arrival, socket }
    }

    /// Returns a view of the socket, for use after a library has taken the connection.
    pub fn socket_view(&self) -> SocketView {
        self.socket.clone()
    }
}

impl Drop for TimestampedIo {
    /// The kernel may give the number to another connection.
    fn drop(&mut self) {
        self.socket.0.set(None);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_sees_an_end_that_the_reactor_has_not_seen() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let far = listener.accept().unwrap().0;
            let io = TimestampedIo::new(MaybeTlsStream::plain(near), Vec::new(), Rc::default());
            let view = io.socket_view();
            assert!(!view.has_unread());
            // Nothing awaits from here on, so the reactor does not run.
            drop(far);
            assert!(view.has_unread());
            drop(io);
            assert_eq!(view.0.get(), None);
        });
    }
}

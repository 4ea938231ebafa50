//! Reads from a TCP socket with the kernel's receive timestamp.
//!
//! On a busy machine 50–250 µs (median) and 0.2–5 ms (p99) pass between the kernel's receipt of a token and the task's
//! read. That is more than the differences under measurement. `SO_TIMESTAMPING` makes the kernel store each segment's
//! receive time; a read returns the last segment's.

use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, TimestampingFlag, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::socket::TcpConnection;

/// Size of one `SCM_TIMESTAMPING` message, in bytes: a header and three timespecs.
const CONTROL_BYTES: usize = 96;

/// Keeps kernel timestamping on for the life of the process. The kernel toggles it with the first and last socket that
/// asks, by patching its own code on every core. Short connections must not cause that.
static ANCHOR: LazyLock<Option<UdpSocket>> = LazyLock::new(|| {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).ok()?;
    request_timestamps(&socket).then_some(socket)
});

fn request_timestamps(socket: &impl AsFd) -> bool {
    let software = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    setsockopt(socket, sockopt::Timestamping, &software).is_ok()
}

pub(super) fn keep_enabled() {
    LazyLock::force(&ANCHOR);
}

/// Requests receive timestamps. Returns `true` if the kernel accepts.
pub(super) fn enable(socket: &TcpStream) -> bool {
    ANCHOR.is_some() && request_timestamps(socket)
}

/// Reads without blocking. Returns the byte count and the kernel's timestamp in nanoseconds since 1970.
///
/// A short read means that the socket is empty. It clears the runtime's readiness, so the next poll waits for the
/// reactor and costs no system call.
pub(super) fn poll_read(
    socket: &mut TcpConnection,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<(usize, Option<u64>)>> {
    let room = buffer.len();
    if let Some(read) = ready!(socket.poll_unread(cx, |tcp| receive(tcp, buffer), |(n, _)| *n == room))? {
        return Poll::Ready(Ok(read));
    }
    let socket = socket.tcp();
    loop {
        ready!(socket.poll_read_ready(cx))?;
        let mut read = None;
        let emptied = socket.try_io(Interest::READABLE, || {
            let received = receive(socket, buffer);
            let empty = match &received {
                Ok((n, _)) => (1..buffer.len()).contains(n),
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            read = Some(received);
            // Reported inside the closure, so that bytes that arrive meanwhile do not lose their readiness.
            if empty { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match read {
            Some(Ok(read)) => return Poll::Ready(Ok(read)),
            Some(Err(error)) if emptied.is_ok() && error.kind() != io::ErrorKind::Interrupted => {
                return Poll::Ready(Err(error));
            }
            _ => {}
        }
    }
}

fn receive(socket: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Option<u64>)> {
    let mut control = [0; CONTROL_BYTES];
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control[..]), MsgFlags::empty())?;
    let stamp = message.cmsgs().ok().and_then(|mut messages| {
        messages.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampsns(stamps) => nanos(stamps.system),
            _ => None,
        })
    });
    Ok((message.bytes, stamp))
}

fn nanos(time: TimeSpec) -> Option<u64> {
    let nanos = u64::try_from(time.tv_sec()).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec()).ok()?;
    (nanos > 0).then_some(nanos)
}

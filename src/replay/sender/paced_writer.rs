//! The paced writer thread writes each request when it is due, in one system call, and does nothing else.
//!
//! A sending thread also reads responses, so other work and other threads delay its writes. This thread only waits and
//! writes, so it can run at real-time priority without occupying a core. Measured p99 write lag, at 5,000 requests per
//! second beside the server on two cores: 700 to 900 µs from a sending thread, 1,000 µs from this thread at normal
//! priority, 40 µs at real-time priority.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::prctl::set_timerslack;
use nix::sys::socket::{MsgFlags, recv, send};
use tokio::sync::oneshot;

use super::job::WireRequest;
use super::priority::request_real_time_priority;
use super::timer_queue::TimerEntry;
use crate::clock::Clock;
use crate::measure::time::Stamp;

/// Queue of scheduled writes; all sending threads of a run share one.
pub(in crate::replay) struct PacedWriter {
    queue: Mutex<WriteQueue>,
    /// Writes in the queue.
    waiting: AtomicUsize,
    /// Signals a new earliest write, or the shutdown.
    changed: Condvar,
}

#[derive(Default)]
struct WriteQueue {
    due: BinaryHeap<Reverse<TimerEntry<ScheduledWrite>>>,
    shut_down: bool,
}

struct ScheduledWrite {
    socket: OwnedFd,
    wire: WireRequest,
    result_tx: oneshot::Sender<WriteResult>,
}

pub(in crate::replay) struct WriteResult {
    pub(in crate::replay) wire: WireRequest,
    /// Time of the first byte.
    pub(in crate::replay) began: Stamp,
    /// Time of the last byte, if the socket accepted all.
    pub(in crate::replay) sent: Option<Stamp>,
    /// Bytes that the socket accepted; `None` if the peer had closed the connection.
    pub(in crate::replay) bytes: Option<usize>,
}

impl PacedWriter {
    /// Starts the thread, which runs until [`shutdown`](Self::shutdown). The thread returns whether it has real-time
    /// priority.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(in crate::replay) fn start() -> io::Result<(Arc<Self>, JoinHandle<bool>)> {
        let pen = Arc::new(Self { queue: Mutex::default(), waiting: AtomicUsize::new(0), changed: Condvar::new() });
        let thread = thread::Builder::new().name("pen".to_owned()).spawn({
            let pen = Arc::clone(&pen);
            move || {
                let urgent = request_real_time_priority();
                // At normal priority the default timer slack delays wake-ups by up to 50 µs.
                _ = set_timerslack(1).is_ok();
                pen.write_all();
                urgent
            }
        })?;
        Ok((pen, thread))
    }

    /// Schedules a write of `wire` to `socket` at `at`; at the same time the lower number goes first. The receiver
    /// fails if the writer shuts down before the write.
    ///
    /// # Errors
    /// The process is out of file descriptors; returns the request.
    pub(in crate::replay) fn enqueue(
        &self,
        at: Stamp,
        number: u64,
        socket: &impl AsFd,
        wire: WireRequest,
    ) -> Result<oneshot::Receiver<WriteResult>, WireRequest> {
        // A duplicate descriptor: the connection may close in the meantime, and another one could get its number.
        let Ok(socket) = socket.as_fd().try_clone_to_owned() else { return Err(wire) };
        let (result_tx, written) = oneshot::channel();
        let mut strokes = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !strokes.shut_down {
            let is_next = strokes.due.peek().is_none_or(|Reverse(next)| at < next.at);
            strokes.due.push(Reverse(TimerEntry { at, number, item: ScheduledWrite { socket, wire, result_tx } }));
            self.waiting.store(strokes.due.len(), Relaxed);
            drop(strokes);
            if is_next {
                self.changed.notify_one();
            }
        }
        Ok(written)
    }

    /// Writes that are not yet due.
    pub(in crate::replay) fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Drops all writes that are not yet due.
    pub(in crate::replay) fn shutdown(&self) {
        let mut strokes = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        strokes.shut_down = true;
        strokes.due.clear();
        self.changed.notify_one();
    }

    fn write_all(&self) {
        let mut strokes = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while !strokes.shut_down {
            let now = Clock::Monotonic.now();
            let Some(next) = strokes.due.peek().map(|Reverse(next)| next.at) else {
                strokes = self.changed.wait(strokes).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if next > now {
                let waited = self.changed.wait_timeout(strokes, next.since(now).into());
                strokes = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let due = strokes.due.pop();
            self.waiting.store(strokes.due.len(), Relaxed);
            drop(strokes);
            if let Some(Reverse(due)) = due {
                due.item.write();
            }
            strokes = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ScheduledWrite {
    fn write(self) {
        let Self { socket, wire, result_tx } = self;
        let began = Clock::Monotonic.now();
        let peeked = recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        let bytes = (peeked == Err(Errno::EAGAIN)).then(|| {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // The read reports a failure again.
            send(socket.as_raw_fd(), &wire.bytes, flags).unwrap_or(0)
        });
        let sent = (bytes == Some(wire.bytes.len())).then(|| Clock::Monotonic.now());
        drop(socket);
        // A closed receiver means that the run was stopped.
        _ = result_tx.send(WriteResult { wire, began, sent, bytes }).is_ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::measure::time::Gap;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn wire(bytes: impl Into<Vec<u8>>) -> WireRequest {
        WireRequest { bytes: bytes.into(), body: 0, _permit: None }
    }

    fn in_millis(millis: u64) -> Stamp {
        Clock::Monotonic.now().after(Gap::from_millis(millis))
    }

    /// Writes these and shuts the writer down with the last.
    fn written(pen: &PacedWriter, socket: &TcpStream, strokes: &[(Stamp, u64, &str)]) -> Vec<WriteResult> {
        let receivers: Vec<_> = strokes
            .iter()
            .map(|(at, number, text)| pen.enqueue(*at, *number, socket, wire(*text)).ok().unwrap())
            .collect();
        receivers.into_iter().map(|receiver| receiver.blocking_recv().unwrap()).collect()
    }

    #[test]
    fn requests_go_in_the_order_of_their_moments_and_numbers_and_never_early() {
        let (pen, thread) = PacedWriter::start().unwrap();
        let (ours, mut theirs) = pair();
        let (soon, later) = (in_millis(200), in_millis(400));
        let strokes = [(later, 3, "d"), (soon, 2, "b"), (later, 4, "e"), (soon, 1, "a"), (soon, 7, "c")];
        let written = written(&pen, &ours, &strokes);
        for (written, (at, ..)) in written.iter().zip(strokes) {
            assert!(written.began >= at && written.sent.is_some_and(|sent| sent >= written.began));
            assert_eq!(written.bytes, Some(1));
        }
        let mut read = [0; 5];
        theirs.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"abcde");
        pen.shutdown();
        thread.join().unwrap();
    }

    #[test]
    fn a_lifted_pen_writes_nothing_and_says_so() {
        let (pen, thread) = PacedWriter::start().unwrap();
        let (ours, mut theirs) = pair();
        let before = pen.enqueue(in_millis(60_000), 1, &ours, wire("a")).ok().unwrap();
        pen.shutdown();
        let after = pen.enqueue(in_millis(0), 2, &ours, wire("b")).ok().unwrap();
        assert!(before.blocking_recv().is_err() && after.blocking_recv().is_err());
        thread.join().unwrap();
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_connection_on_which_the_server_hung_up_is_not_written_to_and_the_request_comes_back() {
        let (pen, _thread) = PacedWriter::start().unwrap();
        let (ours, theirs) = pair();
        drop(theirs);
        ours.peek(&mut [0]).unwrap();
        let written = written(&pen, &ours, &[(in_millis(1), 1, "a")]).remove(0);
        assert_eq!((written.bytes, written.sent), (None, None));
        assert_eq!(written.wire.bytes, b"a");
        pen.shutdown();
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_is_left_to_others() {
        let (pen, _thread) = PacedWriter::start().unwrap();
        let (ours, _theirs) = pair();
        let receiver = pen.enqueue(in_millis(1), 1, &ours, wire(vec![b'a'; 64 << 20])).ok().unwrap();
        let written = receiver.blocking_recv().unwrap();
        assert!(written.bytes.is_some_and(|bytes| bytes > 0 && bytes < 64 << 20), "{:?}", written.bytes);
        assert_eq!(written.sent, None);
        pen.shutdown();
    }
}

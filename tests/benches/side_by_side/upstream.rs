//! The scripted upstream: one thread, one epoll, no work per event but a copy, a clock reading and a write.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::connection::{Connection, Phase};
use crate::script::{HANG_UP, Reply, now};

/// A running upstream; ends when dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Upstream {
    /// Listens on a free port and answers every request with `reply`.
    pub(crate) fn start(reply: Arc<Reply>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server::new(listener, reply)?;
        let stopping = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("upstream".into()).spawn(move || server.run(&stopping))?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("side_by_side: the upstream stopped early: {error}; its last row is not to be trusted");
        }
    }
}

const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

struct Server {
    epoll: Epoll,
    timer: TimerFd,
    armed: bool,
    listener: TcpListener,
    reply: Arc<Reply>,
    connections: HashMap<u64, Connection>,
    /// Due actions by time, with their connections.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    next_id: u64,
    scratch: Vec<u8>,
}

impl Server {
    fn new(listener: TcpListener, reply: Arc<Reply>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
        Ok(Self {
            epoll,
            timer,
            armed: false,
            listener,
            reply,
            connections: HashMap::new(),
            due: BinaryHeap::new(),
            next_id: FIRST_CONNECTION,
            scratch: Vec::new(),
        })
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        while !stop.load(Ordering::Relaxed) {
            let ready = self.epoll.wait(&mut events, 50_u8)?;
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept()?,
                    // Setting the timer again, below, also takes back its readiness.
                    TIMER => {}
                    id => self.serve(id),
                }
            }
            self.act()?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            // Edge-triggered: no system call to change one's mind between reading and writing.
            let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
            self.epoll.add(&socket, EpollEvent::new(interest, self.next_id))?;
            self.connections.insert(self.next_id, Connection::new(socket));
            self.next_id += 1;
        }
    }

    /// Reads and writes what connection `id` is ready for.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.phase == Phase::HangingUp {
            return;
        }
        let outcome = connection.read().and_then(|has_request| {
            if has_request && let Some(at) = connection.begin(&self.reply, id) {
                self.due.push(Reverse((at, id)));
            }
            connection.flush()
        });
        self.settle(id, outcome);
    }

    /// Does everything that is due, then sets the timer for what is next.
    fn act(&mut self) -> io::Result<()> {
        while let Some(&Reverse((at, id))) = self.due.peek() {
            let now = now();
            if at > now {
                let wait = TimeSpec::from_duration(Duration::from_nanos(at - now));
                self.timer.set(Expiration::OneShot(wait), TimerSetTimeFlags::empty())?;
                self.armed = true;
                return Ok(());
            }
            self.due.pop();
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match connection.phase {
                Phase::Paced { next, at } => {
                    self.scratch.clear();
                    self.reply.stamped(next, now, &mut self.scratch);
                    if next + 1 == self.reply.script.events {
                        connection.phase = Phase::Idle;
                    } else {
                        let at = at + self.reply.script.gap;
                        connection.phase = Phase::Paced { next: next + 1, at };
                        self.due.push(Reverse((at, id)));
                    }
                    let outcome = connection.send(&self.scratch);
                    self.settle(id, outcome);
                }
                Phase::HangingUp => {
                    self.connections.remove(&id);
                }
                Phase::Idle => {}
            }
        }
        if std::mem::take(&mut self.armed) {
            self.timer.unset()?;
        }
        Ok(())
    }

    /// Drops a broken connection, and schedules the end of one that has sent everything and closes.
    fn settle(&mut self, id: u64, outcome: io::Result<bool>) {
        match outcome {
            Err(_) => {
                self.connections.remove(&id);
            }
            Ok(true) if self.reply.script.hangs_up => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.phase = Phase::HangingUp;
                    self.due.push(Reverse((now() + spread(id, HANG_UP), id)));
                }
            }
            Ok(_) => {}
        }
    }
}

/// The `id`-th point of a sequence that fills `0..range` evenly (steps of the golden ratio), the same for every peer.
pub(crate) fn spread(id: u64, range: u64) -> u64 {
    let fraction = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (fraction * range) >> 32
}

//! The client over HTTP/1.1: one thread, one epoll; sends requests, counts what comes back, retries nothing.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::http2_client;
use crate::response::{Failure, Response};
use crate::script::{Reply, now, request, stamp};

/// How many requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// One on each connection.
    OneEach,
    /// One after the other on each connection, for so many nanoseconds.
    For(u64),
    /// So many in all, one after the other on each connection.
    Total(usize),
}

/// Work of the client, and the responses that it expects.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    /// How many models are asked for, in turns.
    pub(crate) models: usize,
    pub(crate) work: Work,
    /// Requests at a time on each connection, over HTTP/2; HTTP/1.1 if `None`.
    pub(crate) http2_streams: Option<usize>,
    pub(crate) reply: Arc<Reply>,
    /// Streams whose head has arrived, so that a test can wait until all are open.
    pub(crate) opened: Arc<AtomicUsize>,
}

/// Results of the client.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: usize,
    /// Events that carried text, of replies that came whole.
    pub(crate) events: usize,
    pub(crate) failures: BTreeMap<Failure, usize>,
    /// Nanoseconds from the upstream's write to the client's read, per event; of paced replies only.
    pub(crate) delays: Vec<u64>,
    /// Paced replies whose first event came only after the last one had been sent.
    pub(crate) held_back: usize,
}

impl Tally {
    pub(crate) fn failed(&self) -> usize {
        self.failures.values().sum()
    }
}

/// Connections that may wait for their head at the same time while more are being opened: less than any peer's
/// accept queue.
const RAMP: usize = 32;

/// Silence after which a run is given up, in milliseconds.
const SILENCE: u16 = 10_000;

/// Replies that take at least this many nanoseconds show whether they are forwarded as they come. In shorter ones a
/// delay may be the scheduler's.
const PATIENCE: u64 = 50_000_000;

/// Executes the plan.
///
/// # Errors
/// When the target cannot be connected to, or falls silent.
pub(crate) fn drive(plan: &Plan) -> Result<Tally> {
    if let Some(streams) = plan.http2_streams {
        return http2_client::drive(plan, streams);
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let work = plan.work;
    let total = match work {
        Work::OneEach => plan.connections,
        Work::For(_) => usize::MAX,
        Work::Total(n) => n,
    };
    let ends = if let Work::For(nanos) = work { now() + nanos } else { u64::MAX };
    let requests = (0..plan.models).map(|model| request(&plan.target.to_string(), model)).collect();
    let mut client =
        Client { plan, epoll, requests, left: total, ends, live: 0, slots: Vec::new(), tally: Tally::default() };
    client.run()?;
    Ok(client.tally)
}

struct Client<'a> {
    plan: &'a Plan,
    epoll: Epoll,
    /// One for each model.
    requests: Vec<Vec<u8>>,
    /// Requests that may still be sent.
    left: usize,
    ends: u64,
    /// Connections that are open.
    live: usize,
    slots: Vec<Slot>,
    tally: Tally,
}

struct Slot {
    socket: TcpStream,
    response: Response,
    first_came: Option<u64>,
    last_sent: u64,
    open: bool,
}

impl Client<'_> {
    fn run(&mut self) -> Result<()> {
        let mut events = vec![EpollEvent::empty(); 256];
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.open_more()?;
            if self.live == 0 {
                return Ok(());
            }
            let ready = self.epoll.wait(&mut events, SILENCE)?;
            ensure!(ready > 0, "{} of {} connections wait, and nothing has come for 10 s", self.live, self.slots.len());
            for event in &events[..ready] {
                self.receive(event.data() as usize, &mut buffer)?;
            }
        }
    }

    fn open_more(&mut self) -> Result<()> {
        let missing = self.plan.connections - self.slots.len();
        if missing == 0 {
            return Ok(());
        }
        let waiting = self.slots.iter().filter(|slot| slot.open && !slot.response.has_head()).count();
        for _ in 0..missing.min(RAMP.saturating_sub(waiting)) {
            self.slots.push(Slot::connect(self.plan.target)?);
            self.join(self.slots.len() - 1)?;
        }
        Ok(())
    }

    /// Watches the new connection in `slot` and sends its first request, if there is one to send.
    fn join(&mut self, slot: usize) -> Result<()> {
        self.live += 1;
        self.epoll.add(&self.slots[slot].socket, EpollEvent::new(EpollFlags::EPOLLIN, slot as u64))?;
        self.next_request(slot)
    }

    fn next_request(&mut self, slot: usize) -> Result<()> {
        if self.left == 0 || now() >= self.ends {
            self.close(slot);
            return Ok(());
        }
        self.left -= 1;
        self.tally.requests += 1;
        let Slot { socket, response, first_came, last_sent, .. } = &mut self.slots[slot];
        (*response, *first_came, *last_sent) = (Response::default(), None, 0);
        let request = &self.requests[self.tally.requests % self.requests.len()];
        match socket.write(request) {
            Ok(n) if n == request.len() => Ok(()),
            _ => self.fail(slot, Failure::NoReply),
        }
    }

    fn receive(&mut self, slot: usize, buffer: &mut [u8]) -> Result<()> {
        while self.slots[slot].open {
            let read = self.slots[slot].socket.read(buffer);
            let n = match read {
                Ok(n) if n > 0 => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Ok(_) | Err(_) => return self.fail(slot, self.slots[slot].response.cut()),
            };
            if let Err(failure) = self.take(slot, &buffer[..n]) {
                return self.fail(slot, failure);
            }
            if self.slots[slot].response.is_done() {
                self.complete(slot)?;
            }
            if n < buffer.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn take(&mut self, slot: usize, bytes: &[u8]) -> Result<(), Failure> {
        let now = now();
        let paced = self.plan.reply.script.gap > 0;
        let Slot { response, first_came, last_sent, .. } = &mut self.slots[slot];
        let had_head = response.has_head();
        let delays = &mut self.tally.delays;
        response.feed(bytes, |event| {
            if paced && let Some(sent) = stamp(event) {
                first_came.get_or_insert(now);
                *last_sent = sent;
                delays.push(now.saturating_sub(sent));
            }
        })?;
        if !had_head && response.has_head() {
            self.plan.opened.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn complete(&mut self, slot: usize) -> Result<()> {
        let Slot { socket, response, first_came, last_sent, .. } = &mut self.slots[slot];
        let reply = &self.plan.reply;
        if response.events != reply.all_events || response.payload != reply.payload {
            return self.fail(slot, Failure::Altered);
        }
        self.tally.events += reply.script.events;
        let long = reply.script.events as u64 * reply.script.gap >= PATIENCE;
        if long && first_came.is_some_and(|first| first >= *last_sent) {
            self.tally.held_back += 1;
        }
        // A connection that the server has closed by now is one that no request was lost on.
        let idle = matches!(socket.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        if idle && !response.closes { self.next_request(slot) } else { self.reconnect(slot) }
    }

    fn fail(&mut self, slot: usize, failure: Failure) -> Result<()> {
        *self.tally.failures.entry(failure).or_default() += 1;
        self.reconnect(slot)
    }

    fn reconnect(&mut self, slot: usize) -> Result<()> {
        self.close(slot);
        if self.left == 0 || now() >= self.ends {
            return Ok(());
        }
        self.slots[slot] = Slot::connect(self.plan.target)?;
        self.join(slot)
    }

    fn close(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if std::mem::take(&mut slot.open) {
            self.live -= 1;
            // Fails only where the peer has closed already.
            let _closed =
                slot.socket.shutdown(std::net::Shutdown::Both).is_ok() && self.epoll.delete(&slot.socket).is_ok();
        }
    }
}

impl Slot {
    fn connect(target: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(target)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, response: Response::default(), first_came: None, last_sent: 0, open: true })
    }
}

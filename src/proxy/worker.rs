//! A worker: one thread, one runtime, the connections it was given and its own connections to the upstream.
//!
//! A request lives on one thread from its first byte to its last: no token wakes another core, and what a worker owns
//! needs no lock. The acceptor gives each new connection to the worker that has the fewest.
//!
//! # It sets no timer
//! One that waited would be set in the kernel and taken back around every event of a stream. What has to be looked at
//! some time is looked at with a [`beat`], which another thread makes: idle connections, and clients that keep a
//! connection waiting. Only what is rare, such as connecting, has a timer of its own while it lasts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::Drain;
use super::downstream;
use super::shared::Shared;
use super::upstream::{Connector, Upstream};
use crate::clock::Clock;
use crate::config::ProxyConfig;
use crate::export::levels::Levels;
use crate::export::queue::Reporter;
use crate::measure::time::{Gap, Stamp};

/// How often workers look at what waits: time limits of connections are kept to this.
const BEAT: Gap = Gap::from_millis(250);

/// How long a connection that was in use is kept for another request beside a successor: a reply can tell the client to
/// close, and a close between two requests may meet the next one on its way.
const IDLE_BESIDE_SUCCESSOR: Gap = Gap::from_millis(5_000);

/// A connection on its way from the acceptor to a worker.
pub(super) struct Accepted {
    pub(super) socket: std::net::TcpStream,
    /// Its place among the connections allowed.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) counted: Counted,
}

/// Counts a connection at its worker until this is dropped, whether it got there or not.
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn at(worker: &Handle) -> Self {
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&worker.connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the acceptor knows of a worker.
pub(super) struct Handle {
    pub(super) inbox: mpsc::Sender<Accepted>,
    pub(super) connections: Arc<AtomicUsize>,
}

/// See the module.
pub(super) struct Worker {
    shared: Arc<Shared>,
    levels: Arc<Levels>,
    upstream: Upstream,
    connections: Arc<AtomicUsize>,
    /// While draining: how long after its last reply a connection may still ask.
    draining: Cell<Option<Gap>>,
    stopped: Cell<bool>,
    /// The last beat.
    looked: Cell<Stamp>,
    seats: RefCell<HashMap<u64, Rc<Wait>>>,
    next_seat: Cell<u64>,
}

impl Worker {
    /// The configuration in force.
    pub(super) fn config(&self) -> arc_swap::Guard<Arc<ProxyConfig>> {
        self.shared.config.load()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// What is open here.
    pub(super) fn levels(&self) -> &Arc<Levels> {
        &self.levels
    }

    /// A place among the open streams, if fewer than `limit` are. It is held until the stream's last byte.
    pub(super) fn admit(self: &Rc<Self>, limit: usize) -> Option<Permit> {
        let permit = Permit(Rc::clone(self));
        (self.shared.open.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// Whether connections should end as soon as they owe no answer.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// While draining: how long after its last reply a connection may still ask.
    pub(super) fn may_ask_for(&self) -> Option<Gap> {
        self.draining.get()
    }

    /// Whether time is up: what is dropped from now on is dropped by us.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    fn drain(&self, how: Drain) {
        self.draining.set(Some(if how == Drain::TakenOver { IDLE_BESIDE_SUCCESSOR } else { Gap::ZERO }));
        self.wake(|_| true);
    }

    /// Looks after what waits.
    fn look(&self) {
        self.upstream.tidy();
        let now = Clock::Monotonic.now();
        self.looked.set(now);
        self.wake(|wait| wait.until.get().is_some_and(|until| until <= now));
    }

    fn wake(&self, which: impl Fn(&Wait) -> bool) {
        for wait in self.seats.borrow().values().filter(|wait| which(wait)) {
            if let Some(waker) = wait.waker.take() {
                waker.wake();
            }
        }
    }
}

/// See [`Worker::admit`].
pub(super) struct Permit(Rc<Worker>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection's task waits for.
#[derive(Default)]
struct Wait {
    /// Wakes it when draining begins, and when `until` has passed.
    waker: Cell<Option<Waker>>,
    until: Cell<Option<Stamp>>,
}

/// A connection's place at its worker, which wakes it when draining begins and when it has waited too long.
pub(super) struct Seat {
    worker: Rc<Worker>,
    number: u64,
    wait: Rc<Wait>,
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Seat {
    fn take(worker: Rc<Worker>, permit: OwnedSemaphorePermit, counted: Counted) -> Self {
        let number = worker.next_seat.replace(worker.next_seat.get() + 1);
        let wait = Rc::<Wait>::default();
        worker.seats.borrow_mut().insert(number, Rc::clone(&wait));
        Self { worker, number, wait, _permit: permit, _counted: counted }
    }

    /// Ready when a beat has found `until` passed: nobody reads a clock to wait. Wakes this task when draining begins,
    /// too.
    pub(super) fn poll_until(&self, cx: &Context<'_>, until: Stamp) -> Poll<()> {
        if self.worker.looked.get() >= until {
            return Poll::Ready(());
        }
        self.wait.until.set(Some(until));
        let known = self.wait.waker.take().filter(|known| known.will_wake(cx.waker()));
        self.wait.waker.set(Some(known.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }

    /// What was waited for has come.
    pub(super) fn waits_no_more(&self) {
        self.wait.until.set(None);
    }

    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.worker.seats.borrow_mut().remove(&self.number);
    }
}

/// A worker, on this thread until it has drained.
pub(super) async fn run(
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Accepted>,
    connections: Arc<AtomicUsize>,
    drain: watch::Receiver<Drain>,
) {
    let levels = shared.gauges.levels();
    let connector = Connector::new(Arc::clone(&shared), Arc::clone(&levels));
    let worker = Rc::new(Worker {
        shared,
        levels,
        upstream: Upstream::new(connector),
        connections,
        draining: Cell::new(None),
        stopped: Cell::new(false),
        looked: Cell::default(),
        seats: RefCell::default(),
        next_seat: Cell::new(0),
    });
    tokio::task::spawn_local(look_after(Rc::downgrade(&worker), Arc::clone(worker.shared())));
    serve(&worker, inbox, drain).await;
}

/// Takes connections as long as the acceptor hands them on, then waits for the last one to end, or for the order to stop.
async fn serve(worker: &Rc<Worker>, mut inbox: mpsc::Receiver<Accepted>, mut drain: watch::Receiver<Drain>) {
    loop {
        tokio::select! {
            accepted = inbox.recv() => match accepted {
                Some(accepted) => begin(worker, accepted),
                None => break,
            },
            begun = drain.wait_for(|drain| *drain != Drain::Serving), if !worker.is_draining() => {
                worker.drain(begun.map_or(Drain::Stop, |drain| *drain));
            }
        }
    }
    if !worker.is_draining() {
        let how = *drain.borrow();
        worker.drain(how);
    }
    let clock = Clock::Monotonic;
    while worker.connections.load(Ordering::Relaxed) > 0 && *drain.borrow() != Drain::Stop {
        tokio::select! {
            _ = drain.changed() => {}
            () = clock.sleep(Gap::from_millis(10)) => {}
        }
    }
    worker.stopped.set(true);
}

fn begin(worker: &Rc<Worker>, accepted: Accepted) {
    let seat = Seat::take(Rc::clone(worker), accepted.permit, accepted.counted);
    // A socket that cannot be registered is closed, which is all that can be said to it.
    if let Ok(socket) = TcpStream::from_std(accepted.socket) {
        tokio::task::spawn_local(downstream::serve(socket, seat));
    }
}

/// Looks after what waits, with every beat.
async fn look_after(worker: std::rc::Weak<Worker>, shared: Arc<Shared>) {
    loop {
        shared.beat.notified().await;
        let Some(worker) = worker.upgrade() else { return };
        worker.look();
    }
}

/// Makes the workers' beat; belongs on a thread that forwards nothing.
pub(super) async fn beat(shared: Arc<Shared>) {
    loop {
        Clock::Monotonic.sleep(BEAT).await;
        shared.beat.notify_waiters();
    }
}

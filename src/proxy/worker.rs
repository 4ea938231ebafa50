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

use super::DrainState;
use super::downstream;
use super::upstream::{UpstreamClient, UpstreamConnector};
use super::worker_shared::WorkerShared;
use crate::clock::Clock;
use crate::config::ProxyConfig;
use crate::export::queue::Reporter;
use crate::export::thread_gauges::ThreadGauges;
use crate::measure::time::{Gap, Stamp};

/// How often workers look at what waits: time limits of connections are kept to this.
const TICK_INTERVAL: Gap = Gap::from_millis(250);

/// How long a connection that was in use is kept for another request beside a successor: a reply can tell the client to
/// close, and a close between two requests may meet the next one on its way.
const HANDOVER_IDLE_TIMEOUT: Gap = Gap::from_millis(5_000);

/// A connection on its way from the acceptor to a worker.
pub(super) struct AcceptedConnection {
    pub(super) socket: std::net::TcpStream,
    /// Its place among the connections allowed.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) count_guard: ConnectionCountGuard,
}

/// Counts a connection at its worker until this is dropped, whether it got there or not.
pub(super) struct ConnectionCountGuard(Arc<AtomicUsize>);

impl ConnectionCountGuard {
    pub(super) fn new(worker: &WorkerHandle) -> Self {
        worker.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&worker.connections))
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the acceptor knows of a worker.
pub(super) struct WorkerHandle {
    pub(super) inbox: mpsc::Sender<AcceptedConnection>,
    pub(super) connections: Arc<AtomicUsize>,
}

/// See the module.
pub(super) struct WorkerContext {
    shared: Arc<WorkerShared>,
    levels: Arc<ThreadGauges>,
    upstream: UpstreamClient,
    connections: Arc<AtomicUsize>,
    /// While draining: how long after its last reply a connection may still ask.
    draining: Cell<Option<Gap>>,
    stopped: Cell<bool>,
    /// The last beat.
    last_tick: Cell<Stamp>,
    slots: RefCell<HashMap<u64, Rc<Deadline>>>,
    next_slot: Cell<u64>,
}

impl WorkerContext {
    /// The configuration in force.
    pub(super) fn config(&self) -> arc_swap::Guard<Arc<ProxyConfig>> {
        self.shared.config.load()
    }

    pub(super) fn shared(&self) -> &Arc<WorkerShared> {
        &self.shared
    }

    pub(super) fn upstream(&self) -> &UpstreamClient {
        &self.upstream
    }

    /// What is open here.
    pub(super) fn levels(&self) -> &Arc<ThreadGauges> {
        &self.levels
    }

    /// A place among the open streams, if fewer than `limit` are. It is held until the stream's last byte.
    pub(super) fn admit(self: &Rc<Self>, limit: usize) -> Option<StreamPermit> {
        let permit = StreamPermit(Rc::clone(self));
        (self.shared.open_streams.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// Whether connections should end as soon as they owe no answer.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// While draining: how long after its last reply a connection may still ask.
    pub(super) fn drain_idle_timeout(&self) -> Option<Gap> {
        self.draining.get()
    }

    /// Whether time is up: what is dropped from now on is dropped by us.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    fn drain(&self, how: DrainState) {
        self.draining.set(Some(if how == DrainState::TakenOver { HANDOVER_IDLE_TIMEOUT } else { Gap::ZERO }));
        self.wake(|_| true);
    }

    /// Looks after what waits.
    fn tick(&self) {
        self.upstream.evict();
        let now = Clock::Monotonic.now();
        self.last_tick.set(now);
        self.wake(|wait| wait.until.get().is_some_and(|until| until <= now));
    }

    fn wake(&self, which: impl Fn(&Deadline) -> bool) {
        for wait in self.slots.borrow().values().filter(|wait| which(wait)) {
            if let Some(waker) = wait.waker.take() {
                waker.wake();
            }
        }
    }
}

/// See [`Worker::admit`].
pub(super) struct StreamPermit(Rc<WorkerContext>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.shared.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection's task waits for.
#[derive(Default)]
struct Deadline {
    /// Wakes it when draining begins, and when `until` has passed.
    waker: Cell<Option<Waker>>,
    until: Cell<Option<Stamp>>,
}

/// A connection's place at its worker, which wakes it when draining begins and when it has waited too long.
pub(super) struct ConnectionSlot {
    worker: Rc<WorkerContext>,
    number: u64,
    deadline: Rc<Deadline>,
    _permit: OwnedSemaphorePermit,
    _count_guard: ConnectionCountGuard,
}

impl ConnectionSlot {
    fn new(worker: Rc<WorkerContext>, permit: OwnedSemaphorePermit, counted: ConnectionCountGuard) -> Self {
        let number = worker.next_slot.replace(worker.next_slot.get() + 1);
        let wait = Rc::<Deadline>::default();
        worker.slots.borrow_mut().insert(number, Rc::clone(&wait));
        Self { worker, number, deadline: wait, _permit: permit, _count_guard: counted }
    }

    /// Ready when a beat has found `until` passed: nobody reads a clock to wait. Wakes this task when draining begins,
    /// too.
    pub(super) fn poll_until(&self, cx: &Context<'_>, until: Stamp) -> Poll<()> {
        if self.worker.last_tick.get() >= until {
            return Poll::Ready(());
        }
        self.deadline.until.set(Some(until));
        let known = self.deadline.waker.take().filter(|known| known.will_wake(cx.waker()));
        self.deadline.waker.set(Some(known.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }

    /// What was waited for has come.
    pub(super) fn clear_deadline(&self) {
        self.deadline.until.set(None);
    }

    pub(super) fn worker(&self) -> &Rc<WorkerContext> {
        &self.worker
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.worker.slots.borrow_mut().remove(&self.number);
    }
}

/// A worker, on this thread until it has drained.
pub(super) async fn run(
    shared: Arc<WorkerShared>,
    inbox: mpsc::Receiver<AcceptedConnection>,
    connections: Arc<AtomicUsize>,
    drain: watch::Receiver<DrainState>,
) {
    let levels = shared.gauges.add_thread();
    let connector = UpstreamConnector::new(Arc::clone(&shared), Arc::clone(&levels));
    let worker = Rc::new(WorkerContext {
        shared,
        levels,
        upstream: UpstreamClient::new(connector),
        connections,
        draining: Cell::new(None),
        stopped: Cell::new(false),
        last_tick: Cell::default(),
        slots: RefCell::default(),
        next_slot: Cell::new(0),
    });
    tokio::task::spawn_local(maintain(Rc::downgrade(&worker), Arc::clone(worker.shared())));
    serve(&worker, inbox, drain).await;
}

/// Takes connections as long as the acceptor hands them on, then waits for the last one to end, or for the order to stop.
async fn serve(
    worker: &Rc<WorkerContext>,
    mut inbox: mpsc::Receiver<AcceptedConnection>,
    mut drain: watch::Receiver<DrainState>,
) {
    loop {
        tokio::select! {
            accepted = inbox.recv() => match accepted {
                Some(accepted) => begin(worker, accepted),
                None => break,
            },
            begun = drain.wait_for(|drain| *drain != DrainState::Serving), if !worker.is_draining() => {
                worker.drain(begun.map_or(DrainState::Stop, |drain| *drain));
            }
        }
    }
    if !worker.is_draining() {
        let how = *drain.borrow();
        worker.drain(how);
    }
    let clock = Clock::Monotonic;
    while worker.connections.load(Ordering::Relaxed) > 0 && *drain.borrow() != DrainState::Stop {
        tokio::select! {
            _ = drain.changed() => {}
            () = clock.sleep(Gap::from_millis(10)) => {}
        }
    }
    worker.stopped.set(true);
}

fn begin(worker: &Rc<WorkerContext>, accepted: AcceptedConnection) {
    let seat = ConnectionSlot::new(Rc::clone(worker), accepted.permit, accepted.count_guard);
    // A socket that cannot be registered is closed, which is all that can be said to it.
    if let Ok(socket) = TcpStream::from_std(accepted.socket) {
        tokio::task::spawn_local(downstream::serve(socket, seat));
    }
}

/// Looks after what waits, with every beat.
async fn maintain(worker: std::rc::Weak<WorkerContext>, shared: Arc<WorkerShared>) {
    loop {
        shared.tick.notified().await;
        let Some(worker) = worker.upgrade() else { return };
        worker.tick();
    }
}

/// Makes the workers' beat; belongs on a thread that forwards nothing.
pub(super) async fn ticker(shared: Arc<WorkerShared>) {
    loop {
        Clock::Monotonic.sleep(TICK_INTERVAL).await;
        shared.tick.notify_waiters();
    }
}

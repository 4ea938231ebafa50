//! A worker: one thread, one runtime, its client connections, and its own upstream connections.
//!
//! A request stays on one thread from its first byte to its last. So no token wakes another core, and a worker's state
//! needs no locks. The acceptor gives each new connection to the worker with the fewest.
//!
//! # No timers
//! A timer per wait would be set and cancelled in the kernel around every event of a stream. Instead, a [`ticker`] on
//! another thread wakes the workers periodically to check idle connections and client timeouts. Only rare waits, such
//! as connecting, use their own timer.

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
use crate::export::control::queue::Reporter;
use crate::export::registry::thread_gauges::ThreadGauges;
use crate::measure::time::{Gap, Stamp};

/// Interval of the workers' checks, and so the resolution of connection timeouts.
const TICK_INTERVAL: Gap = Gap::from_millis(250);

/// Beside a successor, a recently used connection stays open this long for another request. A response can announce the
/// close; a close between two requests may race with the next one.
const HANDOVER_IDLE_TIMEOUT: Gap = Gap::from_millis(5_000);

/// An accepted connection on its way to a worker.
pub(super) struct AcceptedConnection {
    pub(super) socket: std::net::TcpStream,
    /// Counts towards the connection limit.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) count_guard: ConnectionCountGuard,
}

/// Counts a connection at its worker until dropped, even if it never arrives there.
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

/// The acceptor's view of a worker.
pub(super) struct WorkerHandle {
    pub(super) inbox: mpsc::Sender<AcceptedConnection>,
    pub(super) connections: Arc<AtomicUsize>,
}

/// A worker's state, shared by its tasks.
pub(super) struct WorkerContext {
    shared: Arc<WorkerShared>,
    levels: Arc<ThreadGauges>,
    upstream: UpstreamClient,
    connections: Arc<AtomicUsize>,
    /// While draining: how long after its last response a connection may send another request.
    draining: Cell<Option<Gap>>,
    stopped: Cell<bool>,
    /// Time of the last tick.
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

    /// This worker's gauges.
    pub(super) fn levels(&self) -> &Arc<ThreadGauges> {
        &self.levels
    }

    /// Reserves an open stream, if fewer than `limit` are open. The permit lasts until the stream's last byte.
    pub(super) fn admit(self: &Rc<Self>, limit: usize) -> Option<StreamPermit> {
        let permit = StreamPermit(Rc::clone(self));
        (self.shared.open_streams.fetch_add(1, Ordering::Relaxed) < limit).then_some(permit)
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// Whether connections should close once they owe no response.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// While draining: how long after its last response a connection may send another request.
    pub(super) fn drain_idle_timeout(&self) -> Option<Gap> {
        self.draining.get()
    }

    /// Whether the drain deadline has passed: from then on the proxy itself causes the drops.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    fn drain(&self, how: DrainState) {
        self.draining.set(Some(if how == DrainState::TakenOver { HANDOVER_IDLE_TIMEOUT } else { Gap::ZERO }));
        self.wake(|_| true);
    }

    /// Checks idle connections and deadlines.
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

/// Reserved by [`WorkerContext::admit`].
pub(super) struct StreamPermit(Rc<WorkerContext>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.shared.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The deadline of a connection's task.
#[derive(Default)]
struct Deadline {
    /// Wakes the task when draining begins, or once `until` has passed.
    waker: Cell<Option<Waker>>,
    until: Cell<Option<Stamp>>,
}

/// A connection's registration at its worker, which wakes it when draining begins or its deadline passes.
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

    /// Ready once a tick is past `until`, so that a wait reads no clock. Also wakes the task when draining begins.
    pub(super) fn poll_until(&self, cx: &Context<'_>, until: Stamp) -> Poll<()> {
        if self.worker.last_tick.get() >= until {
            return Poll::Ready(());
        }
        self.deadline.until.set(Some(until));
        let known = self.deadline.waker.take().filter(|known| known.will_wake(cx.waker()));
        self.deadline.waker.set(Some(known.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }

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

/// Runs a worker on this thread until it has drained.
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

/// Serves connections from the acceptor, then waits for the last one to end, or for the stop.
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
    // If a socket cannot be registered, dropping it is the only possible response.
    if let Ok(socket) = TcpStream::from_std(accepted.socket) {
        tokio::task::spawn_local(downstream::serve(socket, seat));
    }
}

/// Runs the checks on every tick.
async fn maintain(worker: std::rc::Weak<WorkerContext>, shared: Arc<WorkerShared>) {
    loop {
        shared.tick.notified().await;
        let Some(worker) = worker.upgrade() else { return };
        worker.tick();
    }
}

/// Ticks the workers; belongs on a thread that forwards nothing.
pub(super) async fn ticker(shared: Arc<WorkerShared>) {
    loop {
        Clock::Monotonic.sleep(TICK_INTERVAL).await;
        shared.tick.notify_waiters();
    }
}

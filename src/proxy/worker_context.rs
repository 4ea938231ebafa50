//! A worker's state: what its connections share, and their registrations.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::DrainState;
use super::error_response::ProxyError;
use super::upstream::UpstreamClient;
use super::upstreams::Upstreams;
use super::worker_handle::ConnectionCountGuard;
use super::worker_shared::WorkerShared;
use crate::clock::Clock;
use crate::config::ProxyConfig;
use crate::export::control::queue::Reporter;
use crate::export::registry::thread_gauges::ThreadGauges;
use crate::measure::time::{Gap, Stamp};
use crate::measure::work_budget::{FORWARDING_RESERVE, WorkReserve};

/// Beside a successor, a recently used connection stays open this long for another request. A response can announce the
/// close; a close between two requests may race with the next one.
const HANDOVER_IDLE_TIMEOUT: Gap = Gap::from_millis(5_000);
/// Health probes that may be open beyond `max_streams`: a kubelet that gets no answer kills the server with its streams.
const MAX_EXTRA_PROBES: usize = 16;

/// A worker's state, shared by its tasks.
pub(super) struct WorkerContext {
    shared: Arc<WorkerShared>,
    levels: Arc<ThreadGauges>,
    upstreams: Upstreams,
    /// Limits what observing all of the worker's bodies costs.
    work_reserve: WorkReserve,
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
    pub(super) fn new(shared: Arc<WorkerShared>, levels: Arc<ThreadGauges>, connections: Arc<AtomicUsize>) -> Self {
        Self {
            upstreams: Upstreams::new(&shared, &levels),
            shared,
            levels,
            work_reserve: WorkReserve::new(FORWARDING_RESERVE),
            connections,
            draining: Cell::new(None),
            stopped: Cell::new(false),
            last_tick: Cell::default(),
            slots: RefCell::default(),
            next_slot: Cell::new(0),
        }
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> arc_swap::Guard<Arc<ProxyConfig>> {
        self.shared.config.load()
    }

    pub(super) fn shared(&self) -> &Arc<WorkerShared> {
        &self.shared
    }

    /// The client for a connection's requests. In transparent mode the connection must have sent its first byte.
    pub(super) fn upstream_of(&self, socket: &TcpStream) -> Result<Rc<UpstreamClient>, ProxyError> {
        self.upstreams.of(socket, &self.shared, &self.levels)
    }

    /// This worker's gauges.
    pub(super) fn levels(&self) -> &Arc<ThreadGauges> {
        &self.levels
    }

    /// Reserves an open stream, if the limit allows another one. The permit lasts until the stream's last byte.
    ///
    /// # Errors
    /// If `max_streams` are open, and further health probes too.
    pub(super) fn admit(self: &Rc<Self>, is_probe: bool) -> Result<StreamPermit, ProxyError> {
        let limit = self.config().limits.streams;
        let extra = if is_probe { MAX_EXTRA_PROBES } else { 0 };
        let permit = StreamPermit(Rc::clone(self));
        let is_free = self.shared.open_streams.fetch_add(1, Ordering::Relaxed) < limit.saturating_add(extra);
        is_free.then_some(permit).ok_or_else(|| ProxyError::too_many_streams(limit))
    }

    /// The work reserve that all bodies of this worker share.
    pub(super) fn work_reserve(&self) -> &WorkReserve {
        &self.work_reserve
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// True if connections should close once they owe no response.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get().is_some()
    }

    /// While draining: how long after its last response a connection may send another request.
    pub(super) fn drain_idle_timeout(&self) -> Option<Gap> {
        self.draining.get()
    }

    /// True if the drain deadline has passed: from then on the proxy itself causes the drops.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// True if a connection is open, or on its way to this worker.
    pub(super) fn has_connections(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    /// Passes the drain deadline.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
    }

    /// Wakes connections, which close once they owe no response.
    pub(super) fn drain(&self, how: DrainState) {
        self.draining.set(Some(if how == DrainState::TakenOver { HANDOVER_IDLE_TIMEOUT } else { Gap::ZERO }));
        self.wake(|_| true);
    }

    /// Checks idle connections and deadlines.
    pub(super) fn tick(&self) {
        self.upstreams.evict();
        let now = Clock::Monotonic.now();
        self.work_reserve.refill(now.since(self.last_tick.replace(now)));
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
    pub(super) fn new(worker: Rc<WorkerContext>, permit: OwnedSemaphorePermit, counted: ConnectionCountGuard) -> Self {
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

//! A worker: one thread, one runtime, its client connections, and its own upstream connections.
//!
//! A request stays on one thread from its first byte to its last. So no token wakes another core, and a worker's state
//! needs no locks. The acceptor gives each new connection to the worker with the fewest.
//!
//! # No timers
//! A timer per wait would be set and cancelled in the kernel around every event of a stream. Instead, a [`ticker`] on
//! another thread wakes the workers periodically to check idle connections and client timeouts. Only rare waits, such
//! as connecting, use their own timer.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::DrainState;
use super::downstream;
use super::worker_context::{ConnectionSlot, WorkerContext};
use super::worker_handle::AcceptedConnection;
use super::worker_shared::WorkerShared;
use crate::clock::Clock;
use crate::measure::time::Gap;

/// Interval of the workers' checks, and so the resolution of connection timeouts.
const TICK_INTERVAL: Gap = Gap::from_millis(250);

/// Runs a worker on this thread until it has drained.
pub(super) async fn run(
    shared: Arc<WorkerShared>,
    inbox: mpsc::Receiver<AcceptedConnection>,
    connections: Arc<AtomicUsize>,
    drain: watch::Receiver<DrainState>,
) {
    let levels = shared.gauges.add_thread();
    let worker = Rc::new(WorkerContext::new(shared, levels, connections));
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
            state = drain.wait_for(|drain| *drain != DrainState::Serving), if !worker.is_draining() => {
                worker.drain(state.map_or(DrainState::Stop, |drain| *drain));
            }
        }
    }
    if !worker.is_draining() {
        let how = *drain.borrow();
        worker.drain(how);
    }
    let clock = Clock::Monotonic;
    while worker.has_connections() && *drain.borrow() != DrainState::Stop {
        tokio::select! {
            _ = drain.changed() => {}
            () = clock.sleep(Gap::from_millis(10)) => {}
        }
    }
    worker.stop();
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

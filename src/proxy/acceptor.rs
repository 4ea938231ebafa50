//! Accepts connections and assigns each to the worker with the fewest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::DrainState;
use super::worker_handle::{AcceptedConnection, ConnectionCountGuard, WorkerHandle};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// Pause when the process is out of descriptors; new connections wait in the kernel's queue.
const ACCEPT_RETRY_DELAY: Gap = Gap::from_millis(100);
/// Minimum time between two log messages about it.
const LOG_INTERVAL: Gap = Gap::from_millis(60_000);

/// Accepts until draining begins, and hands every accepted connection to a worker. At most `max_connections` are open;
/// the next one waits in the kernel's queue. `remedy` is the setting that raises the limit.
pub(super) async fn run(
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    (max_connections, remedy): (usize, &'static str),
    mut draining: watch::Receiver<DrainState>,
) {
    let places = Arc::new(Semaphore::new(max_connections));
    let mut logged_at: Option<Stamp> = None;
    let mut is_time_to_log = || {
        let now = Clock::Monotonic.now();
        let is_time = logged_at.is_none_or(|at| now.since(at) >= LOG_INTERVAL);
        if is_time {
            logged_at = Some(now);
        }
        is_time
    };
    loop {
        if places.available_permits() == 0 && is_time_to_log() {
            tracing::warn!(max_connections, remedy, "no more client connections are accepted until one closes");
        }
        let accepted = tokio::select! {
            _ = draining.wait_for(|drain| *drain != DrainState::Serving) => return,
            accepted = accept(&listener, &places) => accepted,
        };
        let (socket, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if is_time_to_log() {
                    tracing::warn!(%error, "cannot accept connections, which wait; raise the limit on open files if this repeats");
                }
                Clock::Monotonic.sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(socket) = socket.into_std() else { continue };
        let fewest = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        if let Some(worker) = fewest {
            // Counted at once, so that simultaneous connections are spread evenly too.
            let counted = ConnectionCountGuard::new(worker);
            if worker.inbox.send(AcceptedConnection { socket, permit, count_guard: counted }).await.is_err() {
                return;
            }
        }
    }
}

/// The next connection and its permit. Cancel-safe: dropping the future loses no connection.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?.0, permit))
}

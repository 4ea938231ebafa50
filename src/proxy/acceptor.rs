//! Takes connections and gives each to the worker that has the fewest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::DrainState;
use super::worker::{AcceptedConnection, ConnectionCountGuard, WorkerHandle};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// How long to wait when the process is out of descriptors: connections wait in the kernel's queue meanwhile.
const ACCEPT_RETRY_DELAY: Gap = Gap::from_millis(100);
/// How often that is told.
const LOG_INTERVAL: Gap = Gap::from_millis(60_000);

/// Accepts until draining begins, and hands on everything that it has accepted. At most `max_connections` are open; the
/// next one waits in the kernel's queue. `remedy` says what to raise.
pub(super) async fn run(
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    (max_connections, remedy): (usize, &'static str),
    mut draining: watch::Receiver<DrainState>,
) {
    let places = Arc::new(Semaphore::new(max_connections));
    let mut told: Option<Stamp> = None;
    let mut is_time_to_tell = || {
        let now = Clock::Monotonic.now();
        let is_time = told.is_none_or(|at| now.since(at) >= LOG_INTERVAL);
        if is_time {
            told = Some(now);
        }
        is_time
    };
    loop {
        if places.available_permits() == 0 && is_time_to_tell() {
            tracing::warn!(max_connections, remedy, "no more client connections are accepted until one closes");
        }
        let accepted = tokio::select! {
            _ = draining.wait_for(|drain| *drain != DrainState::Serving) => return,
            accepted = accept(&listener, &places) => accepted,
        };
        let (socket, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if is_time_to_tell() {
                    tracing::warn!(%error, "cannot accept connections, which wait; raise the limit on open files if this repeats");
                }
                Clock::Monotonic.sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(socket) = socket.into_std() else { continue };
        let fewest = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        if let Some(worker) = fewest {
            // Counted here, so that connections that come at once are spread as well.
            let counted = ConnectionCountGuard::new(worker);
            if worker.inbox.send(AcceptedConnection { socket, permit, count_guard: counted }).await.is_err() {
                return;
            }
        }
    }
}

/// The next connection, and its place among those allowed. Nothing is lost where this is dropped.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?.0, permit))
}

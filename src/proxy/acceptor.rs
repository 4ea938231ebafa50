//! Takes connections and gives each to the worker that has the fewest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::worker::{Accepted, Counted, Handle};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// How long to wait when the process is out of descriptors: connections wait in the kernel's queue meanwhile.
const OUT_OF_DESCRIPTORS: Gap = Gap::from_millis(100);
/// How often that is told.
const TELL_EVERY: Gap = Gap::from_millis(60_000);

/// Accepts until dropped. At most as many connections as `places` has permits are open; the next one waits in the
/// kernel's queue.
pub(super) async fn run(listener: TcpListener, workers: Vec<Handle>, places: Arc<Semaphore>) {
    let mut told: Option<Stamp> = None;
    loop {
        let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return };
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                let now = Clock::Monotonic.now();
                if told.is_none_or(|at| now.since(at) >= TELL_EVERY) {
                    told = Some(now);
                    tracing::warn!(%error, "cannot accept connections, which wait; raise the limit on open files if this repeats");
                }
                Clock::Monotonic.sleep(OUT_OF_DESCRIPTORS).await;
                continue;
            }
        };
        let Ok(socket) = socket.into_std() else { continue };
        let fewest = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed));
        if let Some(worker) = fewest {
            // Counted here, so that connections that come at once are spread as well.
            let counted = Counted::at(worker);
            if worker.inbox.send(Accepted { socket, permit, counted }).await.is_err() {
                return;
            }
        }
    }
}

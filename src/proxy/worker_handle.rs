//! The acceptor's view of a worker, and the connections on their way to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

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

//! Progress of a connection's uploads. A server that stops reading may exhaust the whole connection's window, which
//! hyper does not expose: the proxy only sees that no upload makes progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::{Buf, Bytes};

use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// Uploads have stalled if none has sent a byte for this long. A longer round trip only costs another connection.
const MIN_STALL: Gap = Gap::from_millis(100);

/// The uploads of one connection. Atomic because hyper requires `Send` for body data; in this process it never changes
/// threads.
#[derive(Debug, Default)]
pub(super) struct UploadProgress {
    /// Bytes that hyper holds and the socket has not taken.
    unsent: AtomicUsize,
    /// Time of the last byte sent, or the first one queued; in nanoseconds.
    last_progress: AtomicU64,
    /// Uploads whose body has not ended.
    unfinished: AtomicUsize,
}

impl UploadProgress {
    /// True if an upload's body has not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished.load(Relaxed) > 0
    }

    /// True if uploads wait and none progresses: the server grants no window to the connection, or to any upload.
    pub(super) fn is_stalled(&self) -> bool {
        self.unsent.load(Relaxed) > 0
            && Clock::Monotonic.now().since(Stamp::from_nanos(self.last_progress.load(Relaxed))) >= MIN_STALL
    }

    fn mark_progress(&self) {
        self.last_progress.store(Clock::Monotonic.now().as_nanos(), Relaxed);
    }
}

/// Counts an upload as unfinished until dropped.
#[derive(Debug)]
pub(super) struct UnfinishedUploadGuard(Arc<UploadProgress>);

impl UnfinishedUploadGuard {
    pub(super) fn new(uploads: &Arc<UploadProgress>) -> Self {
        uploads.unfinished.fetch_add(1, Relaxed);
        Self(Arc::clone(uploads))
    }
}

impl Drop for UnfinishedUploadGuard {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Relaxed);
    }
}

/// A piece of a request body that reports when it has been sent.
#[derive(Debug)]
pub(super) struct UploadPiece {
    payload: Bytes,
    uploads: Arc<UploadProgress>,
}

impl UploadPiece {
    pub(super) fn new(payload: Bytes, uploads: &Arc<UploadProgress>) -> Self {
        if uploads.unsent.fetch_add(payload.len(), Relaxed) == 0 {
            uploads.mark_progress();
        }
        Self { payload, uploads: Arc::clone(uploads) }
    }
}

impl Buf for UploadPiece {
    fn remaining(&self) -> usize {
        self.payload.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.payload
    }

    fn advance(&mut self, sent: usize) {
        self.payload.advance(sent);
        self.uploads.unsent.fetch_sub(sent, Relaxed);
        self.uploads.mark_progress();
    }
}

impl Drop for UploadPiece {
    fn drop(&mut self) {
        self.uploads.unsent.fetch_sub(self.payload.len(), Relaxed);
    }
}

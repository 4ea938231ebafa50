//! The common memory limit of request bodies that wait for the writer thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest request body whose prompt is hashed, in bytes, both as sent and decoded: about two million tokens of text.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// Maximum body bytes held at one time.
pub const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Minimum backlog bytes per prompt, because even a small prompt takes time.
const MIN_BACKLOG_BYTES: usize = 4 << 10;

/// Bytes of all held bodies, and of those among them that wait for the writer thread.
#[derive(Default)]
pub(super) struct BodyMemory {
    held: AtomicUsize,
    backlog: AtomicUsize,
}

/// A body's share of the common memory limit, returned on drop.
pub(super) struct MemoryReservation {
    bodies: Arc<BodyMemory>,
    reserved: usize,
    /// The body's share of the backlog, in bytes, once it is queued.
    queued_bytes: usize,
}

impl MemoryReservation {
    /// Reserves nothing yet.
    pub(super) fn new(bodies: &Arc<BodyMemory>) -> Self {
        Self { bodies: Arc::clone(bodies), reserved: 0, queued_bytes: 0 }
    }

    pub(super) fn enqueue(&mut self, length: usize) {
        self.queued_bytes = length.max(MIN_BACKLOG_BYTES);
        self.bodies.backlog.fetch_add(self.queued_bytes, Ordering::Relaxed);
    }

    /// Bytes of the prompts queued behind this one.
    pub(super) fn backlog(&self) -> usize {
        self.bodies.backlog.load(Ordering::Relaxed).saturating_sub(self.queued_bytes)
    }

    /// Reserves memory for a body of `needed` bytes; false if the limit is reached.
    pub(super) fn grow(&mut self, body: &mut Vec<u8>, needed: usize) -> bool {
        if needed > MAX_BODY_BYTES {
            return false;
        }
        if needed <= self.reserved {
            return true;
        }
        let grown = needed.next_power_of_two();
        let before = self.bodies.held.fetch_add(grown - self.reserved, Ordering::Relaxed);
        let grew = grown - std::mem::replace(&mut self.reserved, grown);
        let fits = before + grew <= MAX_BUFFERED_BYTES;
        if fits {
            body.reserve_exact(grown - body.len());
        }
        fits
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.reserved, Ordering::Relaxed);
        if self.queued_bytes > 0 {
            self.bodies.backlog.fetch_sub(self.queued_bytes, Ordering::Relaxed);
        }
    }
}

//! What became of the records, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Written, with all that there was to know.
    Whole,
    /// Written without its prompt, which was too large or came when too much was held already.
    Oversize,
    /// Not written: the queue to the capture was full.
    QueueFull,
    /// Not written: the disk did not take it.
    Disk,
    /// Not written: a row could not be made of it.
    Encode,
}

impl Fate {
    /// `outcome` and `reason` of each, in order.
    pub const NAMES: [(&'static str, &'static str); 5] = [
        ("written", "whole"),
        ("written", "oversize"),
        ("dropped", "queue_full"),
        ("dropped", "disk"),
        ("dropped", "encode"),
    ];
}

/// The counts. Shared by the whole process.
#[derive(Debug, Default)]
pub struct Counts {
    records: [AtomicU64; Fate::NAMES.len()],
    bytes: AtomicU64,
    waiting: AtomicU64,
}

impl Counts {
    /// So many records met this fate.
    pub fn add(&self, fate: Fate, records: u64) {
        self.records[fate as usize].fetch_add(records, Relaxed);
    }

    /// How many did so far.
    pub fn count(&self, fate: Fate) -> u64 {
        self.records[fate as usize].load(Relaxed)
    }

    /// The records so far, in the order of [`Fate::NAMES`].
    pub fn records(&self) -> [u64; Fate::NAMES.len()] {
        std::array::from_fn(|fate| self.records[fate].load(Relaxed))
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Records that wait to be written.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn joined(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(super) fn left(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}

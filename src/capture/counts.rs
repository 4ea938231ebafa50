//! What became of the records, counted, and logged once a minute where some were lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measure::time::{Gap, Stamp};

/// How often losses are logged.
const TELL_EVERY: Gap = Gap::from_millis(60_000);

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
    /// Not written: its client says that it is a probe, and no part of the traffic.
    Probe,
}

impl Fate {
    /// `outcome` and `reason` of each, in order.
    pub const NAMES: [(&'static str, &'static str); 6] = [
        ("written", "whole"),
        ("written", "oversize"),
        ("dropped", "queue_full"),
        ("dropped", "disk"),
        ("dropped", "encode"),
        ("skipped", "probe"),
    ];
}

/// The counts. Shared by the whole process.
#[derive(Debug, Default)]
pub struct Counts {
    records: [AtomicU64; Fate::NAMES.len()],
    bytes: AtomicU64,
    waiting: AtomicU64,
    told: Mutex<Told>,
}

/// Losses that have been logged, and when.
#[derive(Debug, Default)]
struct Told {
    at: Option<Stamp>,
    records: [u64; Fate::NAMES.len()],
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

    /// So many are written or lost.
    pub(super) fn left(&self, records: u64) {
        self.waiting.fetch_sub(records, Relaxed);
    }

    /// What was lost since it was told last, in words; `None` where that is nothing, or was less than a minute ago.
    /// Whoever finds that another thread is telling has nothing to tell.
    pub(super) fn untold(&self, now: Stamp) -> Option<String> {
        let mut told = self.told.try_lock().ok()?;
        if told.at.is_some_and(|at| now.since(at) < TELL_EVERY) {
            return None;
        }
        let lost = self.lost_since(&mut told)?;
        told.at = Some(now);
        Some(lost)
    }

    /// What was lost since it was told last, whenever that was.
    pub(super) fn untold_at_the_end(&self) -> Option<String> {
        self.lost_since(&mut *self.told.lock().ok()?)
    }

    fn lost_since(&self, told: &mut Told) -> Option<String> {
        let now = self.records();
        let before = std::mem::replace(&mut told.records, now);
        let lost = std::iter::zip(Fate::NAMES, std::iter::zip(now, before))
            .filter(|((outcome, _), (now, before))| *outcome == "dropped" && now > before)
            .map(|((_, reason), (now, before))| format!("{reason}: {}", now - before));
        let lost: Vec<String> = lost.collect();
        (!lost.is_empty()).then(|| lost.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_by_reason_at_once_and_then_once_a_minute() {
        let counts = Counts::default();
        let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
        counts.add(Fate::Whole, 9);
        assert_eq!(counts.untold(at(0)), None);
        counts.add(Fate::Disk, 2);
        assert_eq!(counts.untold(at(1)).as_deref(), Some("disk: 2"));
        counts.add(Fate::Disk, 1);
        counts.add(Fate::QueueFull, 4);
        assert_eq!(counts.untold(at(60)), None);
        assert_eq!(counts.untold(at(61)).as_deref(), Some("queue_full: 4, disk: 1"));
        assert_eq!(counts.untold(at(200)), None);
        counts.add(Fate::Encode, 1);
        assert_eq!(counts.untold_at_the_end().as_deref(), Some("encode: 1"));
        assert_eq!(counts.untold_at_the_end(), None);
    }
}

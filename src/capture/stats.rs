//! Counts the outcomes of records, and formats losses for the log once a minute.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::measure::time::{Gap, Stamp};

/// Minimum time between two log lines about losses.
const LOG_INTERVAL: Gap = Gap::from_millis(60_000);

/// Outcome of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// Written with all known fields.
    Complete,
    /// Written without its prompt, which was too large or would have exceeded the memory limit.
    Oversize,
    /// Not written: the queue of the capture was full.
    QueueFull,
    /// Not written: the disk failed or was full.
    Disk,
    /// Not written: the row could not be encoded.
    Encode,
    /// Not written: the client marked the request as a probe.
    Probe,
    /// Not written: the sample does not have the request's session.
    Sample,
    /// Written to the spool, and removed from it before its upload.
    Spool,
}

impl RecordOutcome {
    /// Labels `outcome` and `reason` of each variant, in declaration order.
    pub const LABELS: [(&'static str, &'static str); 8] = [
        ("written", "whole"),
        ("written", "oversize"),
        ("dropped", "queue_full"),
        ("dropped", "disk"),
        ("dropped", "encode"),
        ("skipped", "probe"),
        ("skipped", "sample"),
        ("dropped", "spool"),
    ];
}

/// Counters of the uploads to a bucket.
#[derive(Debug, Default)]
pub struct UploadStats {
    /// Attempts to create an object that failed and that succeeded, in the order of [`Self::OUTCOMES`].
    pub attempts: [AtomicU64; 2],
    /// Bytes that wait in the spool.
    pub spool_bytes: AtomicU64,
}

impl UploadStats {
    /// Label `outcome` of attempts.
    pub const OUTCOMES: [&'static str; 2] = ["failed", "stored"];
}

/// Record counters, shared by the whole process.
#[derive(Debug, Default)]
pub struct CaptureStats {
    uploads: OnceLock<UploadStats>,
    records: [AtomicU64; RecordOutcome::LABELS.len()],
    bytes: AtomicU64,
    queued: AtomicU64,
    logged: Mutex<LoggedLosses>,
}

/// Losses already logged, and the time of the last log line.
#[derive(Debug, Default)]
struct LoggedLosses {
    at: Option<Stamp>,
    records: [u64; RecordOutcome::LABELS.len()],
}

impl CaptureStats {
    /// Adds `records` with this outcome.
    pub fn add(&self, fate: RecordOutcome, records: u64) {
        self.records[fate as usize].fetch_add(records, Relaxed);
    }

    /// Records with this outcome so far.
    pub fn count(&self, fate: RecordOutcome) -> u64 {
        self.records[fate as usize].load(Relaxed)
    }

    /// Records so far, in the order of [`RecordOutcome::LABELS`].
    pub fn records(&self) -> [u64; RecordOutcome::LABELS.len()] {
        std::array::from_fn(|fate| self.records[fate].load(Relaxed))
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Records that wait to be written.
    pub fn queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    /// Counters of the uploads; `None` if the capture goes to a folder.
    pub fn uploads(&self) -> Option<&UploadStats> {
        self.uploads.get()
    }

    pub(super) fn begin_uploads(&self) -> &UploadStats {
        self.uploads.get_or_init(UploadStats::default)
    }

    pub(super) fn count_attempt(&self, succeeded: bool) {
        self.begin_uploads().attempts[usize::from(succeeded)].fetch_add(1, Relaxed);
    }

    pub(super) fn set_spool_bytes(&self, bytes: u64) {
        self.begin_uploads().spool_bytes.store(bytes, Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn inc_queued(&self) {
        self.queued.fetch_add(1, Relaxed);
    }

    /// Removes records that were written or lost from the queue count.
    pub(super) fn dec_queued(&self, records: u64) {
        self.queued.fetch_sub(records, Relaxed);
    }

    /// Text about losses since the last log line. `None` without losses, within a minute of the last line, or while
    /// another thread logs.
    pub(super) fn unlogged_losses(&self, now: Stamp) -> Option<String> {
        let mut logged = self.logged.try_lock().ok()?;
        if logged.at.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
            return None;
        }
        let lost = self.lost_since(&mut logged)?;
        logged.at = Some(now);
        Some(lost)
    }

    /// Text about losses since the last log line, whatever its age.
    pub(super) fn final_unlogged_losses(&self) -> Option<String> {
        self.lost_since(&mut *self.logged.lock().ok()?)
    }

    fn lost_since(&self, logged: &mut LoggedLosses) -> Option<String> {
        let now = self.records();
        let before = std::mem::replace(&mut logged.records, now);
        let lost = std::iter::zip(RecordOutcome::LABELS, std::iter::zip(now, before))
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
        let counts = CaptureStats::default();
        let at = |seconds: u64| Stamp::from_nanos(seconds * 1_000_000_000);
        counts.add(RecordOutcome::Complete, 9);
        assert_eq!(counts.unlogged_losses(at(0)), None);
        counts.add(RecordOutcome::Disk, 2);
        assert_eq!(counts.unlogged_losses(at(1)).as_deref(), Some("disk: 2"));
        counts.add(RecordOutcome::Disk, 1);
        counts.add(RecordOutcome::QueueFull, 4);
        assert_eq!(counts.unlogged_losses(at(60)), None);
        assert_eq!(counts.unlogged_losses(at(61)).as_deref(), Some("queue_full: 4, disk: 1"));
        assert_eq!(counts.unlogged_losses(at(200)), None);
        counts.add(RecordOutcome::Encode, 1);
        assert_eq!(counts.final_unlogged_losses().as_deref(), Some("encode: 1"));
        assert_eq!(counts.final_unlogged_losses(), None);
    }
}

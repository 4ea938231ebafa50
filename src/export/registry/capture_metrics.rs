//! Counters of the capture.

use std::sync::atomic::Ordering::Relaxed;

use super::catalog::Id;
use super::snapshot::{PointValue, Snapshot};
use crate::capture::stats::{CaptureStats, RecordOutcome, UploadStats};

/// Adds the counters to a snapshot. All exist from the start, so that the first loss is a visible increase.
pub(super) fn observe(counts: &CaptureStats, snapshot: &mut Snapshot, created: u64) {
    for ((outcome, reason), records) in RecordOutcome::LABELS.into_iter().zip(counts.records()) {
        snapshot.observe(Id::CaptureRecords, [outcome.into(), reason.into()], created, PointValue::Count(records));
    }
    snapshot.observe(Id::CaptureSize, [], created, PointValue::Count(counts.bytes()));
    if let Some(uploads) = counts.uploads() {
        for (outcome, attempts) in UploadStats::OUTCOMES.into_iter().zip(&uploads.attempts) {
            snapshot.observe(Id::CaptureUploads, [outcome.into()], created, PointValue::Count(attempts.load(Relaxed)));
        }
        let spooled = i64::try_from(uploads.spool_bytes.load(Relaxed)).unwrap_or(i64::MAX);
        snapshot.observe(Id::CaptureSpool, [], created, PointValue::Gauge(spooled));
    }
    let waiting = i64::try_from(counts.queued()).unwrap_or(i64::MAX);
    snapshot.observe(Id::CaptureQueue, [], created, PointValue::Gauge(waiting));
}

//! Counters of telemetry that was measured but not exported.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::catalog::Id;
use super::snapshot::{PointValue, Snapshot};

/// Cause of lost telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Records dropped because the queue to the aggregation was full.
    Records,
    /// Data points that could not be delivered to the collector.
    PointsFailed,
    /// Data points that the collector received and rejected.
    PointsRejected,
    /// Spans dropped because the queue to the exporter was full.
    Spans,
    /// Spans that could not be delivered to the collector.
    SpansFailed,
    /// Spans that the collector received and rejected.
    SpansRejected,
    /// Log records dropped because the queue to the exporter was full.
    Logs,
    /// Log records that could not be delivered to the collector.
    LogsFailed,
    /// Log records that the collector received and rejected.
    LogsRejected,
}

/// `exporter` and `reason` of each [`DropReason`].
const DROP_LABELS: [(&str, &str); 9] = [
    ("queue", "queue_full"),
    ("otlp_metrics", "failed"),
    ("otlp_metrics", "rejected"),
    ("otlp_traces", "queue_full"),
    ("otlp_traces", "failed"),
    ("otlp_traces", "rejected"),
    ("otlp_logs", "queue_full"),
    ("otlp_logs", "failed"),
    ("otlp_logs", "rejected"),
];

/// The counters, shared by the whole process.
#[derive(Debug, Default)]
pub struct Drops([AtomicU64; DROP_LABELS.len()]);

impl Drops {
    /// Adds `more` losses.
    pub fn add(&self, loss: DropReason, more: u64) {
        self.0[loss as usize].fetch_add(more, Relaxed);
    }

    /// Returns the number of losses so far.
    pub fn count(&self, loss: DropReason) -> u64 {
        self.0[loss as usize].load(Relaxed)
    }

    /// Adds the counters to a snapshot. All exist from the start, so that the first loss is a visible increase.
    pub(in crate::export) fn observe(&self, snapshot: &mut Snapshot, created: u64) {
        for ((exporter, reason), count) in DROP_LABELS.into_iter().zip(&self.0) {
            let labels = [exporter.into(), reason.into()];
            snapshot.observe(Id::ExportDropped, labels, created, PointValue::Count(count.load(Relaxed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_has_a_series_from_the_start() {
        let drops = Drops::default();
        drops.add(DropReason::LogsRejected, 3);
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        drops.observe(&mut snapshot, 0);
        let points = snapshot.points(Id::ExportDropped);
        assert_eq!(points.len(), 9);
        assert!(matches!(points[8].data, PointValue::Count(3)));
        assert_eq!(points[8].label("exporter"), Some(&"otlp_logs".into()));
        assert_eq!((drops.count(DropReason::LogsRejected), drops.count(DropReason::Records)), (3, 0));
    }
}

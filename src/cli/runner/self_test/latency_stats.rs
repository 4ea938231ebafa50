//! Statistics of one latency.

use schemars::JsonSchema;
use serde::Serialize;

use crate::stats::samples::SortedSamples;

/// Statistics of one latency, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct LatencyStats {
    /// Number of values.
    pub(super) count: u64,
    /// Arithmetic mean.
    pub(super) mean: f64,
    /// Smallest value.
    pub(super) min: u64,
    /// Median; percentiles follow the rule of [`crate::stats::samples`].
    pub(super) p50: u64,
    /// 90th percentile.
    pub(super) p90: u64,
    /// 99th percentile.
    pub(super) p99: u64,
    /// 99.9th percentile.
    pub(super) p999: u64,
    /// Largest value.
    pub(super) max: u64,
}

impl LatencyStats {
    pub(super) fn of(sorted: SortedSamples<'_>) -> Self {
        let percentile = |percent: f64| sorted.percentile(percent).round() as u64;
        Self {
            count: sorted.count(),
            mean: sorted.mean(),
            min: sorted.min(),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: sorted.max(),
        }
    }
}

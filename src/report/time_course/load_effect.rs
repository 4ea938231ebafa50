//! Whether TTFT follows the requests of a slice: bursts that the server cannot hide.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::confidence::BOOTSTRAP_SEED;
use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::interval::Interval;
use crate::stats::regression::fit_line;
use crate::stats::time_slices::equal_part;

/// Slices of equal length; a line has an interval from 40 on.
const SLICES: usize = 60;
/// Minimum requests per slice, on average.
const MIN_REQUESTS: usize = 5;

/// Mean TTFT of a slice against its number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LoadEffect {
    /// Length of a slice, in seconds.
    pub slice_s: f64,
    /// Milliseconds of TTFT per further request in a slice.
    pub ms_per_request: f64,
    /// Its 95 % interval, if there is enough data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// Share of the variance between slices that the number of requests explains.
    pub r_squared: f64,
}

impl LoadEffect {
    /// Measures the effect; `None` with too few requests, or if every slice has as many.
    pub(super) fn of(points: &[RequestPoint], ttft: ReportMetric) -> Option<Self> {
        let (first, last) = (points.first()?.started, points.last()?.started);
        if points.len() < SLICES * MIN_REQUESTS {
            return None;
        }
        let mut slices = [(0.0, 0.0, 0.0); SLICES];
        for point in points {
            let (requests, sum, known) = &mut slices[equal_part(point.started, (first, last), SLICES)];
            *requests += 1.0;
            if let Some(value) = point.value(ttft) {
                (*sum, *known) = (*sum + value as f64 / 1e6, *known + 1.0);
            }
        }
        let known = slices.iter().filter(|(_, _, known)| *known > 0.0);
        let means: Vec<(f64, f64)> = known.map(|(requests, sum, known)| (*requests, sum / known)).collect();
        let line = fit_line(&means, &BlockBootstrap::new(BOOTSTRAP_SEED))?;
        Some(Self {
            slice_s: (last - first) as f64 / 1e9 / SLICES as f64,
            ms_per_request: line.slope.value,
            interval: line.slope.interval().ok(),
            r_squared: line.r_squared,
        })
    }
}

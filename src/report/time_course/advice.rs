//! How long a slice should be.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use crate::measure::time::Gap;

/// Requests of a slice whose mean is worth a look.
const MIN_REQUESTS: f64 = 30.0;
/// Requests of a slice whose p99 has 20 values beyond it.
const MIN_REQUESTS_P99: f64 = 2_000.0;
/// Slices of a run with a trend.
const MIN_SLICES: f64 = 10.0;

/// Length of slices that the run supports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SliceAdvice {
    /// Length for means, in seconds.
    pub seconds: f64,
    /// Length for p99, in seconds.
    pub p99_seconds: f64,
    /// Length that was requested, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_s: Option<f64>,
    /// Mean requests of a requested slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_slice: Option<f64>,
    /// The run is too short for ten slices of that length.
    pub run_too_short: bool,
}

impl SliceAdvice {
    /// Computes the advice; `None` without a rate.
    pub(super) fn of(points: &[RequestPoint], slice: Option<Gap>) -> Option<Self> {
        let span = points.last()?.started.saturating_sub(points.first()?.started) as f64 / 1e9;
        let rate = points.len() as f64 / span;
        if !rate.is_finite() {
            return None;
        }
        let e2e: Vec<f64> =
            points.iter().filter_map(|point| point.value(ReportMetric::E2e)).map(|e2e| e2e as f64 / 1e9).collect();
        let mean_e2e = e2e.iter().sum::<f64>() / e2e.len().max(1) as f64;
        let seconds = round_up((MIN_REQUESTS / rate).max(mean_e2e));
        let requested_s = slice.map(Gap::as_secs);
        Some(Self {
            seconds,
            p99_seconds: round_up((MIN_REQUESTS_P99 / rate).max(mean_e2e)),
            requested_s,
            requests_per_slice: requested_s.map(|length| length * rate),
            run_too_short: seconds * MIN_SLICES > span,
        })
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_up(seconds: f64) -> f64 {
    let power = 10_f64.powf(seconds.max(1e-3).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= seconds * (1.0 - 1e-9)).unwrap_or(10.0);
    // Powers below 1 are not exact.
    if power < 1.0 { step / (1.0 / power).round() } else { step * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_round() {
        assert_eq!([0.03, 0.2, 1.0, 1.2, 7.0, 33.3, 2_000.0].map(round_up), [0.05, 0.2, 1.0, 2.0, 10.0, 50.0, 2_000.0]);
    }
}

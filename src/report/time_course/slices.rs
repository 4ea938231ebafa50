//! Slices of equally many requests, so that every slice has a mean.

use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;

/// Fewest and most slices.
const MIN_SLICES: usize = 20;
const MAX_SLICES: usize = 120;
/// Fewest requests of a slice.
const MIN_REQUESTS: usize = 10;

/// Requests in the order of their starts, cut into slices.
pub(super) struct RequestSlices<'a>(Vec<&'a [RequestPoint]>);

impl<'a> RequestSlices<'a> {
    /// Cuts the requests; there are no slices if they are too few.
    pub(super) fn of(points: &'a [RequestPoint]) -> Self {
        let count = (points.len() / MIN_REQUESTS).min(MAX_SLICES);
        if count < MIN_SLICES {
            return Self(Vec::new());
        }
        let slice = |n: usize| &points[n * points.len() / count..(n + 1) * points.len() / count];
        Self((0..count).map(slice).collect())
    }

    /// Number of slices.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Start of a slice in seconds; of the number of slices, the last start.
    pub(super) fn start_s(&self, slice: usize) -> f64 {
        let point = self.0.get(slice).and_then(|slice| slice.first()).or_else(|| self.0.last()?.last());
        point.map_or(0.0, |point| point.started as f64 / 1e9)
    }

    /// (start in seconds, mean in the internal unit) of each slice with values.
    pub(super) fn means(&self, metric: ReportMetric) -> Vec<(usize, f64)> {
        let mean = |slice: &&[RequestPoint]| {
            let values: Vec<f64> =
                slice.iter().filter_map(|point| point.value(metric)).map(|value| value as f64).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        self.0.iter().enumerate().filter_map(|(number, slice)| Some((number, mean(slice)?))).collect()
    }

    /// Requests before a slice.
    pub(super) fn requests_before(&self, slice: usize) -> u64 {
        self.0.iter().take(slice).map(|slice| slice.len() as u64).sum()
    }
}

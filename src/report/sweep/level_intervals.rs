//! Intervals of a level's percentiles, from the requests of all its runs.

use crate::measure::slo::Metric;
use crate::report::confidence::{BOOTSTRAP_SEED, MetricConfidence, of_requests};
use crate::report::metric::ReportMetric;
use crate::report::request_point::RequestPoint;
use crate::stats::bootstrap::BlockBootstrap;

/// Metrics against load, with the objective that limits each.
pub(super) const METRICS: [(ReportMetric, Metric); 3] = [
    (ReportMetric::TtftFromPlanned, Metric::Ttft),
    (ReportMetric::Tpot, Metric::Tpot),
    (ReportMetric::E2eFromPlanned, Metric::E2e),
];
pub(super) const PERCENTILES: [f64; 2] = [50.0, 99.0];

/// Appends the requests of another run: in time, one run follows the other.
pub(super) fn append(points: &mut Vec<RequestPoint>, mut run: Vec<RequestPoint>) {
    let after = points.iter().map(|point| point.started).max().map_or(0, |last| last + 1);
    run.sort_unstable();
    run.iter_mut().for_each(|point| point.started = point.started.saturating_add(after));
    points.append(&mut run);
}

/// Intervals of each metric's percentiles.
pub(super) fn intervals(points: &[RequestPoint]) -> Vec<(ReportMetric, MetricConfidence)> {
    let bootstrap = BlockBootstrap::new(BOOTSTRAP_SEED);
    let of = |(metric, _)| Some((metric, of_requests(points, metric, &PERCENTILES, &bootstrap)?));
    METRICS.into_iter().filter_map(of).collect()
}

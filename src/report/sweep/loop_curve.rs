//! Open and closed levels of one workload on one curve: latency by achieved throughput. Pure.
//!
//! A closed loop waits for its server. So it shows the latency of the requests that it sent, and hides those that users
//! would have sent meanwhile. The hidden latency is the open loop's at equal throughput minus its own. It is
//! interpolated on straight lines between the open levels that keep up.

use schemars::JsonSchema;
use serde::Serialize;

use super::level_summary::{LevelSummary, workloads};
use crate::report::ascii_plot::format_value;
use crate::report::metric::{MetricUnit, ReportMetric};

/// Percentile of the curve.
const PERCENT: f64 = 99.0;

/// A level on the curve. Latencies are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct CurvePoint {
    pub(super) level: String,
    /// Complete responses per second.
    pub(super) requests_per_second: f64,
    pub(super) is_closed: bool,
    /// p99 of the level.
    pub(super) p99: f64,
    /// p99 of an open loop at this throughput; absent outside of the open levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) open_p99: Option<f64>,
}

/// The curve of a workload that has levels of both kinds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct LoopCurve {
    /// Metric of the latencies.
    pub(super) metric: &'static str,
    /// Ascending by throughput.
    pub(super) points: Vec<CurvePoint>,
}

/// The curves of all workloads with open and closed levels.
pub(super) fn loop_curves(levels: &[LevelSummary]) -> Vec<LoopCurve> {
    let of = |places: Vec<usize>| {
        let levels: Vec<&LevelSummary> =
            places.iter().map(|at| &levels[*at]).filter(|level| !level.not_measured).collect();
        LoopCurve::of(&levels)
    };
    workloads(levels).into_iter().filter_map(of).collect()
}

impl LoopCurve {
    fn of(levels: &[&LevelSummary]) -> Option<Self> {
        let metrics = [ReportMetric::TtftFromPlanned, ReportMetric::E2eFromPlanned];
        let metric = metrics
            .into_iter()
            .find(|metric| levels.iter().any(|level| level.percentile(*metric, PERCENT).is_some()))?;
        let place =
            |level: &LevelSummary| Some((level.summary.throughput.requests, level.percentile(metric, PERCENT)?));
        let mut open: Vec<(f64, f64)> = levels
            .iter()
            .filter(|level| level.level.rate.is_some() && level.is_sound())
            .filter_map(|level| place(level))
            .collect();
        open.sort_by(|a, b| a.0.total_cmp(&b.0));
        let point = |level: &&LevelSummary| {
            let (rate, p99) = place(level)?;
            let is_closed = level.level.rate.is_none();
            let open_p99 = if is_closed { interpolate(&open, rate) } else { None };
            Some(CurvePoint { level: level.name(), requests_per_second: rate, is_closed, p99, open_p99 })
        };
        let mut points: Vec<CurvePoint> = levels.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.requests_per_second.total_cmp(&b.requests_per_second));
        let has = |is_closed| points.iter().any(|point| point.is_closed == is_closed);
        (has(true) && has(false)).then(|| Self { metric: metric.key(), points })
    }

    /// The table. The first row is the header.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let time = |value: f64| format_value(value, MetricUnit::Time);
        let label = ReportMetric::ALL.into_iter().find(|metric| metric.key() == self.metric);
        let label = label.map_or(self.metric, |metric| metric.label(false).trim_end_matches(" from planned"));
        let head = [
            "open and closed".to_owned(),
            "loop".into(),
            "req/s".into(),
            format!("{label} p99"),
            "open at this rate".into(),
            "hidden by the closed loop".into(),
        ];
        let row = |point: &CurvePoint| {
            let hidden = point.open_p99.map(|open| open - point.p99);
            vec![
                point.level.clone(),
                if point.is_closed { "closed" } else { "open" }.to_owned(),
                format!("{:.2}", point.requests_per_second),
                time(point.p99),
                point.open_p99.map_or("-".to_owned(), time),
                match hidden {
                    Some(hidden) if hidden > 0.0 => {
                        format!("{} ({:.1} x)", time(hidden), (point.p99 + hidden) / point.p99)
                    }
                    Some(_) => "nothing".to_owned(),
                    None => "-".to_owned(),
                },
            ]
        };
        std::iter::once(head.to_vec()).chain(self.points.iter().map(row)).collect()
    }
}

/// The value at `at` on straight lines between points that ascend; `None` outside of them.
fn interpolate(points: &[(f64, f64)], at: f64) -> Option<f64> {
    let above = points.iter().position(|point| point.0 >= at)?;
    let (right, high) = points[above];
    let Some((left, low)) = above.checked_sub(1).map(|below| points[below]) else {
        return (right == at).then_some(high);
    };
    Some(if right > left { low + (high - low) * (at - left) / (right - left) } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_loop_between_two_levels_is_on_a_straight_line() {
        let points = [(10.0, 100.0), (20.0, 300.0), (40.0, 500.0)];
        assert_eq!([10.0, 15.0, 30.0, 40.0].map(|at| interpolate(&points, at)), [100.0, 200.0, 400.0, 500.0].map(Some));
        assert_eq!([9.0, 41.0].map(|at| interpolate(&points, at)), [None, None]);
        assert_eq!(interpolate(&[], 1.0), None);
    }
}

//! Compares two targets of a sweep.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::RequestSummary;
use super::super::metric::ReportMetric;
use super::{LevelRuns, percentile_of};
use crate::stats::samples::percentile;

/// Difference of B from A in one metric of one level.
#[derive(Debug, Serialize)]
pub(super) struct TargetDifference {
    pub(super) level: String,
    pub(super) metric: &'static str,
    pub(super) stat: &'static str,
    pub(super) a: f64,
    pub(super) b: f64,
    pub(super) change: f64,
    /// Relative change of each pass.
    pub(super) pairs: Vec<f64>,
}

/// Metric, statistic and accessor of a compared value.
type ComparedMetric = (&'static str, &'static str, fn(&RequestSummary) -> Option<f64>);

const COMPARED_METRICS: [ComparedMetric; 8] = [
    ("throughput", "requests", |of| Some(of.throughput.requests)),
    ("throughput", "output tokens", |of| Some(of.throughput.output_tokens)),
    ("tokens_per_second_per_user", "p50", |of| percentile_of(of, ReportMetric::UserRate, 50.0)),
    ("ttft_from_planned", "p50", |of| percentile_of(of, ReportMetric::TtftFromPlanned, 50.0)),
    ("ttft_from_planned", "p99", |of| percentile_of(of, ReportMetric::TtftFromPlanned, 99.0)),
    ("itl", "p50", |of| percentile_of(of, ReportMetric::Itl, 50.0)),
    ("tpot", "p50", |of| percentile_of(of, ReportMetric::Tpot, 50.0)),
    ("e2e_from_planned", "p50", |of| percentile_of(of, ReportMetric::E2eFromPlanned, 50.0)),
];

/// Returns the median over runs, so that no single run decides. For two runs it is the mean.
fn median(runs: &[RequestSummary], of: fn(&RequestSummary) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = runs.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    percentile(values.len() as u64, 50.0, |rank| values[rank as usize])
}

/// Compares B with A on every level that ran against both.
pub(super) fn differences(all: &[LevelRuns]) -> Vec<TargetDifference> {
    let of: BTreeMap<(&str, usize), &LevelRuns> = all.iter().map(|of| ((&*of.level.name, of.target), of)).collect();
    let change = |a: f64, b: f64| Some(b / a - 1.0).filter(|change| change.is_finite());
    let mut differences = Vec::new();
    for a in all.iter().filter(|of| of.target == 0) {
        let Some(b) = of.get(&(&*a.level.name, 1)) else { continue };
        for (metric, stat, number) in COMPARED_METRICS {
            let pairs = a
                .run_summaries
                .iter()
                .zip(&b.run_summaries)
                .filter_map(|(a, b)| change(number(a)?, number(b)?))
                .collect();
            let both = median(&a.run_summaries, number).zip(median(&b.run_summaries, number));
            let changed = both.and_then(|(a, b)| Some((a, b, change(a, b)?)));
            differences.extend(changed.map(|(a_value, b_value, change)| TargetDifference {
                level: a.level.name.clone(),
                metric,
                stat,
                a: a_value,
                b: b_value,
                change,
                pairs,
            }));
        }
    }
    differences
}

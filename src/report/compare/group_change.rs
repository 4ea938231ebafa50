//! Changes by group: which model or hour of production changed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::accumulate::RequestStats;
use super::super::group_by::GroupBy;
use super::super::metric::ReportMetric;
use super::ComparedRun;

/// A group on both sides. It has no verdict: with many groups, some differ by chance.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupChange {
    /// Value of each key of `--by`. Hours are those of the day, so that two days compare.
    pub by: BTreeMap<&'static str, String>,
    /// The first side; `None` without requests.
    pub before: Option<GroupFigures>,
    /// The second side.
    pub after: Option<GroupFigures>,
}

/// Figures of one group on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct GroupFigures {
    /// Requests.
    pub requests: u64,
    /// Share of requests with a complete response.
    pub success_rate: f64,
    /// Median time to first token, in ms.
    pub ttft_p50: Option<f64>,
    /// 99th percentile of the time to first token, in ms.
    pub ttft_p99: Option<f64>,
    /// Median gap between tokens, in ms.
    pub itl_p50: Option<f64>,
    /// 99th percentile of the gaps, in ms.
    pub itl_p99: Option<f64>,
}

/// Groups of both sides, in the order of their keys.
pub(super) fn groups(before: &[ComparedRun], after: &[ComparedRun]) -> Vec<GroupChange> {
    let (mut before, mut after) = (merged(before), merged(after));
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
    keys.into_iter()
        .map(|key| GroupChange {
            before: before.get_mut(&key).map(GroupFigures::of),
            after: after.get_mut(&key).map(GroupFigures::of),
            by: key.into_iter().collect(),
        })
        .collect()
}

type GroupKey = Vec<(&'static str, String)>;

fn merged(runs: &[ComparedRun]) -> BTreeMap<GroupKey, RequestStats> {
    let mut merged = BTreeMap::<GroupKey, RequestStats>::new();
    for run in runs {
        let keys = &run.fold.settings.by;
        for (values, stats) in &run.fold.groups {
            let key = keys.iter().zip(values).map(|(key, value)| (key.name(), comparable(*key, value)));
            merged.entry(key.collect()).or_default().merge(stats);
        }
    }
    merged
}

/// `2026-11-24T07Z` is `07Z`.
fn comparable(key: GroupBy, value: &str) -> String {
    match (key, value.split_once('T')) {
        (GroupBy::Hour, Some((_, hour))) => hour.to_owned(),
        _ => value.to_owned(),
    }
}

impl GroupFigures {
    fn of(stats: &mut RequestStats) -> Self {
        let (requests, successes) = (stats.requests(), stats.successes());
        let mut percentiles = |metrics: &[ReportMetric]| {
            let metric = metrics.iter().copied().find(|metric| !stats.samples[*metric as usize].is_empty())?;
            let sorted = stats.samples[metric as usize].sorted()?;
            Some([50.0, 99.0].map(|percent| metric.unit().to_display(sorted.percentile(percent))))
        };
        let ttft = percentiles(&[ReportMetric::TtftFromPlanned, ReportMetric::Ttft]);
        let itl = percentiles(&[ReportMetric::Itl]);
        Self {
            requests,
            success_rate: if requests > 0 { successes as f64 / requests as f64 } else { 0.0 },
            ttft_p50: ttft.map(|[p50, _]| p50),
            ttft_p99: ttft.map(|[_, p99]| p99),
            itl_p50: itl.map(|[p50, _]| p50),
            itl_p99: itl.map(|[_, p99]| p99),
        }
    }
}

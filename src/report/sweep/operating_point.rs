//! The level to operate at, by what matters most; the peak of throughput and its collapse. Pure.
//!
//! Candidates are the levels of a series that were measured, keep up with their load, and hold the goals if there are any.
//!
//! | point | level |
//! |---|---|
//! | user | the candidate of the most tokens/s for the median user |
//! | balanced | the candidate of the greatest power, requests/s ÷ mean E2E |
//! | cost | the candidate of the most output tokens/s |
//! | peak | the measured level of the most output tokens/s, whatever its latency |
//! | collapse | the first level above the peak with less than 90 % of its output tokens/s |

use schemars::JsonSchema;
use serde::Serialize;

use super::level_summary::LevelSummary;
use super::sweep_series::SweepSeries;
use crate::report::ascii_plot::format_value;
use crate::report::metric::{MetricUnit, ReportMetric};

/// Share of the peak's throughput below which a higher load has collapsed.
const COLLAPSE_SHARE: f64 = 0.9;
/// Levels of a series with operating points.
const MIN_LEVELS: usize = 2;

/// Kinds of operating points of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PointKind {
    User,
    Balanced,
    Cost,
    Peak,
    Collapse,
}

/// A level that stands out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct OperatingPoint {
    pub(super) kind: PointKind,
    /// Name of the level.
    pub(super) level: String,
    /// Properties of the levels that the other series lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) series: Option<String>,
    /// Output tokens per second.
    pub(super) output_tokens_per_second: f64,
    /// Tokens per second of the median user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user_tokens_per_second: Option<f64>,
}

/// The points of every series.
pub(super) fn operating_points(levels: &[LevelSummary], all: &[SweepSeries], has_goals: bool) -> Vec<OperatingPoint> {
    let mut points = Vec::new();
    for series in all {
        let measured: Vec<&LevelSummary> = series
            .places
            .iter()
            .map(|at| &levels[*at])
            .filter(|level| !level.not_measured && level.successes() > 0)
            .collect();
        if measured.len() < MIN_LEVELS {
            continue;
        }
        let candidates: Vec<&LevelSummary> = measured
            .iter()
            .copied()
            .filter(|level| level.is_sound() && (!has_goals || level.meets == Some(true)))
            .collect();
        let tokens = |level: &LevelSummary| level.summary.throughput.output_tokens;
        let best = |of: &dyn Fn(&LevelSummary) -> Option<f64>| {
            let known = candidates.iter().filter_map(|level| Some((*level, of(level)?)));
            known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
        };
        let peak = measured.iter().copied().max_by(|a, b| tokens(a).total_cmp(&tokens(b)));
        let collapse = peak.and_then(|peak| {
            let above = measured.iter().copied().filter(|level| level.level.load() > peak.level.load());
            above.into_iter().find(|level| tokens(level) < tokens(peak) * COLLAPSE_SHARE)
        });
        let found = [
            (PointKind::User, best(&|level| level.median(ReportMetric::UserRate))),
            (PointKind::Balanced, best(&LevelSummary::power)),
            (PointKind::Cost, best(&|level| Some(tokens(level)))),
            (PointKind::Peak, peak),
            (PointKind::Collapse, collapse),
        ];
        points.extend(
            found.into_iter().filter_map(|(kind, level)| level.map(|level| OperatingPoint::of(kind, level, series))),
        );
    }
    points
}

impl OperatingPoint {
    fn of(kind: PointKind, level: &LevelSummary, series: &SweepSeries) -> Self {
        Self {
            kind,
            level: level.name(),
            series: series.name.clone(),
            output_tokens_per_second: level.summary.throughput.output_tokens,
            user_tokens_per_second: level.median(ReportMetric::UserRate),
        }
    }

    /// The label and the description of the point.
    pub(super) fn line(&self) -> (&'static str, String) {
        let rate = |value| format_value(value, MetricUnit::Rate);
        let user = self.user_tokens_per_second.map_or(String::new(), |user| format!(", {} for a user", rate(user)));
        let level =
            [Some(&self.level), self.series.as_ref()].into_iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        let tokens = rate(self.output_tokens_per_second);
        let text = format!("{level}: {tokens} tok/s{user}");
        match self.kind {
            PointKind::User => ("for users", text),
            PointKind::Balanced => ("balanced", text),
            PointKind::Cost => ("for cost", text),
            PointKind::Peak => ("peak", format!("{level}: {tokens} tok/s")),
            PointKind::Collapse => ("collapse", format!("{level}: only {tokens} tok/s")),
        }
    }
}

//! Whether a figure drifts while the run is steady: a server that degrades, or one that still improves.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::metric::ReportMetric;
use super::SteadyState;
use super::slices::RequestSlices;
use crate::stats::hypothesis::holm;
use crate::stats::interval::Interval;
use crate::stats::trend::{TrendTest, relative_rise, trend};

/// Largest p-value of a drift, adjusted for the number of figures.
const MAX_P: f64 = 0.01;
/// Least change over the run, relative to the median.
const MIN_RELATIVE_RISE: f64 = 0.05;

/// Whether a figure drifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrendVerdict {
    /// It gets worse.
    Degrades,
    /// It gets better.
    Improves,
    /// No drift is shown.
    Steady,
}

impl TrendVerdict {
    /// Returns the word for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Degrades => "degrades",
            Self::Improves => "improves",
            Self::Steady => "steady",
        }
    }
}

/// Drift of the mean of one metric.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FigureTrend {
    /// Key of the metric.
    pub metric: &'static str,
    /// The metric, for its label and unit.
    #[serde(skip)]
    pub of: ReportMetric,
    /// Change per minute, in the unit of the metric.
    pub per_minute: f64,
    /// Its 95 % interval.
    pub interval: Interval,
    /// Change over the steady state, relative to the median.
    pub relative_rise: f64,
    /// p-value of no drift, adjusted for the number of figures.
    pub p_value: f64,
    /// The verdict.
    pub verdict: TrendVerdict,
}

/// Tests the means of the steady slices.
pub(super) fn of(slices: &RequestSlices<'_>, steady: &SteadyState, ttft: ReportMetric) -> Vec<FigureTrend> {
    let e2e = if ttft == ReportMetric::Ttft { ReportMetric::E2e } else { ReportMetric::E2eFromPlanned };
    let (from, to) = if steady.found { steady.slices } else { (0, slices.len()) };
    let test = |metric: ReportMetric| {
        let within = slices.means(metric).into_iter().filter(|(number, _)| (from..to).contains(number));
        let points: Vec<(f64, f64)> = within.map(|(number, mean)| (slices.start_s(number) / 60.0, mean)).collect();
        let found = trend(&points)?;
        Some((metric, found, relative_rise(&points, &found)?))
    };
    let found: Vec<(ReportMetric, TrendTest, f64)> =
        [ttft, ReportMetric::Tpot, e2e].into_iter().filter_map(test).collect();
    let adjusted = holm(&found.iter().map(|(_, trend, _)| trend.p_value).collect::<Vec<_>>());
    let figure = |((of, trend, relative_rise), p_value): (&(ReportMetric, TrendTest, f64), f64)| {
        let display = |value: f64| of.unit().to_display(value);
        let drifts = p_value <= MAX_P && relative_rise.abs() >= MIN_RELATIVE_RISE;
        let verdict = match drifts {
            false => TrendVerdict::Steady,
            true if (*relative_rise > 0.0) == of.is_cost() => TrendVerdict::Degrades,
            true => TrendVerdict::Improves,
        };
        FigureTrend {
            metric: of.key(),
            of: *of,
            per_minute: display(trend.slope),
            interval: Interval { low: display(trend.interval.low), high: display(trend.interval.high) },
            relative_rise: *relative_rise,
            p_value,
            verdict,
        }
    };
    found.iter().zip(adjusted).map(figure).collect()
}

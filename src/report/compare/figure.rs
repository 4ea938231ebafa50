//! The figures that a comparison judges.

use super::super::metric::{MetricUnit, ReportMetric};
use crate::measure::slo::Slos;

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ComparedFigure {
    /// Share of requests that meet the SLO with this index.
    Goodput(usize),
    /// Share of complete responses; cancelled requests do not count.
    SuccessRate,
    /// Output tokens of successes per second.
    OutputTokenRate,
    /// Percentile of a metric.
    Percentile(ReportMetric, f64),
}

/// Percentiles that are judged.
pub(super) const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];
/// Latencies that are judged.
pub(super) const METRICS: [ReportMetric; 4] =
    [ReportMetric::TtftFromPlanned, ReportMetric::Itl, ReportMetric::Tpot, ReportMetric::E2eFromPlanned];

/// Resolution of the clocks of most files.
const MIN_LATENCY_NANOS: f64 = 1_000.0;
const MIN_TOKENS_PER_SECOND: f64 = 0.001;

impl ComparedFigure {
    /// The family of figures: each one more makes it harder to call another one worse.
    pub(super) fn family(slos: &Slos) -> Vec<Self> {
        let goodput = slos.iter().enumerate().map(|(slo, _)| Self::Goodput(slo));
        let percentiles =
            METRICS.into_iter().flat_map(|metric| PERCENTILES.map(|percent| Self::Percentile(metric, percent)));
        goodput.chain([Self::SuccessRate, Self::OutputTokenRate]).chain(percentiles).collect()
    }

    /// Returns the name of the figure in conditions and JSON.
    pub fn key(self, slos: &Slos) -> String {
        match self {
            Self::Goodput(slo) => match slos.iter().nth(slo) {
                Some(slo) if slos.iter().count() > 1 => format!("goodput.{}", slo.name()),
                _ => "goodput".to_owned(),
            },
            Self::SuccessRate => "success_rate".to_owned(),
            Self::OutputTokenRate => "output_tokens_per_second".to_owned(),
            Self::Percentile(metric, percent) => format!("{}.p{percent}", metric_key(metric)),
        }
    }

    /// Returns `true` for a share: its change is a difference, since a share may be 0.
    pub const fn is_share(self) -> bool {
        matches!(self, Self::Goodput(_) | Self::SuccessRate)
    }

    /// Returns the smallest value that a relative change distinguishes. Smaller ones count as it: 0 has no relative
    /// change, and the gap between tokens that came together is 0.
    pub(super) const fn resolution(self) -> f64 {
        match self {
            Self::Goodput(_) | Self::SuccessRate => 0.0,
            Self::OutputTokenRate => MIN_TOKENS_PER_SECOND,
            Self::Percentile(..) => MIN_LATENCY_NANOS,
        }
    }

    /// The change between two values in the display unit: relative, or the difference of a share.
    pub(super) fn change(self, before: f64, after: f64) -> f64 {
        if self.is_share() {
            return after - before;
        }
        let [before, after] = [before, after].map(|value| value.max(self.to_display(self.resolution())));
        (after - before) / before
    }

    /// Returns `true` if more is worse.
    pub const fn is_cost(self) -> bool {
        match self {
            Self::Goodput(_) | Self::SuccessRate | Self::OutputTokenRate => false,
            Self::Percentile(metric, _) => metric.is_cost(),
        }
    }

    /// Formats a value in the figure's display unit.
    pub(super) fn format(self, value: f64) -> String {
        match self {
            Self::Goodput(_) | Self::SuccessRate => format!("{:.2} %", value * 100.0),
            Self::OutputTokenRate => format!("{value:.1}/s"),
            Self::Percentile(metric, _) => super::super::ascii_plot::format_value(value, metric.unit()),
        }
    }

    /// Converts an internal value to the display unit, which is that of JSON: shares of 1, rates per second, milliseconds, tokens.
    pub(super) fn to_display(self, value: f64) -> f64 {
        match self {
            Self::Goodput(_) | Self::SuccessRate | Self::OutputTokenRate => value,
            Self::Percentile(metric, _) => metric.unit().to_display(value),
        }
    }

    /// Returns the unit of JSON.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Goodput(_) | Self::SuccessRate => "1",
            Self::OutputTokenRate => "1/s",
            Self::Percentile(metric, _) => MetricUnit::name(metric.unit()),
        }
    }
}

/// A user waits from the planned moment, if there is one: for captures both are the same.
const fn metric_key(metric: ReportMetric) -> &'static str {
    match metric {
        ReportMetric::TtftFromPlanned => "ttft",
        ReportMetric::E2eFromPlanned => "e2e",
        metric => metric.key(),
    }
}

/// The metric of a name in a condition.
pub(super) fn metric_named(name: &str) -> Option<ReportMetric> {
    METRICS.into_iter().find(|metric| metric_key(*metric) == name)
}

//! One figure with its interval and the threshold that it passed.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::ascii_plot::{format_percent, format_value};
use super::super::metric::MetricUnit;
use crate::stats::estimate::Estimate;
use crate::stats::interval::Interval;

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceUnit {
    /// A share of 1.
    Share,
    /// Seconds.
    Seconds,
    /// Seconds per token.
    SecondsPerToken,
    /// Seconds per request in flight.
    SecondsPerRequest,
    /// A factor.
    Ratio,
    /// Requests, tokens or events.
    Count,
}

impl EvidenceUnit {
    /// Formats a value for people.
    pub fn format(self, value: f64) -> String {
        let time = |seconds: f64| {
            let sign = if seconds < 0.0 { "-" } else { "" };
            sign.to_owned() + &format_value(seconds.abs() * 1e3, MetricUnit::Time)
        };
        match self {
            Self::Share => format_percent(value),
            Self::Seconds => time(value),
            Self::SecondsPerToken => time(value) + " per token",
            Self::SecondsPerRequest => time(value) + " per request",
            Self::Ratio => format!("{value:.2} times"),
            Self::Count if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Count => format!("{value:.2}"),
        }
    }
}

/// A figure that supports a finding.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Evidence {
    /// Name of the figure.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: EvidenceUnit,
    /// Its 95 % interval, if there is enough data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// The least value that supports the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The largest value that supports the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

impl Evidence {
    /// A figure without an interval.
    pub(super) const fn new(name: &'static str, value: f64, unit: EvidenceUnit) -> Self {
        Self { name, value, unit, interval: None, at_least: None, at_most: None }
    }

    /// An estimated figure.
    pub(super) fn of(name: &'static str, estimate: &Estimate, unit: EvidenceUnit) -> Self {
        Self { interval: estimate.interval().ok(), ..Self::new(name, estimate.value, unit) }
    }

    /// States the least value that supports the finding.
    pub(super) const fn at_least(self, threshold: f64) -> Self {
        Self { at_least: Some(threshold), ..self }
    }

    /// States the largest value that supports the finding.
    pub(super) const fn at_most(self, threshold: f64) -> Self {
        Self { at_most: Some(threshold), ..self }
    }

    /// Returns `true` if the interval, or the value of a figure that has none by its nature, passes the thresholds.
    pub(super) fn passes(&self) -> bool {
        let (low, high) = self.interval.map_or((self.value, self.value), |Interval { low, high }| (low, high));
        self.at_least.is_none_or(|least| low >= least) && self.at_most.is_none_or(|most| high <= most)
    }

    /// Formats value, interval and threshold.
    pub fn cells(&self) -> [String; 3] {
        let format = |value: f64| self.unit.format(value);
        let bare = match self.unit {
            EvidenceUnit::SecondsPerToken | EvidenceUnit::SecondsPerRequest => EvidenceUnit::Seconds,
            unit => unit,
        };
        let ends = |interval: Interval| format!("{} to {}", bare.format(interval.low), bare.format(interval.high));
        let interval = self.interval.map_or("-".to_owned(), ends);
        let threshold = match (self.at_least, self.at_most) {
            (Some(least), _) => format!("at least {}", format(least)),
            (None, Some(most)) => format!("at most {}", format(most)),
            (None, None) => "-".to_owned(),
        };
        [format(self.value), interval, threshold]
    }
}

//! Figures that a tool computed itself. Without the requests behind them there is no distribution.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::detect::PeerFormat;
use super::facts::PeerFacts;

/// Statistics in the order of a table: (name in reports, names in files).
const STATISTICS: [(&str, &[&str]); 15] = [
    ("avg", &["avg", "mean"]),
    ("min", &["min"]),
    ("p0.1", &["p0.1", "p001"]),
    ("p1", &["p1", "p01"]),
    ("p5", &["p5", "p05"]),
    ("p10", &["p10"]),
    ("p25", &["p25"]),
    ("p50", &["p50", "median"]),
    ("p75", &["p75"]),
    ("p90", &["p90"]),
    ("p95", &["p95"]),
    ("p99", &["p99"]),
    ("p99.9", &["p99.9", "p999"]),
    ("max", &["max"]),
    ("std", &["std", "std_dev"]),
];

/// The figures of a file without requests.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PeerSummary {
    /// Format of the file.
    #[serde(skip)]
    pub format: PeerFormat,
    /// Path as given on the command line.
    pub path: String,
    /// The file's facts about its run.
    #[serde(flatten, serialize_with = "facts")]
    #[schemars(flatten, with = "FactFields<'static>")]
    pub facts: PeerFacts,
    /// Single numbers by name, by the tool's definitions.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, f64>")]
    pub totals: Vec<(String, f64)>,
    /// Statistics, by the tool's definitions.
    pub figures: Vec<PeerFigure>,
    /// How to get the requests behind the figures.
    #[serde(skip)]
    pub remedy: String,
}

/// Statistics of one metric.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PeerFigure {
    /// Name.
    pub name: String,
    /// Unit, `ms` for times.
    pub unit: &'static str,
    /// Statistics that the file has, in the order of a table.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, f64>")]
    pub statistics: Vec<(String, f64)>,
}

/// Unit of a file's figure, converted to the unit of reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum UnitScale {
    /// Times, by the factor to milliseconds.
    Millis(f64),
    Tokens,
}

impl UnitScale {
    pub(super) const MILLIS: Self = Self::Millis(1.0);
    pub(super) const SECONDS: Self = Self::Millis(1e3);

    /// The unit with this name in a file.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "ns" => Self::Millis(1e-6),
            "us" => Self::Millis(1e-3),
            "ms" => Self::MILLIS,
            "s" | "sec" => Self::SECONDS,
            _ => Self::Tokens,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Millis(_) => "ms",
            Self::Tokens => "tokens",
        }
    }

    const fn factor(self) -> f64 {
        match self {
            Self::Millis(factor) => factor,
            Self::Tokens => 1.0,
        }
    }
}

/// Collects the statistics that an object has, whether its percentiles stand beside its mean or in `percentiles`.
pub(super) fn statistics(object: &Value, scale: UnitScale) -> Vec<(String, f64)> {
    let find = |names: &[&str]| {
        names.iter().find_map(|name| object.get(name).or_else(|| object.get("percentiles")?.get(name))?.as_f64())
    };
    let known = STATISTICS.iter().filter_map(|(name, names)| Some(((*name).to_owned(), find(names)? * scale.factor())));
    known.collect()
}

/// Position of a statistic in a table.
pub(super) fn rank(statistic: &str) -> Option<usize> {
    STATISTICS.iter().position(|(name, _)| *name == statistic)
}

/// Names of all statistics in the order of a table.
pub fn statistic_names() -> impl Iterator<Item = &'static str> {
    STATISTICS.iter().map(|(name, _)| *name)
}

fn by_name<S: Serializer>(values: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(name, value)| (name, value)))
}

#[derive(Serialize, JsonSchema)]
struct FactFields<'a> {
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    targets: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<&'a str>,
}

fn facts<S: Serializer>(facts: &PeerFacts, serializer: S) -> Result<S::Ok, S::Error> {
    FactFields {
        tool: &facts.tool,
        model: facts.model.as_deref(),
        targets: &facts.targets,
        concurrency: facts.concurrency,
        rate: facts.rate.as_deref(),
    }
    .serialize(serializer)
}

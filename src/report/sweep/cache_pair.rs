//! Rows of a matrix that differ only in their cache: cold against warm. Pure.

use schemars::JsonSchema;
use serde::Serialize;

use super::file::CacheState;
use super::level_summary::LevelSummary;
use crate::report::ascii_plot::{format_percent, format_value};
use crate::report::metric::{MetricUnit, ReportMetric};

const TIMES: [(ReportMetric, f64); 4] = [
    (ReportMetric::TtftFromPlanned, 50.0),
    (ReportMetric::TtftFromPlanned, 99.0),
    (ReportMetric::E2eFromPlanned, 50.0),
    (ReportMetric::E2eFromPlanned, 99.0),
];

/// One figure of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct CacheFigure {
    pub(super) figure: String,
    pub(super) unit: &'static str,
    pub(super) cold: f64,
    pub(super) warm: f64,
}

/// A cold and a warm level of one load.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct CachePair {
    pub(super) cold: String,
    pub(super) warm: String,
    pub(super) figures: Vec<CacheFigure>,
    /// Requests of the warm level whose prefix was gone from the cache, and all of its requests. Absent if no response
    /// has the count of cached tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evicted_prefixes: Option<(u64, u64)>,
}

/// Pairs each cold level with the warm one of the same load.
pub(super) fn cache_pairs(levels: &[LevelSummary]) -> Vec<CachePair> {
    let of = |state| levels.iter().filter(move |level| level.level.cache == state && level.successes() > 0);
    let is_pair = |a: &LevelSummary, b: &LevelSummary| {
        a.target == b.target
            && a.level.flags == b.level.flags
            && (a.level.rate, a.level.concurrency) == (b.level.rate, b.level.concurrency)
    };
    let pairs =
        of(CacheState::Cold).filter_map(|cold| Some((cold, of(CacheState::Warm).find(|warm| is_pair(cold, warm))?)));
    pairs.map(|(cold, warm)| CachePair::of(cold, warm)).collect()
}

impl CachePair {
    fn of(cold: &LevelSummary, warm: &LevelSummary) -> Self {
        let mut figures = Vec::new();
        for (metric, percent) in TIMES {
            let both = cold.percentile(metric, percent).zip(warm.percentile(metric, percent));
            figures.extend(both.map(|(cold, warm)| CacheFigure {
                figure: format!("{} p{percent}", metric.label(false).trim_end_matches(" from planned")),
                unit: metric.unit().name(),
                cold,
                warm,
            }));
        }
        let cached = |level: &LevelSummary| {
            let tokens = &level.summary.tokens;
            (tokens.input > 0).then(|| tokens.cached as f64 / tokens.input as f64)
        };
        let mut more = |figure: &str, unit, both: Option<(f64, f64)>| {
            figures.extend(both.map(|(cold, warm)| CacheFigure { figure: figure.to_owned(), unit, cold, warm }));
        };
        more("prompt tokens from the cache", "1", cached(cold).zip(cached(warm)));
        more("preemptions", "requests", cold.servers.preemptions.zip(warm.servers.preemptions));
        Self {
            cold: cold.name(),
            warm: warm.name(),
            figures,
            evicted_prefixes: warm.evicted_prefixes.map(|evicted| (evicted, warm.summary.requests)),
        }
    }

    /// The table. The first row is the header.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let value = |figure: &CacheFigure, value: f64| match figure.unit {
            "1" => format_percent(value),
            "requests" => format!("{value:.0}"),
            _ => format_value(value, MetricUnit::Time),
        };
        let difference = |figure: &CacheFigure| match figure.unit {
            "1" => format!("{:+.1} pt", (figure.warm - figure.cold) * 100.0),
            "requests" => format!("{:+.0}", figure.warm - figure.cold),
            _ if figure.cold > 0.0 => format!("{:+.1} %", (figure.warm / figure.cold - 1.0) * 100.0),
            _ => "-".to_owned(),
        };
        let row = |figure: &CacheFigure| {
            let values = [figure.cold, figure.warm].map(|of| value(figure, of));
            [vec![figure.figure.clone()], values.to_vec(), vec![difference(figure)]].concat()
        };
        let head = ["warm against cold", &self.cold, &self.warm, "difference"].map(str::to_owned).to_vec();
        let evicted =
            self.evicted_prefixes.map_or_else(|| "unknown".to_owned(), |(evicted, of)| format!("{evicted} of {of}"));
        let last = ["requests whose prefix was evicted", "", &evicted, ""].map(str::to_owned).to_vec();
        std::iter::once(head).chain(self.figures.iter().map(row)).chain([last]).collect()
    }
}

//! Summary of a set of requests: counts, rates, goodput and distributions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::accumulate::{AccumulatorSettings, OBJECTIVES, RequestStats};
use super::confidence;
use super::distribution::MetricDistribution;
use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use crate::measure::slo::Slos;
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::interval::Interval;
use crate::stats::slice_histogram::SliceHistogram;

/// Summary of a set of requests.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RequestSummary {
    /// Number of requests.
    pub requests: u64,
    /// Requests by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Responses by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Window of the rates, in seconds.
    pub seconds: f64,
    /// Rates of the successes.
    pub throughput: Throughput,
    /// Tokens of the successes.
    pub tokens: TokenTotals,
    /// Goodput of each SLO.
    pub goodput: Vec<SloGoodput>,
    /// Share of the gaps between tokens that are 0: their events came together, in one read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_gap_share: Option<f64>,
    /// Distribution of every metric with values.
    #[serde(serialize_with = "by_name")]
    #[schemars(with = "BTreeMap<String, MetricDistribution>")]
    pub metrics: Vec<MetricDistribution>,
}

/// Rates per second of the window.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Throughput {
    /// Successful requests.
    pub requests: f64,
    /// Prompt tokens.
    pub input_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
    /// Prompt and output tokens.
    pub total_tokens: f64,
}

/// Token totals.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct TokenTotals {
    /// Prompt tokens.
    pub input: u64,
    /// Prompt tokens from a cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
    /// Requests by source of their output token count.
    pub sources: BTreeMap<&'static str, u64>,
}

/// Goodput of one SLO.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SloGoodput {
    /// Name of the SLO.
    pub slo: String,
    /// Text of the SLO.
    pub text: String,
    /// Requests that met it.
    pub met: u64,
    /// Requests that it applies to, failures included unless the SLO excludes them: the denominator of `share`.
    pub counted: u64,
    /// Share that met it; absent if it applies to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// 95 % interval of the share, if there is enough data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_interval: Option<Interval>,
    /// Successes that it applies to: the denominator of `share_of_successes`.
    pub successes: u64,
    /// Share of the successes that met it; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_successes: Option<f64>,
    /// Requests that missed each objective; `error` counts those without a complete response.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<&'static str, u64>,
    /// Requests that met it, per second of the window.
    pub requests_per_second: f64,
    /// Output tokens of the requests that met it, per second of the window.
    pub tokens_per_second: f64,
}

pub(super) fn by_name<S: Serializer>(metrics: &[MetricDistribution], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|metric| (metric.metric.key(), metric)))
}

/// Goodput of each SLO, with rates over `seconds`.
pub fn slo_goodput(figures: &RequestStats, seconds: f64, slos: &Slos) -> Vec<SloGoodput> {
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let goodput = slos.iter().zip(&figures.goodput).map(|(slo, good)| SloGoodput {
        slo: slo.name().to_owned(),
        text: slo.to_string(),
        met: good.met,
        counted: good.counted,
        share: (good.counted > 0).then(|| good.met as f64 / good.counted as f64),
        share_interval: None,
        successes: good.successes,
        share_of_successes: (good.successes > 0).then(|| good.met as f64 / good.successes as f64),
        missed: OBJECTIVES.into_iter().zip(good.missed).filter(|(_, missed)| *missed > 0).collect(),
        requests_per_second: per_second(good.met),
        tokens_per_second: per_second(good.tokens),
    });
    goodput.collect()
}

impl RequestSummary {
    /// Sorts the values in place.
    pub(super) fn of(figures: &mut RequestStats, seconds: f64, slos: &Slos, percentiles: &[f64]) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let goodput = slo_goodput(figures, seconds, slos);
        let mut metrics = Vec::new();
        for metric in ReportMetric::ALL {
            let sorted = figures.samples[metric as usize].sorted();
            metrics.extend(sorted.map(|sorted| MetricDistribution::of(metric, sorted, percentiles)));
        }
        let sum = |metric: ReportMetric| metrics.iter().find(|of| of.metric == metric).map_or(0, |of| of.sum as u64);
        let (input, output) = (sum(ReportMetric::Input), sum(ReportMetric::Output));
        Self {
            requests: figures.requests(),
            outcomes: figures.outcomes.clone(),
            statuses: figures.statuses.clone(),
            seconds,
            throughput: Throughput {
                requests: per_second(figures.successes()),
                input_tokens: per_second(input),
                output_tokens: per_second(output),
                total_tokens: per_second(input.saturating_add(output)),
            },
            tokens: TokenTotals { input, cached: figures.cached, output, sources: figures.sources.clone() },
            goodput,
            zero_gap_share: figures.samples[ReportMetric::Gap as usize]
                .sorted()
                .map(|gaps| gaps.up_to(0) as f64 / gaps.count() as f64)
                .filter(|share| *share > 0.0),
            metrics,
        }
    }

    /// Adds the 95 % intervals. `points` are in the order of a report.
    pub(super) fn add_confidence(
        &mut self,
        points: &[RequestPoint],
        gaps: SliceHistogram,
        settings: &AccumulatorSettings,
    ) {
        let bootstrap = BlockBootstrap::new(confidence::BOOTSTRAP_SEED);
        let gaps = gaps.finish();
        for distribution in &mut self.metrics {
            let percents: Vec<f64> = distribution.percentiles.iter().map(|(percent, _)| *percent).collect();
            distribution.confidence = match distribution.metric {
                ReportMetric::Itl => confidence::of_gaps(&gaps, &percents, &bootstrap),
                metric if settings.definitions.is_one_per_request(metric) => {
                    confidence::of_requests(points, metric, &percents, &bootstrap)
                }
                _ => None,
            };
        }
        for (slo, goodput) in self.goodput.iter_mut().enumerate() {
            let estimate = confidence::goodput(points, slo, &bootstrap);
            goodput.share_interval = estimate.and_then(|estimate| estimate.interval().ok());
        }
    }

    /// Returns the distribution of a metric, if it has values.
    pub fn metric(&self, metric: ReportMetric) -> Option<&MetricDistribution> {
        self.metrics.iter().find(|of| of.metric == metric)
    }
}

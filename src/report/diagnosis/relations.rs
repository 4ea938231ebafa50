//! Dependences of latencies: TTFT on prompts and load, TPOT on load, and the parts of TTFT by the server.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::confidence::BOOTSTRAP_SEED;
use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use super::super::servers::{MeanDuration, ServerSummary};
use super::{Evidence, EvidenceUnit};
use crate::measure::server_metrics::ServerMetric;
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::estimate::{Estimate, rate};
use crate::stats::regression::{LineFit, fit_line};

/// Minimum range of x, as a share of its mean: below, the slope is that of noise.
const MIN_RELATIVE_RANGE: f64 = 0.2;

/// Mean TTFT, split by the server's own histograms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TtftSplit {
    /// Mean TTFT at the client, in seconds.
    pub total_s: f64,
    /// In the server's queue.
    pub queue_s: f64,
    /// From the schedule to the first token, if the server reports it.
    pub prefill_s: Option<f64>,
    /// Between client and server, and in the server outside of both.
    pub network_s: Option<f64>,
}

/// A line of y against x, with the mean that it explains.
#[derive(Clone, Debug)]
pub(super) struct Relation {
    /// The line.
    pub line: LineFit,
    /// Mean of x.
    pub mean_x: f64,
    /// Mean of y.
    pub mean_y: f64,
}

impl Relation {
    /// Fits y against x over the points that have both; `None` if x hardly varies.
    fn of(points: impl Iterator<Item = (f64, f64)>, bootstrap: &BlockBootstrap) -> Option<Self> {
        let points: Vec<(f64, f64)> = points.collect();
        let count = points.len().max(1) as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
        let ends = points.iter().fold((f64::INFINITY, 0.0_f64), |ends, (x, _)| (ends.0.min(*x), ends.1.max(*x)));
        if ends.1 - ends.0 < MIN_RELATIVE_RANGE * mean_x || mean_y <= 0.0 {
            return None;
        }
        Some(Self { line: fit_line(&points, bootstrap)?, mean_x, mean_y })
    }

    /// Share of the mean of y that grows with x.
    pub(super) fn share(&self, name: &'static str) -> Evidence {
        self.slope_times(self.mean_x / self.mean_y, name, EvidenceUnit::Share)
    }

    /// The slope in another unit.
    pub(super) fn slope_times(&self, scale: f64, name: &'static str, unit: EvidenceUnit) -> Evidence {
        let mut evidence = Evidence::of(name, &self.line.slope, unit);
        evidence.value *= scale;
        if let Some(interval) = &mut evidence.interval {
            (interval.low, interval.high) = (interval.low * scale, interval.high * scale);
        }
        evidence
    }

    /// Returns `true` if the slope has an interval, and it is above 0.
    pub(super) fn rises(&self) -> bool {
        self.line.slope.interval().is_ok_and(|interval| interval.low > 0.0)
    }
}

/// All relations of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Relations {
    /// TTFT in seconds against prompt tokens that the cache did not hold.
    pub ttft_isl: Option<Relation>,
    /// TTFT in seconds against requests in flight.
    pub ttft_load: Option<Relation>,
    /// TPOT in seconds against requests in flight.
    pub tpot_load: Option<Relation>,
    /// Share of E2E after the first token.
    pub decode_share: Option<Estimate>,
    /// Second token ÷ TPOT.
    pub second_token: Option<Estimate>,
    /// Mean of TTFT, in seconds.
    pub ttft_s: Option<f64>,
    /// TTFT split by the server's histograms.
    pub split: Option<TtftSplit>,
}

/// Value of a latency in seconds.
pub(super) fn seconds(point: &RequestPoint, metric: ReportMetric) -> Option<f64> {
    point.value(metric).map(|nanos| nanos as f64 / 1e9)
}

/// Prompt tokens that had to be computed.
pub(super) fn computed_tokens(point: &RequestPoint) -> Option<f64> {
    Some(point.isl()?.saturating_sub(point.cached().unwrap_or(0)) as f64)
}

impl Relations {
    /// Measures the relations of requests in the order of their starts.
    pub(super) fn of(points: &[RequestPoint], servers: &[ServerSummary]) -> Self {
        let bootstrap = BlockBootstrap::new(BOOTSTRAP_SEED);
        let ttft = |point: &RequestPoint| seconds(point, ReportMetric::Ttft);
        let load = |point: &RequestPoint| point.in_flight().map(|requests| requests as f64);
        let pairs = |x: fn(&RequestPoint) -> Option<f64>, metric: ReportMetric| {
            points.iter().filter_map(move |point| Some((x(point)?, seconds(point, metric)?)))
        };
        let ratio = |above: ReportMetric, below: ReportMetric, of: fn(f64, f64) -> f64| {
            let both = |point: &RequestPoint| Some((seconds(point, above)?, seconds(point, below)?));
            let (above, below): (Vec<f64>, Vec<f64>) = points.iter().filter_map(both).unzip();
            let above: Vec<f64> = above.iter().zip(&below).map(|(above, below)| of(*above, *below)).collect();
            rate(&above, &below, &bootstrap)
        };
        let mean = |of: &dyn Fn(&RequestPoint) -> Option<f64>| {
            let (sum, count) =
                points.iter().filter_map(of).fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
            (count > 0.0).then(|| sum / count)
        };
        Self {
            ttft_isl: Relation::of(pairs(computed_tokens, ReportMetric::Ttft), &bootstrap),
            ttft_load: Relation::of(pairs(load, ReportMetric::Ttft), &bootstrap),
            tpot_load: Relation::of(pairs(load, ReportMetric::Tpot), &bootstrap),
            decode_share: ratio(ReportMetric::Ttft, ReportMetric::E2e, |ttft, e2e| e2e - ttft),
            second_token: ratio(ReportMetric::SecondToken, ReportMetric::Tpot, |second, _| second),
            ttft_s: mean(&ttft),
            split: mean(&ttft).and_then(|total_s| split(total_s, servers)),
        }
    }

    /// The relations as figures.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let mut all = Vec::new();
        let mut line = |of: &Option<Relation>, names: [&'static str; 3], per: EvidenceUnit| {
            if let Some(Relation { line, .. }) = of {
                // A fall is no cost of tokens or requests, and a latency below 0 is none; then only R² is evidence.
                if line.slope.value > 0.0 {
                    all.push(Evidence::of(names[0], &line.slope, per));
                    if line.intercept.value >= 0.0 {
                        all.push(Evidence::of(names[1], &line.intercept, EvidenceUnit::Seconds));
                    }
                }
                all.push(Evidence::new(names[2], line.r_squared, EvidenceUnit::Share));
            }
        };
        let isl =
            ["TTFT against ISL: prefill", "TTFT at an empty prompt: queue and overhead", "R² of TTFT against ISL"];
        line(&self.ttft_isl, isl, EvidenceUnit::SecondsPerToken);
        let load = ["TTFT against requests in flight", "TTFT without others", "R² of TTFT against requests in flight"];
        line(&self.ttft_load, load, EvidenceUnit::SecondsPerRequest);
        let batch = ["TPOT against requests in flight", "TPOT without others", "R² of TPOT against requests in flight"];
        line(&self.tpot_load, batch, EvidenceUnit::SecondsPerRequest);
        if let Some(share) = &self.decode_share {
            all.push(Evidence::of("decode in E2E", share, EvidenceUnit::Share));
        }
        if let Some(second) = &self.second_token {
            all.push(Evidence::of("second token ÷ TPOT", second, EvidenceUnit::Ratio));
        }
        if let Some(TtftSplit { total_s, queue_s, prefill_s, network_s }) = self.split {
            let part = |name, seconds| Evidence::new(name, seconds, EvidenceUnit::Seconds);
            all.push(part("TTFT at the client", total_s));
            all.push(part("in the server's queue", queue_s));
            all.extend(prefill_s.map(|prefill| part("in prefill", prefill)));
            all.extend(network_s.map(|network| part("network and the rest", network)));
        }
        all
    }
}

/// Splits a mean TTFT by the histograms of all servers, weighted by their requests. `None` without a queue time.
fn split(total_s: f64, servers: &[ServerSummary]) -> Option<TtftSplit> {
    let mean = |metric: ServerMetric| {
        let all = || servers.iter().filter_map(|server| server.durations.get(&metric));
        let requests: f64 = all().map(|of| of.requests).sum();
        let sum: f64 = all().map(|MeanDuration { mean_s, requests }| mean_s * requests).sum();
        (requests > 0.0).then(|| sum / requests)
    };
    let queue_s = mean(ServerMetric::QueueSeconds)?;
    let prefill_s = mean(ServerMetric::PrefillSeconds);
    // A histogram counts requests when they end, so their mean may exceed that of the requests of the window.
    let network_s = prefill_s.map(|prefill| (total_s - queue_s - prefill).max(0.0));
    Some(TtftSplit { total_s, queue_s, prefill_s, network_s })
}

//! Fidelity of a run: planned requests compared with those sent and with their results. Captures have no plan and no
//! fidelity.
//!
//! | | planned | achieved |
//! |---|---|---|
//! | arrivals | planned moment | first byte sent; the error is the send lag of all requests |
//! | ISL | planned prompt tokens | prompt tokens that the server counted |
//! | OSL | planned output tokens | tokens of successes, unless only events were counted |
//! | prefixes | share of prompt tokens in blocks sent before: the hits of an unlimited cache | share that the server reports as cached, over the prompts with such a report |
//! | think time | the trace's, rescaled like its other times | end of the previous response to the first byte sent |
//! | aborts | planned client disconnects and their token counts | actual disconnects and their token counts |
//!
//! Errors and distances are those of `trace diff` ([`crate::stats::deviation`]). An unknown value is absent. A closed
//! loop plans no arrivals and no rate, so both are absent.

pub(super) mod text;

use schemars::JsonSchema;
use serde::Serialize;

use super::accumulate::RequestStats;
use super::distribution::MetricDistribution;
use super::metric::ReportMetric;
use super::request_view::RequestView;
use crate::measure::record::CountSource;
use crate::stats::deviation::{ArrivalWindows, ArrivalsPerSecond, Deviation, DeviationAccumulator};
use crate::stats::length_histogram::{DurationSummary, LengthHistogram};
use crate::stats::prefix_cache::{PrefixLookup, PrefixReuse};

/// Percentiles of the arrival error.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// Comparison of a run with its plan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Fidelity {
    /// Send lag behind the planned moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_error: Option<MetricDistribution>,
    /// Request rate over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateFidelity>,
    /// Prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isl: Option<Deviation>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub osl: Option<Deviation>,
    /// Shared prompt prefixes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<PrefixFidelity>,
    /// Pauses between the turns of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<ThinkTimes>,
    /// Client disconnects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborts: Option<AbortCounts>,
}

/// Request rate over time.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RateFidelity {
    /// Planned requests per second, from the first request to the last.
    pub planned_per_second: Option<f64>,
    /// Sent requests per second.
    pub sent_per_second: Option<f64>,
    /// Length of a window in seconds. The first window starts with the second of the first request.
    pub window_s: u64,
    /// Planned requests per window.
    pub planned: Vec<u64>,
    /// Sent requests per window.
    pub sent: Vec<u64>,
    /// Share of requests that were sent in another window than planned.
    pub displaced_share: f64,
}

/// Shared prompt prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PrefixFidelity {
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Blocks that had been sent before.
    pub repeated_blocks: u64,
    /// Share of the prompt tokens in those blocks.
    pub offered_share: f64,
    /// Prompt tokens that the server reported as cached.
    pub cached_tokens: u64,
    /// Cached share of the prompts for which the server reported it; absent if it reported none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
}

/// Pauses of the turns with both a planned and an achieved pause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ThinkTimes {
    /// Planned pauses.
    pub planned: DurationSummary,
    /// Achieved pauses.
    pub achieved: DurationSummary,
}

/// Client disconnects before the end of a response.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AbortCounts {
    /// Planned disconnects.
    pub planned: u64,
    /// Disconnects that happened; the other responses ended earlier.
    pub done: u64,
    /// Token counts at the disconnect, for disconnects planned at a token count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Deviation>,
}

/// Pairs of planned and achieved lengths.
#[derive(Clone, Debug, Default)]
struct LengthPairs {
    errors: DeviationAccumulator,
    planned: LengthHistogram,
    actual: LengthHistogram,
}

impl LengthPairs {
    fn add(&mut self, planned: Option<u64>, got: Option<u64>) {
        if let (Some(planned), Some(got)) = (planned, got) {
            self.errors.take(Some(planned), Some(got));
            self.planned.take(planned);
            self.actual.take(got);
        }
    }

    fn difference(&self) -> Option<Deviation> {
        self.errors.finish(&self.planned, &self.actual)
    }
}

/// Aggregates requests. Memory grows with distinct lengths, seconds and blocks, not with requests.
#[derive(Clone, Debug)]
pub struct FidelityAccumulator {
    planned: ArrivalsPerSecond,
    sent: ArrivalsPerSecond,
    isl: LengthPairs,
    osl: LengthPairs,
    reuse: PrefixReuse,
    /// Cached tokens, and all tokens of the prompts with a report of them.
    cached: (u64, u64),
    think: (LengthHistogram, LengthHistogram),
    aborts: (u64, u64),
    abort_tokens: LengthPairs,
}

impl Default for FidelityAccumulator {
    fn default() -> Self {
        Self {
            planned: ArrivalsPerSecond::default(),
            sent: ArrivalsPerSecond::default(),
            isl: LengthPairs::default(),
            osl: LengthPairs::default(),
            reuse: PrefixReuse::default(),
            cached: (0, 0),
            think: (LengthHistogram::of_times(), LengthHistogram::of_times()),
            aborts: (0, 0),
            abort_tokens: LengthPairs::default(),
        }
    }
}

impl FidelityAccumulator {
    /// Adds a request. Requests without a planned moment are ignored.
    pub fn add(&mut self, request: &RequestView) {
        let Some(planned) = request.planned else { return };
        let targets = &request.planned_values;
        self.planned.take(planned.as_nanos());
        self.sent.take(request.sent.as_nanos());
        self.isl.add(targets.input_tokens, request.input.filter(|_| request.input_source == Some(CountSource::Usage)));
        let counted = request.tokens.filter(|count| request.succeeded() && count.source < CountSource::Chunks);
        self.osl.add(targets.output_tokens, counted.map(|count| count.tokens));
        let tokens = targets.input_tokens.or(request.input);
        self.reuse.take(&PrefixLookup { ids: &request.blocks, block: request.block_tokens, tokens });
        if let (Some(cached), Some(input)) = (request.cached, request.input) {
            self.cached = (self.cached.0 + cached, self.cached.1 + input);
        }
        if let (Some(planned), Some(achieved)) = (targets.think, request.think_nanos) {
            self.think.0.take(planned);
            self.think.1.take(achieved);
        }
        if targets.abort_tokens.is_some() || targets.abort_after.is_some() {
            self.aborts.0 += 1;
            self.aborts.1 += u64::from(request.abort_tokens.is_some());
            self.abort_tokens.add(targets.abort_tokens, request.abort_tokens);
        }
    }

    /// Returns the comparison, or `None` without a plan. `figures` must cover the same requests.
    pub(super) fn finish(&self, figures: &mut RequestStats, closed_loop: bool) -> Option<Fidelity> {
        let lag = figures.samples[ReportMetric::Lag as usize].sorted()?;
        let requests = lag.count();
        let arrival_error = MetricDistribution::of(ReportMetric::Lag, lag, &PERCENTILES);
        let per_second = |of: &ArrivalsPerSecond| {
            let span = of.span_s();
            (span > 0.0).then(|| (requests - 1) as f64 / span)
        };
        let ArrivalWindows { window_s, a, b, displaced_share } = ArrivalWindows::of(&self.planned, &self.sent);
        let rate = RateFidelity {
            planned_per_second: per_second(&self.planned),
            sent_per_second: per_second(&self.sent),
            window_s,
            planned: a,
            sent: b,
            displaced_share,
        };
        let (cached_tokens, of) = self.cached;
        let prefix = self.reuse.caches().first().map(|cache| PrefixFidelity {
            blocks: cache.asked_blocks,
            repeated_blocks: cache.hit_blocks,
            offered_share: cache.token_share,
            cached_tokens,
            cached_share: (of > 0).then(|| cached_tokens as f64 / of as f64),
        });
        let think = self.think.0.times().zip(self.think.1.times());
        let (planned, done) = self.aborts;
        Some(Fidelity {
            arrival_error: (!closed_loop).then_some(arrival_error),
            rate: (!closed_loop).then_some(rate),
            isl: self.isl.difference(),
            osl: self.osl.difference(),
            prefix,
            think: think.map(|(planned, achieved)| ThinkTimes { planned, achieved }),
            aborts: (planned > 0).then(|| AbortCounts { planned, done, tokens: self.abort_tokens.difference() }),
        })
    }
}

//! How true a run was: what its plan wanted, what was sent, and what came of it. Of runs only, for nothing else has a plan.
//!
//! | | wanted | got |
//! |---|---|---|
//! | arrivals | the planned moment | the first byte sent; the error is the send lag of all requests |
//! | ISL | tokens that the prompt was made to have | tokens that the server counted |
//! | OSL | tokens that the plan wants | tokens of successes, where events are not all that was counted |
//! | prefixes | prompt tokens in blocks that were sent before, of all: what an endless cache has | tokens that the server said it had cached, of the prompts that it said so of |
//! | think time | the trace's, stretched like the rest of it | from the end of the answer before to the first byte sent |
//! | aborts | clients that were to leave, and with how many tokens | those that left, and with how many |
//!
//! Differences and distances are those of `trace diff` ([`crate::measure::difference`]). A figure that nothing is known
//! of is absent; so are arrivals and rate of a closed loop, which has no plan of them.

pub(super) mod text;

use serde::Serialize;

use super::accumulate::RequestStats;
use super::distribution::MetricDistribution;
use super::metric::ReportMetric;
use super::request_view::RequestView;
use crate::measure::deviation::{Deviation, DeviationStats, RateDeviation, SecondsDeviation};
use crate::measure::length_histogram::{DurationHistogram, LengthHistogram};
use crate::measure::prefix_cache::{PrefixLookup, PrefixReuse};
use crate::measure::record::CountSource;

/// The percentiles of the arrival error.
const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// What a run came to beside its plan.
#[derive(Clone, Debug, Serialize)]
pub struct Fidelity {
    /// How much later than planned requests were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_error: Option<MetricDistribution>,
    /// When they were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateFidelity>,
    /// Prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isl: Option<Deviation>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub osl: Option<Deviation>,
    /// Prompts that begin alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<PrefixFidelity>,
    /// Pauses between the turns of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<ThinkTimes>,
    /// Clients that leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aborts: Option<AbortCounts>,
}

/// Requests over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateFidelity {
    /// Requests a second between the first and the last, as planned.
    pub planned_per_second: Option<f64>,
    /// As sent.
    pub sent_per_second: Option<f64>,
    /// Seconds of a window; the first begins with the second of the first request.
    pub window_s: u64,
    /// Requests planned in each.
    pub planned: Vec<u64>,
    /// Sent in each.
    pub sent: Vec<u64>,
    /// Share of the requests that were sent in another window than planned.
    pub moved_share: f64,
}

/// Prompts that begin as others did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrefixFidelity {
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Of these, sent before.
    pub repeated_blocks: u64,
    /// Share of the prompt tokens in those.
    pub offered_share: f64,
    /// Prompt tokens that the server said it had cached.
    pub cached_tokens: u64,
    /// As a share of the prompts that it said so of; absent where it did of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
}

/// Pauses of turns whose pause is known both ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThinkTimes {
    /// As planned.
    pub planned: DurationHistogram,
    /// As they were.
    pub achieved: DurationHistogram,
}

/// Clients that leave before the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AbortCounts {
    /// Those that were to.
    pub planned: u64,
    /// Those of them that did; what the others waited for had ended before.
    pub done: u64,
    /// The tokens with which they left, of those that were to leave with so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Deviation>,
}

/// Wanted lengths and those that came.
#[derive(Clone, Debug, Default)]
struct LengthPairs {
    errors: DeviationStats,
    planned: LengthHistogram,
    actual: LengthHistogram,
}

impl LengthPairs {
    fn add(&mut self, wanted: Option<u64>, got: Option<u64>) {
        if let (Some(wanted), Some(got)) = (wanted, got) {
            self.errors.take(Some(wanted), Some(got));
            self.planned.take(wanted);
            self.actual.take(got);
        }
    }

    fn difference(&self) -> Option<Deviation> {
        self.errors.finish(&self.planned, &self.actual)
    }
}

/// Adds requests up. Memory: that of the different lengths, seconds and blocks, and none for a request.
#[derive(Clone, Debug)]
pub struct FidelityAccumulator {
    planned: SecondsDeviation,
    sent: SecondsDeviation,
    isl: LengthPairs,
    osl: LengthPairs,
    reuse: PrefixReuse,
    /// Cached tokens, and those of the prompts that they are of.
    cached: (u64, u64),
    think: (LengthHistogram, LengthHistogram),
    aborts: (u64, u64),
    abort_tokens: LengthPairs,
}

impl Default for FidelityAccumulator {
    fn default() -> Self {
        Self {
            planned: SecondsDeviation::default(),
            sent: SecondsDeviation::default(),
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
    /// One request more. Without a planned moment it is none of a run.
    pub fn add(&mut self, request: &RequestView) {
        let Some(planned) = request.planned else { return };
        let wanted = &request.planned_values;
        self.planned.take(planned.as_nanos());
        self.sent.take(request.sent.as_nanos());
        self.isl.add(wanted.input_tokens, request.input.filter(|_| request.input_source == Some(CountSource::Usage)));
        let counted = request.tokens.filter(|count| request.succeeded() && count.source < CountSource::Chunks);
        self.osl.add(wanted.output_tokens, counted.map(|count| count.tokens));
        let tokens = wanted.input_tokens.or(request.input);
        self.reuse.take(&PrefixLookup { ids: &request.blocks, block: request.block_tokens, tokens });
        if let (Some(cached), Some(input)) = (request.cached, request.input) {
            self.cached = (self.cached.0 + cached, self.cached.1 + input);
        }
        if let (Some(planned), Some(achieved)) = (wanted.think, request.think_nanos) {
            self.think.0.take(planned);
            self.think.1.take(achieved);
        }
        if wanted.abort_tokens.is_some() || wanted.abort_after.is_some() {
            self.aborts.0 += 1;
            self.aborts.1 += u64::from(request.abort_tokens.is_some());
            self.abort_tokens.add(wanted.abort_tokens, request.abort_tokens);
        }
    }

    /// What it came to; `None` where nothing was planned. `figures` are of the same requests.
    pub(super) fn finish(&self, figures: &mut RequestStats, closed_loop: bool) -> Option<Fidelity> {
        let lag = figures.samples[ReportMetric::Lag as usize].sorted()?;
        let requests = lag.count();
        let arrival_error = MetricDistribution::of(ReportMetric::Lag, lag, &PERCENTILES);
        let per_second = |of: &SecondsDeviation| {
            let span = of.span_s();
            (span > 0.0).then(|| (requests - 1) as f64 / span)
        };
        let RateDeviation { window_s, a, b, moved_share } = RateDeviation::of(&self.planned, &self.sent);
        let rate = RateFidelity {
            planned_per_second: per_second(&self.planned),
            sent_per_second: per_second(&self.sent),
            window_s,
            planned: a,
            sent: b,
            moved_share,
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

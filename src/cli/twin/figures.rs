//! Figures of a simulation in bounded memory: percentiles come from histograms with cells of 9 %.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::histogram::{Histogram, Layout, Unit};
use crate::measure::slo::{Slo, Slos};
use crate::measure::time::{Gap, Stamp, extend_span};
use crate::report::accumulate::{AccumulatorSettings, verdicts};
use crate::report::request_view::RequestView;
use crate::twin::fleet::FleetOptions;
use crate::twin::response::{TwinOutcome, TwinResponse};

/// Longest time that the histograms tell from longer ones, in seconds.
const MAX_SECONDS: f64 = 4096.0;

/// Times of requests.
#[derive(Debug)]
pub(super) struct TimeFigures {
    histogram: Histogram,
    max: Option<Gap>,
}

impl TimeFigures {
    fn new(layout: Arc<Layout>) -> Self {
        Self { histogram: Histogram::new(layout), max: None }
    }

    fn record(&mut self, time: Gap) {
        self.histogram.record(time.as_nanos());
        self.max = self.max.max(Some(time));
    }

    /// In seconds; `None` without values, or if the quantile is beyond [`MAX_SECONDS`].
    fn quantile(&self, q: f64) -> Option<f64> {
        self.histogram.quantile(q).filter(|seconds| *seconds <= MAX_SECONDS)
    }

    /// The quantile for people.
    pub(super) fn text(&self, q: f64) -> String {
        match (self.quantile(q), self.max) {
            (Some(seconds), _) => Gap::from_nanos((seconds * 1e9) as u64).to_string(),
            (None, Some(_)) => format!(">{MAX_SECONDS}s"),
            (None, None) => "-".to_owned(),
        }
    }
}

/// The load that a fleet had, to be compared with that of its fit.
#[derive(Debug)]
pub(super) struct FleetLoad {
    pub(super) fleet: FleetOptions,
    requests: u64,
    arrivals: Option<(Stamp, Stamp)>,
    pub(super) max_prompt_tokens: u64,
    pub(super) max_context_tokens: u64,
    /// Most requests in flight at one replica.
    pub(super) max_in_flight: u32,
}

impl FleetLoad {
    fn new(fleet: FleetOptions) -> Self {
        Self { fleet, requests: 0, arrivals: None, max_prompt_tokens: 0, max_context_tokens: 0, max_in_flight: 0 }
    }

    fn add(&mut self, response: &TwinResponse) {
        let at = response.request.at;
        self.requests += 1;
        self.arrivals = Some(extend_span(self.arrivals, at, at));
        self.max_prompt_tokens = self.max_prompt_tokens.max(u64::from(response.request.prompt_tokens));
        self.max_context_tokens = self.max_context_tokens.max(response.request.kv_tokens());
        self.max_in_flight = self.max_in_flight.max(response.in_flight);
    }

    /// Arrivals per second and replica.
    pub(super) fn rate_per_replica(&self) -> f64 {
        rate(self.requests, self.arrivals) / f64::from(self.fleet.count().max(1))
    }
}

/// Arrivals per second.
fn rate(requests: u64, arrivals: Option<(Stamp, Stamp)>) -> f64 {
    let seconds = arrivals.map_or(0.0, |(first, last)| last.since(first).as_secs());
    if seconds > 0.0 { requests.saturating_sub(1) as f64 / seconds } else { 0.0 }
}

#[derive(Debug)]
pub(super) struct TwinFigures {
    pub(super) requests: u64,
    pub(super) complete: u64,
    /// Requests that ended otherwise than in the traffic.
    pub(super) lost: u64,
    pub(super) tokens: u64,
    arrivals: Option<(Stamp, Stamp)>,
    /// The load of each fleet.
    pub(super) fleets: Vec<FleetLoad>,
    pub(super) ttft: TimeFigures,
    pub(super) tpot: TimeFigures,
    pub(super) e2e: TimeFigures,
    /// Requests that met each SLO, and those that count for it.
    pub(super) good: Vec<(u64, u64)>,
}

impl TwinFigures {
    pub(super) fn new(slos: &[Slo], fleets: &[FleetOptions]) -> Self {
        let layout = Arc::new(Layout::new(Unit::Seconds, []));
        let times = || TimeFigures::new(layout.clone());
        Self {
            requests: 0,
            complete: 0,
            lost: 0,
            tokens: 0,
            arrivals: None,
            fleets: fleets.iter().cloned().map(FleetLoad::new).collect(),
            ttft: times(),
            tpot: times(),
            e2e: times(),
            good: vec![(0, 0); slos.len()],
        }
    }

    pub(super) fn add(&mut self, response: &TwinResponse) {
        let at = response.request.at;
        self.requests += 1;
        self.arrivals = Some(extend_span(self.arrivals, at, at));
        self.tokens += u64::from(response.generated);
        let model = response.request.entry.model.as_deref();
        if let Some(load) = self.fleets.iter_mut().find(|load| load.fleet.serves(model)) {
            load.add(response);
        }
        match response.outcome {
            TwinOutcome::Complete => self.complete += 1,
            TwinOutcome::Aborted => return,
            _ => {
                self.lost += 1;
                return;
            }
        }
        response.ttft().into_iter().for_each(|time| self.ttft.record(time));
        response.tpot().into_iter().for_each(|time| self.tpot.record(time));
        self.e2e.record(response.e2e());
    }

    /// Judges a request by the SLOs.
    pub(super) fn judge(&mut self, request: &RequestView, settings: &AccumulatorSettings) {
        for (counts, verdict) in self.good.iter_mut().zip(verdicts(request, settings)) {
            counts.0 += u64::from(verdict.met == Some(true));
            counts.1 += u64::from(verdict.met.is_some());
        }
    }

    /// Arrivals per second.
    pub(super) fn rate(&self) -> f64 {
        rate(self.requests, self.arrivals)
    }

    pub(super) fn summary(&self, slos: &[Slo]) -> FigureSummary {
        let goodput = slos.iter().zip(&self.good);
        FigureSummary {
            requests: self.requests,
            complete: self.complete,
            lost: self.lost,
            tokens: self.tokens,
            requests_per_second: self.rate(),
            ttft_seconds: Percentiles::of(&self.ttft),
            tpot_seconds: Percentiles::of(&self.tpot),
            e2e_seconds: Percentiles::of(&self.e2e),
            goodput: goodput
                .map(|(slo, (good, of))| SimulatedGoodput { slo: slo.to_string(), good: *good, of: *of })
                .collect(),
        }
    }
}

/// The figures as JSON.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FigureSummary {
    requests: u64,
    complete: u64,
    /// Requests that ended otherwise than in the traffic.
    lost: u64,
    tokens: u64,
    requests_per_second: f64,
    ttft_seconds: Percentiles,
    tpot_seconds: Percentiles,
    e2e_seconds: Percentiles,
    goodput: Vec<SimulatedGoodput>,
}

/// Percentiles in seconds; null without values, and beyond 4096 s, where `max` tells how far. `max` is exact.
#[derive(Debug, Serialize, JsonSchema)]
struct Percentiles {
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

impl Percentiles {
    fn of(times: &TimeFigures) -> Self {
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| times.quantile(q));
        Self { p50, p90, p99, max: times.max.map(Gap::as_secs) }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct SimulatedGoodput {
    slo: String,
    /// Requests that met it.
    good: u64,
    /// Requests that count for it.
    of: u64,
}

/// The settings by which requests are judged.
pub(super) fn judging(slos: &[Slo]) -> anyhow::Result<AccumulatorSettings> {
    let slos = Slos::new(slos.to_vec()).map_err(anyhow::Error::msg)?;
    Ok(AccumulatorSettings { slos, ..AccumulatorSettings::default() })
}

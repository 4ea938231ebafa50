//! A run's progress for display, and the figures that decide its verdict. Pure. The published figures come from the
//! rows, through a report.
//!
//! Latencies include successful requests only; failures are counted separately. Each latency is given twice: from the
//! planned time, as a user experiences it, and from the actual send time.

use std::collections::BTreeMap;
use std::sync::Arc;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::row::CompletedRequest;
use crate::measure::record::{CountSource, LaterTurns, Outcome};
use crate::measure::slo::{Slos, Verdict};
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::stats::samples::Samples;

/// Longer gaps count as one hour.
const MAX_GAP_NANOS: u64 = 3_600_000_000_000;

/// Aggregates records. Memory: 72 bytes per success and 32 bytes per other request.
#[derive(Debug)]
pub struct ReplayAccumulator {
    begin: Stamp,
    slos: Arc<Slos>,
    measured: MeasurementWindow,
    outside_window: u64,
    outcomes: BTreeMap<&'static str, u64>,
    errors: BTreeMap<&'static str, u64>,
    statuses: BTreeMap<u16, u64>,
    held_back: u64,
    later_turns: LaterTurns,
    times: LatencySamples,
    /// Inter-token latencies, to three significant figures.
    itl: Option<Histogram<u64>>,
    input: LengthStats,
    output: LengthStats,
    goodput: Vec<(String, u64, u64)>,
    first_planned: Option<Stamp>,
    last_planned: Option<Stamp>,
    first_sent: Option<Stamp>,
    last_sent: Option<Stamp>,
    last_end: Option<Stamp>,
}

#[derive(Debug, Default)]
struct LatencySamples {
    lag: Vec<u64>,
    own_lag: Vec<u64>,
    ttft_planned: Vec<u64>,
    ttft_sent: Vec<u64>,
    tpot: Vec<u64>,
    e2e_planned: Vec<u64>,
    e2e_sent: Vec<u64>,
}

/// Planned and actual lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct LengthStats {
    /// Tokens by the server's count.
    pub tokens: u64,
    /// Requests with both lengths.
    pub compared: u64,
    /// Compared requests with the planned length.
    pub exact: u64,
    /// Sum of the absolute deviations, in tokens.
    pub deviation_tokens: u64,
    /// Planned tokens of the compared requests.
    pub planned: u64,
}

impl LengthStats {
    fn add(&mut self, planned: Option<u64>, real: u64) {
        self.tokens += real;
        if let Some(planned) = planned {
            self.compared += 1;
            self.planned += planned;
            self.exact += u64::from(planned == real);
            self.deviation_tokens += planned.abs_diff(real);
        }
    }
}

/// Statistics of one latency, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyStats {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest value.
    pub min: u64,
    /// Median; percentiles follow the rule of [`crate::stats::samples`].
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest value.
    pub max: u64,
}

impl LatencyStats {
    /// Statistics of these values; `None` if there are none.
    pub fn from_values(values: &[u64]) -> Option<Self> {
        let mut samples = Samples::default();
        values.iter().for_each(|value| samples.push(*value));
        let sorted = samples.sorted()?;
        let percentile = |percent: f64| sorted.percentile(percent).round() as u64;
        Some(Self {
            count: sorted.count(),
            mean: sorted.mean(),
            min: sorted.min(),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: sorted.max(),
        })
    }

    fn from_histogram(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Self {
            count: histogram.len(),
            mean: histogram.mean(),
            min: histogram.min(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        })
    }
}

/// Goodput of one SLO.
#[derive(Clone, Debug)]
pub struct ReplayGoodput {
    /// The SLO's name.
    pub slo: String,
    /// Requests that met it.
    pub met: u64,
    /// Requests that it applies to.
    pub counted: u64,
    /// Requests per second that met it.
    pub per_second: f64,
}

/// A run's figures. Latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub struct ReplaySummary {
    /// Requests outside the measurement window.
    pub outside_window: u64,
    /// Requests inside the window.
    pub requests: u64,
    /// Requests by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Requests without a complete response, by reason.
    pub errors: BTreeMap<&'static str, u64>,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests delayed by a lack of slots.
    pub held_back: u64,
    /// Later turns of live sessions.
    pub later_turns: LaterTurns,
    /// Planned requests per second, from the first planned time to the last.
    pub planned_rate: Option<f64>,
    /// Sent requests per second, likewise.
    pub sent_rate: Option<f64>,
    /// Seconds from the first planned time to the last end.
    pub seconds: f64,
    /// Output tokens per second over `seconds`.
    pub output_rate: f64,
    /// Actual minus planned send time.
    pub lag: Option<LatencyStats>,
    /// Lag without connection setup, which depends on the server.
    pub own_lag: Option<LatencyStats>,
    /// TTFT from the planned time.
    pub ttft_from_planned: Option<LatencyStats>,
    /// TTFT from the send time.
    pub ttft_from_sent: Option<LatencyStats>,
    /// Inter-token latency over all gaps.
    pub itl: Option<LatencyStats>,
    /// Time per output token, one value per request.
    pub tpot: Option<LatencyStats>,
    /// Duration from the planned time.
    pub e2e_from_planned: Option<LatencyStats>,
    /// Duration from the send time.
    pub e2e_from_sent: Option<LatencyStats>,
    /// Prompt lengths.
    pub input: LengthStats,
    /// Output lengths.
    pub output: LengthStats,
    /// Goodput, measured from the planned time.
    pub goodput: Vec<ReplayGoodput>,
}

impl ReplayAccumulator {
    /// An empty accumulator. `begin` is time zero.
    pub fn new(begin: Stamp, slos: Arc<Slos>, measured: MeasurementWindow) -> Self {
        let goodput = slos.iter().map(|slo| (slo.name().to_owned(), 0, 0)).collect();
        Self {
            begin,
            slos,
            measured,
            outside_window: 0,
            outcomes: BTreeMap::new(),
            errors: BTreeMap::new(),
            statuses: BTreeMap::new(),
            held_back: 0,
            later_turns: LaterTurns::default(),
            times: LatencySamples::default(),
            // Three significant figures from 1 µs on. The constructor fails only on invalid bounds, and these are
            // constants.
            itl: Histogram::new_with_bounds(1_000, MAX_GAP_NANOS, 3).ok(),
            input: LengthStats::default(),
            output: LengthStats::default(),
            goodput,
            first_planned: None,
            last_planned: None,
            first_sent: None,
            last_sent: None,
            last_end: None,
        }
    }

    /// Adds one request.
    pub fn add(&mut self, done: &CompletedRequest) {
        let at = done.planned.since(self.begin).as_nanos();
        if !self.measured.window().has(at) {
            self.outside_window += 1;
            return;
        }
        let (record, times) = (&done.record, &done.record.times);
        *self.outcomes.entry(record.outcome.name()).or_default() += 1;
        if let Some(trouble) = done.failure_reason {
            *self.errors.entry(trouble.name()).or_default() += 1;
        }
        if let Some(status) = record.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        self.held_back += u64::from(done.held_back);
        self.later_turns.verbatim += u64::from(done.verbatim_history == Some(true));
        self.later_turns.synthesized += u64::from(done.verbatim_history == Some(false));
        self.first_planned = Some(self.first_planned.map_or(done.planned, |first| first.min(done.planned)));
        self.last_planned = self.last_planned.max(Some(done.planned));
        self.first_sent = Some(self.first_sent.map_or(times.received, |first| first.min(times.received)));
        self.last_sent = self.last_sent.max(Some(times.received));
        self.last_end = self.last_end.max(Some(times.ended));
        self.times.lag.push(done.lag().as_nanos());
        self.times.own_lag.push(done.lag().as_nanos().saturating_sub(done.connect_time.as_nanos()));
        self.judge(done);
        if let Some(tokens) = record.output_tokens {
            let whole = record.outcome == Outcome::Success;
            let planned = done.scheduled.entry.output_tokens.filter(|_| whole && is_exact(tokens.source));
            self.output.add(planned, tokens.tokens);
        }
        if let Some(input) = record.usage.input {
            self.input.add(done.wanted.input_tokens, input);
        }
        if record.outcome == Outcome::Success {
            self.success(done);
        }
    }

    fn success(&mut self, done: &CompletedRequest) {
        let record = &done.record;
        let times = &mut self.times;
        times.e2e_planned.push(done.duration_from_planned().as_nanos());
        times.e2e_sent.push(record.duration().as_nanos());
        if record.streamed {
            times.ttft_planned.extend(done.ttft_from_planned().map(Gap::as_nanos));
            times.ttft_sent.extend(record.ttft().map(Gap::as_nanos));
            times.tpot.extend(record.tpot().map(Gap::as_nanos));
        }
        for gap in &done.gaps {
            let nanos = gap.latency().0.as_nanos();
            if let Some(itl) = &mut self.itl {
                itl.saturating_record(nanos);
            }
        }
    }

    /// Criteria apply from the planned time, when a user's wait begins.
    fn judge(&mut self, done: &CompletedRequest) {
        let mut felt = done.record.clone();
        felt.times.received = done.planned;
        for (slo, verdict) in self.slos.verdicts(&felt) {
            if let Some((_, met, counted)) = self.goodput.iter_mut().find(|(name, ..)| name == slo.name()) {
                *met += u64::from(verdict == Verdict::Met);
                *counted += u64::from(verdict != Verdict::Excluded);
            }
        }
    }

    /// The figures so far. `last` limits the latencies to this many recent requests, because sorting all of a long run
    /// is slow.
    pub fn summary(&self, last: Option<usize>) -> ReplaySummary {
        let spread = |values: &[u64]| {
            let from = last.map_or(0, |last| values.len().saturating_sub(last));
            LatencyStats::from_values(&values[from..])
        };
        let requests: u64 = self.outcomes.values().sum();
        let rate = |first: Option<Stamp>, last: Option<Stamp>| {
            let seconds = last?.since(first?).as_secs();
            (requests > 1 && seconds > 0.0).then(|| (requests - 1) as f64 / seconds)
        };
        let seconds = match (self.first_planned, self.last_end) {
            (Some(first), Some(last)) => last.since(first).as_secs(),
            _ => 0.0,
        };
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let times = &self.times;
        ReplaySummary {
            outside_window: self.outside_window,
            requests,
            outcomes: self.outcomes.clone(),
            errors: self.errors.clone(),
            statuses: self.statuses.clone(),
            held_back: self.held_back,
            later_turns: self.later_turns,
            planned_rate: rate(self.first_planned, self.last_planned),
            sent_rate: rate(self.first_sent, self.last_sent),
            seconds,
            output_rate: per_second(self.output.tokens),
            lag: spread(&times.lag),
            own_lag: spread(&times.own_lag),
            ttft_from_planned: spread(&times.ttft_planned),
            ttft_from_sent: spread(&times.ttft_sent),
            itl: self.itl.as_ref().and_then(LatencyStats::from_histogram),
            tpot: spread(&times.tpot),
            e2e_from_planned: spread(&times.e2e_planned),
            e2e_from_sent: spread(&times.e2e_sent),
            input: self.input,
            output: self.output,
            goodput: self
                .goodput
                .iter()
                .map(|(slo, met, counted)| ReplayGoodput {
                    slo: slo.clone(),
                    met: *met,
                    counted: *counted,
                    per_second: per_second(*met),
                })
                .collect(),
        }
    }
}

/// Whether a count is exact enough to compare with the plan.
fn is_exact(source: CountSource) -> bool {
    source < CountSource::Chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_figures_of_its_values() {
        let values: Vec<u64> = (0..=1_000).rev().collect();
        let spread = LatencyStats::from_values(&values).unwrap();
        assert_eq!((spread.p50, spread.p90, spread.p99, spread.p999), (500, 900, 990, 999));
        assert_eq!((spread.min, spread.max, spread.count, spread.mean), (0, 1_000, 1_001, 500.0));
        assert_eq!(LatencyStats::from_values(&[]), None);
    }
}

//! Aggregates requests: counts, and every value of every metric of the successful ones. Pure.
//!
//! # Memory
//! Each value takes 2, 4 or 8 bytes ([`crate::stats::samples`]). It is stored once in the total, once more in its slice
//! and once more in its group, if the report has those. The numbers of groups and slices are limited.
//!
//! * A gap takes at most 5 bytes, including its latency: ten million gaps take 50 MB.
//! * A request takes at most [`MAX_REQUEST_BYTES`] more. Most take 152 bytes, because only times above 4.29 s need 8
//!   bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::condition::Condition;
use super::definitions::Definitions;
use super::fidelity::FidelityAccumulator;
use super::filter::RequestFilter;
use super::group_by::GroupBy;
use super::lane_sample::LaneSample;
use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use super::request_view::RequestView;
use super::saturation::LoadSample;
use super::sessions::parents::SessionParents;
use super::slice_flow::{SliceFlow, add_flow, slice_number};
use crate::measure::dialect;
use crate::measure::record::Outcome;
use crate::measure::slo::{RequestVerdict, SloInput, Slos};
use crate::measure::time::{Gap, Stamp, extend_span};
use crate::stats::growing_list::push;
use crate::stats::samples::Samples;
use crate::stats::slice_histogram::SliceHistogram;

/// Maximum number of groups. All further groups share the last one, `(others)`.
pub const MAX_GROUPS: usize = 256;
/// Maximum number of slices.
pub const MAX_SLICES: u64 = 10_000;
/// Maximum memory of a request without its gaps, in bytes: a dozen values and a [`RequestPoint`].
pub const MAX_REQUEST_BYTES: usize = 216;
/// Statuses of requests that a server does not accept as they are.
pub(super) const INVALID_STATUSES: [u16; 3] = [400, 413, 422];
/// Maximum models in the context of a report.
const MAX_MODELS: usize = 16;
/// Name of an outcome that the row does not contain.
pub const UNKNOWN_OUTCOME: &str = "unknown";

/// Settings for the aggregation.
#[derive(Debug, Default)]
pub struct AccumulatorSettings {
    /// Definitions of the metrics.
    pub definitions: Definitions,
    /// SLOs for goodput.
    pub slos: Slos,
    /// Length of a time slice; `None` for a report without slices.
    pub slice: Option<Gap>,
    /// Keys that requests are grouped by.
    pub by: Vec<GroupBy>,
    /// Conditions that decide whether the run fails.
    pub conditions: Vec<Condition>,
    /// Selects the requests; the others count nowhere.
    pub filter: RequestFilter,
    /// Keeps a sample of the requests for swim lanes.
    pub keeps_lanes: bool,
    /// Counts each gap at the start of its request instead of its own time, so that runs of one plan pair by request.
    pub gaps_by_request: bool,
}

/// Requests that a server refused as invalid.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// Number of requests.
    pub count: u64,
    /// Prompt and output tokens that they asked for, where both are known.
    pub tokens: Vec<u64>,
}

impl Refusals {
    fn add(&mut self, request: &RequestView) {
        if !request.status.is_some_and(|status| INVALID_STATUSES.contains(&status)) {
            return;
        }
        self.count += 1;
        let input = request.input.or(request.planned_values.input_tokens);
        let output = request.max_tokens.or(request.planned_values.output_tokens);
        if let Some((input, output)) = input.zip(output) {
            push(&mut self.tokens, input.saturating_add(output));
        }
    }
}

/// Counts of one SLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SloCounts {
    /// Requests that met the SLO.
    pub met: u64,
    /// Requests that the SLO applies to.
    pub counted: u64,
    /// Output tokens of the requests that met it.
    pub tokens: u64,
    /// Successes that the SLO applies to.
    pub successes: u64,
    /// Requests that missed each of [`OBJECTIVES`]; one request may miss several.
    pub missed: [u64; OBJECTIVES.len()],
}

/// Names of the objectives that a request can miss; `error` is a request without a complete response.
pub const OBJECTIVES: [&str; 6] = ["ttft", "ttfo", "itl", "tpot", "e2e", "error"];

/// Aggregate of a set of requests.
#[derive(Clone, Debug, Default)]
pub struct RequestStats {
    /// Requests by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Responses by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// Values of each metric, in the order of [`ReportMetric::ALL`].
    pub samples: [Samples; ReportMetric::ALL.len()],
    /// Counts of each SLO, in their configured order.
    pub goodput: Vec<SloCounts>,
    /// Successes by the source of their output token count.
    pub sources: BTreeMap<&'static str, u64>,
    /// Prompt tokens of successes that came from a cache.
    pub cached: u64,
    /// Successes without any output, among requests for text.
    pub without_output: u64,
    /// Gaps that the record does not contain.
    pub lost_gaps: u64,
    /// Streams whose events carry no token counts: (tokens, events).
    pub missing_event_tokens: (u64, u64),
    /// First start and last end.
    pub window: Option<(Stamp, Stamp)>,
    /// First send.
    pub first_sent: Option<Stamp>,
}

impl RequestStats {
    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Returns the number of requests with a complete response.
    pub fn successes(&self) -> u64 {
        self.outcomes.get(Outcome::Success.name()).copied().unwrap_or(0)
    }

    /// Adds the requests of another run. The window is left out, because two runs share no time.
    pub fn merge(&mut self, other: &Self) {
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_default() += count;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (source, count) in &other.sources {
            *self.sources.entry(*source).or_default() += count;
        }
        self.samples.iter_mut().zip(&other.samples).for_each(|(all, more)| all.extend(more));
        self.goodput.resize(self.goodput.len().max(other.goodput.len()), SloCounts::default());
        for (all, more) in self.goodput.iter_mut().zip(&other.goodput) {
            all.met += more.met;
            all.counted += more.counted;
            all.tokens += more.tokens;
            all.successes += more.successes;
            all.missed.iter_mut().zip(more.missed).for_each(|(all, more)| *all += more);
        }
        self.cached += other.cached;
        self.without_output += other.without_output;
        self.lost_gaps += other.lost_gaps;
        self.add_missing_event_tokens(other.missing_event_tokens);
    }

    /// Saturates, because a file may contain any number of tokens.
    fn add_missing_event_tokens(&mut self, (tokens, events): (u64, u64)) {
        self.missing_event_tokens =
            (self.missing_event_tokens.0.saturating_add(tokens), self.missing_event_tokens.1 + events);
    }

    fn add(&mut self, request: &RequestView, settings: &AccumulatorSettings, verdicts: &[SloVerdict]) {
        let definitions = settings.definitions;
        *self.outcomes.entry(request.outcome.map_or(UNKNOWN_OUTCOME, Outcome::name)).or_default() += 1;
        if let Some(status) = request.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        let begin = definitions.start(request);
        self.window = Some(extend_span(self.window, begin, request.ended.unwrap_or(begin)));
        self.first_sent = Some(self.first_sent.map_or(request.sent, |first| first.min(request.sent)));
        if let Some(planned) = request.planned {
            self.samples[ReportMetric::Lag as usize].push(request.sent.since(planned).as_nanos());
        }
        let tokens = definitions.tokens(request).unwrap_or(0);
        self.goodput.resize(verdicts.len(), SloCounts::default());
        for (good, verdict) in self.goodput.iter_mut().zip(verdicts) {
            let met = verdict.met == Some(true);
            good.met += u64::from(met);
            good.counted += u64::from(verdict.met.is_some());
            good.tokens += if met { tokens } else { 0 };
            good.successes += u64::from(verdict.met.is_some() && request.succeeded());
            let is_missed = |objective: usize| u64::from(verdict.missed >> objective & 1);
            good.missed.iter_mut().enumerate().for_each(|(at, missed)| *missed += is_missed(at));
        }
        if !request.succeeded() {
            return;
        }
        if let Some(count) = request.tokens {
            *self.sources.entry(count.source.name()).or_default() += 1;
        }
        self.cached += request.cached.unwrap_or(0);
        self.without_output += u64::from(request.has_no_output());
        self.lost_gaps += request.lost_gaps;
        // Other tools' ITL ignores tokens per event or uses the total of the response.
        if let Some(untold) = request.missing_event_tokens().filter(|_| definitions == Definitions::Streamgauge) {
            self.add_missing_event_tokens(untold);
        }
        definitions.measure(request, |metric, value| self.samples[metric as usize].push(value));
    }
}

/// Aggregates requests.
#[derive(Debug, Default)]
pub struct Accumulator {
    /// Settings for the aggregation.
    pub settings: AccumulatorSettings,
    /// All requests.
    pub total: RequestStats,
    /// By index of the time slice in which the request started.
    pub slices: BTreeMap<u64, RequestStats>,
    /// Responses and tokens of each time slice, whenever their requests started.
    pub flows: BTreeMap<u64, SliceFlow>,
    /// By the values of the group keys.
    pub groups: BTreeMap<Vec<String>, RequestStats>,
    /// Comparison of all requests with their plan.
    pub fidelity: FidelityAccumulator,
    /// Warm-up requests, which count nowhere else.
    pub warm_up: RequestStats,
    /// Every request, for intervals, charts and diagnosis.
    pub points: Vec<RequestPoint>,
    /// Requests that a server refused as invalid.
    pub refusals: Refusals,
    /// Parents of the sessions.
    pub parents: SessionParents,
    /// Inter-token latencies of the successes by time.
    pub gaps: SliceHistogram,
    /// Sample for swim lanes.
    pub lanes: LaneSample,
    /// The first models that requests named.
    pub models: BTreeSet<String>,
    /// Wall-clock time of the timeline's start, in nanoseconds since 1970.
    pub zero_unix_ns: Option<u64>,
}

/// The slices would exceed [`MAX_SLICES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slices of {0} are more than {MAX_SLICES}: make them longer")]
pub struct TooManySlices(Gap);

impl Accumulator {
    /// Creates an empty aggregate.
    pub fn new(settings: AccumulatorSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Adds a request of the warm-up.
    pub fn add_warm_up(&mut self, request: &RequestView) {
        if !self.settings.filter.accepts(request) {
            return;
        }
        self.warm_up.add(request, &self.settings, &verdicts(request, &self.settings));
    }

    /// Adds a request.
    ///
    /// # Errors
    /// Returns [`TooManySlices`] if the request's slice exceeds the limit.
    pub fn add(&mut self, request: &RequestView) -> Result<(), TooManySlices> {
        if !self.settings.filter.accepts(request) {
            return Ok(());
        }
        let verdicts = verdicts(request, &self.settings);
        self.total.add(request, &self.settings, &verdicts);
        self.fidelity.add(request);
        self.refusals.add(request);
        self.parents.add(request);
        let met: Vec<Option<bool>> = verdicts.iter().map(|verdict| verdict.met).collect();
        let point = RequestPoint::of(request, self.settings.definitions, &met);
        if self.settings.keeps_lanes {
            self.lanes.add(point);
        }
        push(&mut self.points, point);
        self.add_gaps(request);
        if let Some(model) = request.model.as_ref().filter(|_| self.models.len() < MAX_MODELS)
            && !self.models.contains(model)
        {
            self.models.insert(model.clone());
        }
        if let Some(length) = self.settings.slice {
            let number = slice_number(request.started(), length);
            if slice_number(request.ended.unwrap_or(request.started()), length).max(number) >= MAX_SLICES {
                return Err(TooManySlices(length));
            }
            self.slices.entry(number).or_default().add(request, &self.settings, &verdicts);
            add_flow(&mut self.flows, request, self.settings.definitions, length);
        }
        if !self.settings.by.is_empty() {
            let mut key: Vec<String> = self.settings.by.iter().map(|key| key.of(request, self.zero_unix_ns)).collect();
            if !self.groups.contains_key(&key) && self.groups.len() >= MAX_GROUPS - 1 {
                key = vec!["(others)".to_owned(); key.len()];
            }
            self.groups.entry(key).or_default().add(request, &self.settings, &verdicts);
        }
        Ok(())
    }
}

impl Accumulator {
    /// The load at each send.
    pub fn load_samples(&self) -> Vec<LoadSample> {
        self.points.iter().filter_map(RequestPoint::load_sample).collect()
    }

    /// Adds each gap, if the definitions have one value per gap: at the time of its later event, or of its request.
    fn add_gaps(&mut self, request: &RequestView) {
        let Some(value) = self.settings.definitions.gap_value().filter(|_| request.succeeded()) else { return };
        let Some(mut at) = request.first else { return };
        let start = self.settings.definitions.start(request);
        for event in &request.events {
            at = at.after(event.gap());
            let place = if self.settings.gaps_by_request { start } else { at };
            self.gaps.push(place.as_nanos(), value(event).as_nanos());
        }
    }
}

/// Verdict of one SLO on one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct SloVerdict {
    /// `None` if the SLO does not apply.
    pub met: Option<bool>,
    /// Missed objectives by bit, in the order of [`OBJECTIVES`].
    missed: u8,
}

/// Returns each SLO's verdict. Users wait from the planned moment, so objectives
/// start there if the definitions include it.
pub fn verdicts(request: &RequestView, settings: &AccumulatorSettings) -> Vec<SloVerdict> {
    let (definitions, slos) = (settings.definitions, &settings.slos);
    let start = definitions.start(request);
    let times = definitions.times(request, start);
    let limits = slos.gap_limits().iter();
    let over = limits.map(|limit| request.events.iter().filter(|event| event.latency().0 > *limit).count() as u64);
    let over: Vec<u64> = over.collect();
    let route = request.dialect.as_deref().and_then(dialect::named).map_or("", |dialect| dialect.route);
    let judged = SloInput {
        route: Some(route),
        model: request.model.as_deref().unwrap_or(""),
        classes: &request.classes,
        request_slo: request.slo,
        outcome: request.outcome.unwrap_or(Outcome::Failed),
        // The row records the requested mode. A response that arrived in one piece has no observed token time.
        streamed: request.streamed && (request.first.is_some() || definitions != Definitions::Streamgauge),
        ttft: times.ttft,
        ttfo: times.ttfo,
        tpot: times.tpot.or(times.mean_itl).or_else(|| definitions.tpot_when_missing()),
        e2e: times.e2e.unwrap_or_default(),
        gap_count: request.events.len() as u64,
        gaps_over: &over,
    };
    let judged: Vec<(&str, RequestVerdict)> = slos.judge(judged).map(|(slo, verdict)| (slo.name(), verdict)).collect();
    let of = |name: &str| judged.iter().find(|(judged, _)| *judged == name).map(|(_, verdict)| verdict);
    slos.iter()
        .map(|slo| match of(slo.name()) {
            None | Some(RequestVerdict::Excluded) => SloVerdict::default(),
            Some(RequestVerdict::Met) => SloVerdict { met: Some(true), missed: 0 },
            Some(RequestVerdict::Missed(names)) => {
                let bits = OBJECTIVES.iter().zip(0..).map(|(name, at)| u8::from(names.contains(name)) << at);
                SloVerdict { met: Some(false), missed: bits.fold(0, |bits, bit| bits | bit) }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::timeline::TokenEvent;
    use crate::trace_file::gaps::pack;
    use crate::trace_file::row::{Timing, TraceEntry};

    fn bytes(fold: &Accumulator) -> usize {
        let samples: usize = fold.total.samples.iter().map(Samples::bytes).sum();
        samples + fold.points.capacity() * size_of::<RequestPoint>()
    }

    #[test]
    fn a_gap_takes_at_most_5_bytes() {
        let events: Vec<_> = (0..1_000_000).map(|gap| TokenEvent::new(Gap::from_nanos(gap * 1_000), Some(1))).collect();
        let row = TraceEntry {
            stream: Some(true),
            outcome: Some(Outcome::Success),
            timing: Timing { first_token: Some(1), gaps: Some(pack(&events)), ..Timing::default() },
            ..TraceEntry::default()
        };
        let request = RequestView::from_row(row, 0, None).unwrap();
        let mut fold = Accumulator::default();
        (0..10).for_each(|_| fold.add(&request).unwrap());
        assert_eq!(fold.total.samples[ReportMetric::Itl as usize].len(), 10_000_000);
        assert!(bytes(&fold) <= 50_400_000, "{}", bytes(&fold));
    }

    #[test]
    fn a_request_takes_no_more_than_is_said() {
        use crate::measure::record::CountSource;
        // A request with every field set, once with long times and once with short ones.
        let of = |unit: u64| {
            let events = [TokenEvent::new(Gap::from_nanos(unit), Some(300))];
            let timing = Timing {
                sent: Some(unit),
                evidence: Some(2 * unit),
                first_token: Some(2 * unit),
                first_output: Some(2 * unit),
                ended: Some(4 * unit),
                first_tokens: Some(300),
                gaps: Some(pack(&events)),
                ..Timing::default()
            };
            let mut row = TraceEntry {
                at: 3 * unit,
                planned: Some(unit),
                stream: Some(true),
                status: Some(200),
                outcome: Some(Outcome::Success),
                output_tokens: Some(600),
                output_source: Some(CountSource::Usage),
                in_flight: Some(9),
                timing,
                ..TraceEntry::default()
            };
            row.prompt.tokens = Some(5_000);
            let request = RequestView::from_row(row, 0, None).unwrap();
            let mut fold = Accumulator::default();
            (0..400_000).for_each(|_| fold.add(&request).unwrap());
            assert!(fold.total.samples.iter().all(|samples| samples.len() >= 400_000), "every number is known");
            bytes(&fold).div_ceil(400_000)
        };
        let (short, long) = (of(10_000_000), of(5_000_000_000));
        assert!(short <= 152 && long <= MAX_REQUEST_BYTES + 2 * 9, "{short} and {long} bytes");
    }
}

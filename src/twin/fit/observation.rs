//! Rows as the fit reads them, one group per upstream and model.

use crate::measure::record::Outcome;
use crate::trace_file::gaps::unpack;
use crate::trace_file::row::TraceEntry;
use crate::twin::traffic::TwinRequest;

/// Most requests that a fit reads; later ones are left out.
pub const MAX_FIT_REQUESTS: usize = 200_000;
/// Gaps from which a percentile is taken; of more, evenly spaced ones.
const MAX_GAP_SAMPLE: usize = 100_000;
/// Most token events that a fit reads.
const MAX_FIT_EVENTS: usize = 20_000_000;

/// Requests that one engine served, in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct EngineTraffic {
    /// Host and port of the server.
    pub upstream: Option<String>,
    /// Model.
    pub model: Option<String>,
    /// The requests.
    pub requests: Vec<ObservedRequest>,
}

/// What a fit sees: requests, and the engine from the end of its cold start until the first request that is held out
/// arrives. From then on it serves requests that the fit does not see.
#[derive(Clone, Copy)]
pub(super) struct Observation<'a> {
    pub(super) requests: &'a [ObservedRequest],
    /// Nanoseconds on the line of the sources.
    pub(super) from: u64,
    /// Nanoseconds on the same line.
    pub(super) until: u64,
}

/// One request and the times of its tokens. Times are nanoseconds on the line of the sources.
#[derive(Clone, Debug)]
pub struct ObservedRequest {
    /// Arrival.
    pub at: u64,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that the server took from its cache, if it reports them.
    pub cached: Option<u32>,
    /// Output tokens.
    pub output_tokens: u32,
    /// Times of token events, with the tokens of each; empty if the response was not streamed.
    pub events: Vec<(u64, u32)>,
    /// End of the response.
    pub ended: u64,
    /// The row without its times.
    pub entry: TraceEntry,
}

impl ObservedRequest {
    /// Reads a row; `None` if the request was not served, or states no lengths. `shift` moves its times.
    pub fn from_row(mut entry: TraceEntry, shift: u64) -> Option<Self> {
        entry.at = entry.at.saturating_add(shift);
        let gaps = entry.timing.gaps.take();
        let timing = std::mem::take(&mut entry.timing);
        let served = matches!(entry.outcome, Some(Outcome::Success | Outcome::Cancelled));
        let ended = entry.at.saturating_add(timing.ended.filter(|_| served)?);
        // Arrivals are those of the capture: a turn does not wait for a simulated response.
        entry.think = None;
        let request = TwinRequest::from_row(entry)?;
        let mut events = Vec::new();
        let streamed = request.entry.stream != Some(false) && timing.lost_gaps.is_none();
        if let (true, Some(first)) = (streamed, timing.first_token) {
            let mut at = request.entry.at.saturating_add(first);
            events.push((at, timing.first_tokens.unwrap_or(1).max(1)));
            for gap in gaps.and_then(|gaps| unpack(&gaps).ok()).unwrap_or_default() {
                at = at.saturating_add(gap.gap().as_nanos());
                events.push((at, gap.tokens().unwrap_or(1)));
            }
        }
        let cached = request.entry.prompt.cached.and_then(|cached| u32::try_from(cached).ok());
        Some(Self {
            at: request.entry.at,
            prompt_tokens: request.prompt_tokens,
            cached: cached.map(|cached| cached.min(request.prompt_tokens)),
            output_tokens: request.output_tokens,
            events,
            ended,
            entry: request.entry,
        })
    }

    /// Time of the first token.
    pub fn first(&self) -> Option<u64> {
        self.events.first().map(|(at, _)| *at)
    }

    /// Times between token events, in nanoseconds.
    pub(super) fn gaps(&self) -> impl Iterator<Item = u64> {
        self.events.windows(2).map(|pair| pair[1].0 - pair[0].0)
    }

    pub(super) fn is_usable(&self) -> bool {
        self.events.len() > 1
    }

    /// Prompt tokens that had to be computed.
    pub(super) fn computed(&self) -> f64 {
        f64::from(self.prompt_tokens - self.cached.unwrap_or(0))
    }

    /// Squared length of the prompt without its cached part.
    pub(super) fn squares(&self) -> f64 {
        f64::from(self.prompt_tokens).powi(2) - f64::from(self.cached.unwrap_or(0)).powi(2)
    }
}

/// A short time between token events, in nanoseconds: the tenth percentile. `None` without gaps.
pub(super) fn short_gap(requests: &[ObservedRequest]) -> Option<u64> {
    let gaps = || requests.iter().flat_map(ObservedRequest::gaps);
    let stride = gaps().count().div_ceil(MAX_GAP_SAMPLE).max(1);
    let mut sample: Vec<u64> = gaps().step_by(stride).filter(|gap| *gap > 0).collect();
    let place = sample.len() / 10;
    (!sample.is_empty()).then(|| *sample.select_nth_unstable(place).1)
}

/// Sorts rows into the traffic of each engine.
#[derive(Debug, Default)]
pub struct TrafficGroups {
    groups: Vec<EngineTraffic>,
    requests: usize,
    events: usize,
    /// Rows beyond the limits.
    pub left_out: u64,
}

impl TrafficGroups {
    /// Adds a row.
    pub fn add(&mut self, entry: TraceEntry, shift: u64) {
        if self.requests >= MAX_FIT_REQUESTS || self.events >= MAX_FIT_EVENTS {
            self.left_out += 1;
            return;
        }
        let Some(request) = ObservedRequest::from_row(entry, shift) else { return };
        self.requests += 1;
        self.events += request.events.len();
        let (upstream, model) = (&request.entry.upstream, &request.entry.model);
        match self.groups.iter_mut().find(|group| group.upstream == *upstream && group.model == *model) {
            Some(group) => group.requests.push(request),
            None => {
                let (upstream, model) = (upstream.clone(), model.clone());
                self.groups.push(EngineTraffic { upstream, model, requests: vec![request] });
            }
        }
    }

    /// The groups, largest first, each in order of arrival.
    pub fn finish(mut self) -> Vec<EngineTraffic> {
        for group in &mut self.groups {
            group.requests.sort_by_key(|request| request.at);
        }
        self.groups.sort_by_key(|group| std::cmp::Reverse(group.requests.len()));
        self.groups
    }
}

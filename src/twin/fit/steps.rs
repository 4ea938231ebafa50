//! Steps of the engine, from token events that came together.

use super::observation::{ObservedRequest, short_gap};

/// Most time between token events of one step, in nanoseconds, and as a share of a short step.
const STEP_SPREAD: (f64, f64) = (1_000_000.0, 0.2);
/// Largest spread of the gaps of a step, relative to their median, that is still one step.
const MAX_GAP_SPREAD: f64 = 0.25;

/// One step.
#[derive(Clone, Debug)]
pub(super) struct EngineStep {
    /// Its end.
    pub(super) at: u64,
    /// Median gap of its decoding sequences, in nanoseconds; `None` if it has none.
    pub(super) gap: Option<f64>,
    /// Sequences that were decoding. Servers send the tokens of one step one after the other, so that they need not all
    /// be seen in it.
    pub(super) decoding: u32,
    /// Decoding sequences whose token was seen in the step.
    pub(super) seen: u32,
    /// Tokens of context of the decoding sequences.
    pub(super) context: f64,
    /// Tokens of that context which came from the cache, and which sequences may share.
    pub(super) cached: f64,
    /// Requests whose first token came with this step.
    pub(super) firsts: Vec<usize>,
    /// Requests that had arrived before the step began, and got no token in it.
    pub(super) waiting: u32,
    /// Tokens per decoding sequence.
    pub(super) tokens: f64,
    /// Another step gave first tokens between the tokens of this one, so the gap is that of several steps.
    pub(super) is_interrupted: bool,
}

impl EngineStep {
    /// True if the gap is that of one step without first tokens.
    pub(super) fn is_decode(&self) -> bool {
        self.gap.is_some() && self.firsts.is_empty() && !self.is_interrupted
    }

    /// True if the step certainly computed no prompt.
    pub(super) fn is_pure_decode(&self) -> bool {
        self.is_decode() && self.waiting == 0
    }
}

/// The sequences that are decoding between two steps.
#[derive(Clone, Copy, Debug, Default)]
struct RunningBatch {
    sequences: u32,
    /// Tokens of their context.
    context: f64,
    /// Tokens of that context which came from the cache.
    cached: f64,
}

impl RunningBatch {
    /// Adds a token event: the first one of a request adds its sequence, the last one removes it.
    fn add(&mut self, point: &TokenPoint, request: &ObservedRequest, contexts: &[u32]) {
        let cached = f64::from(request.cached.unwrap_or(0));
        if point.event == 0 {
            self.sequences += 1;
            self.context += f64::from(contexts[0]);
            self.cached += cached;
        } else {
            self.context += f64::from(contexts[point.event] - contexts[point.event - 1]);
        }
        if point.event + 1 == contexts.len() {
            self.sequences -= 1;
            self.context -= f64::from(contexts[point.event]);
            self.cached -= cached;
        }
    }
}

struct TokenPoint {
    at: u64,
    request: usize,
    event: usize,
}

/// Finds the steps of one engine. A request waits from `front_end` nanoseconds after its arrival on.
pub(super) fn find_steps(requests: &[ObservedRequest], front_end: f64) -> Vec<EngineStep> {
    let events = requests.iter().enumerate().flat_map(|(request, seen)| {
        seen.events.iter().enumerate().map(move |(event, (at, _))| TokenPoint { at: *at, request, event })
    });
    let mut points: Vec<TokenPoint> = events.collect();
    points.sort_unstable_by_key(|point| (point.at, point.request, point.event));
    let contexts: Vec<Vec<u32>> = requests.iter().map(contexts_of).collect();
    let spread = spread(requests);
    let mut arrivals: Vec<u64> = requests
        .iter()
        .filter(|seen| !seen.events.is_empty())
        .map(|seen| seen.at.saturating_add(front_end as u64))
        .collect();
    let mut firsts: Vec<u64> = requests.iter().filter_map(ObservedRequest::first).collect();
    arrivals.sort_unstable();
    firsts.sort_unstable();
    let mut steps = Vec::new();
    let mut rest = &points[..];
    // The number of the last step of each request, from 1.
    let (mut number, mut last) = (0_usize, vec![0_usize; requests.len()]);
    let mut running = RunningBatch::default();
    while let Some(first) = rest.first() {
        number += 1;
        // A request has one event per step: tokens that a stalled reader received together are of several steps.
        let is_next = |point: &TokenPoint| {
            (point.at - first.at) as f64 > spread || std::mem::replace(&mut last[point.request], number) == number
        };
        let end = rest.iter().position(is_next).unwrap_or(rest.len());
        let (members, later) = rest.split_at(end);
        rest = later;
        steps.extend(step_of(members, requests, running, (&arrivals, &firsts, spread)));
        members.iter().for_each(|point| running.add(point, &requests[point.request], &contexts[point.request]));
    }
    steps
}

fn step_of(
    members: &[TokenPoint],
    requests: &[ObservedRequest],
    running: RunningBatch,
    (arrivals, firsts, spread): (&[u64], &[u64], f64),
) -> Option<EngineStep> {
    let at = members.last()?.at;
    let (mut gaps, mut tokens, mut new) = (Vec::new(), 0.0, Vec::new());
    for TokenPoint { request, event, .. } in members {
        let seen = &requests[*request];
        match event.checked_sub(1) {
            None => new.push(*request),
            Some(before) => {
                gaps.push((seen.events[*event].0 - seen.events[before].0) as f64);
                tokens += f64::from(seen.events[*event].1);
            }
        }
    }
    gaps.sort_unstable_by(f64::total_cmp);
    let gap = gaps.get(gaps.len() / 2).copied();
    if let (Some(gap), Some(shortest), Some(longest)) = (gap, gaps.first(), gaps.last())
        && (longest - shortest > MAX_GAP_SPREAD * gap || *longest <= spread)
    {
        return None;
    }
    let began = gap.map_or(at, |gap| at.saturating_sub(gap as u64));
    let arrived = arrivals.partition_point(|arrival| *arrival <= began);
    let started = firsts.partition_point(|first| *first <= at);
    let between = started - firsts.partition_point(|first| *first <= began.saturating_add(spread as u64)).min(started);
    let seen = gaps.len();
    Some(EngineStep {
        at,
        gap,
        decoding: running.sequences,
        seen: u32::try_from(seen).unwrap_or(u32::MAX),
        context: running.context,
        cached: running.cached,
        waiting: u32::try_from(arrived.saturating_sub(started)).unwrap_or(u32::MAX),
        is_interrupted: gap.is_some() && between > new.len(),
        firsts: new,
        tokens: if seen > 0 { tokens / seen as f64 } else { 0.0 },
    })
}

/// Tokens of context after each event.
fn contexts_of(request: &ObservedRequest) -> Vec<u32> {
    let mut context = request.prompt_tokens;
    let after = request.events.iter().map(|(_, tokens)| {
        context = context.saturating_add(*tokens);
        context
    });
    after.collect()
}

/// Time within which token events belong to one step.
fn spread(requests: &[ObservedRequest]) -> f64 {
    let short = short_gap(requests).unwrap_or(0) as f64;
    STEP_SPREAD.0.min(short * STEP_SPREAD.1)
}

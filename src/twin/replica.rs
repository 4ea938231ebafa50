//! One replica of a fleet: an engine and its open requests.

use std::sync::Arc;

use ahash::AHashMap;

use super::response::{TwinOutcome, TwinResponse};
use super::traffic::TwinRequest;
use crate::engine::{Engine, EngineFinish, EngineJob, EngineOptions, TokenTimes};
use crate::measure::time::Stamp;
use crate::measure::timeline::TokenEvent;

/// Whether a replica takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaState {
    /// It takes requests.
    Ready,
    /// It starts up.
    Starting,
    /// It finishes its requests and takes no others.
    Draining,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) name: Arc<str>,
    pub(super) state: ReplicaState,
    options: EngineOptions,
    engine: Engine,
    open: AHashMap<u64, OpenRequest>,
    /// The engine's next finish, if known.
    next_finish: Option<Option<Stamp>>,
}

#[derive(Debug)]
struct OpenRequest {
    request: Box<TwinRequest>,
    phase: RequestPhase,
    /// Requests of the replica when it came, itself included.
    in_flight: u32,
}

/// The part of a request that a replica serves.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestPhase {
    /// All of it.
    Whole,
    /// The prompt and the first token.
    Prefill,
    /// All tokens after the first.
    Decode(PrefillResult),
}

/// Result of a prefill replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillResult {
    pub(super) first: Stamp,
    pub(super) cached: u32,
}

/// A request whose prompt is computed, on its way to a decoding replica.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) request: Box<TwinRequest>,
    pub(super) prefill: PrefillResult,
}

/// What replicas have finished.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) responses: Vec<TwinResponse>,
    pub(super) transfers: Vec<Transfer>,
}

impl Replica {
    pub(super) fn new(name: &str, options: EngineOptions, state: ReplicaState) -> Self {
        let engine = new_engine(&options);
        Self { name: name.into(), state, options, engine, open: AHashMap::new(), next_finish: None }
    }

    pub(super) fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Most requests that run at once.
    pub(super) fn max_running(&self) -> usize {
        usize::try_from(self.options.max_num_seqs).unwrap_or(usize::MAX)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.open.len()
    }

    pub(super) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Takes a part of a request at `now`. The fleet limits the queue.
    pub(super) fn submit(&mut self, now: Stamp, request: Box<TwinRequest>, phase: RequestPhase, job: EngineJob) {
        self.next_finish = None;
        if let Ok(seqs) = self.engine.submit(now, vec![job]) {
            let in_flight = u32::try_from(self.open.len() + 1).unwrap_or(u32::MAX);
            self.open.insert(seqs.start, OpenRequest { request, phase, in_flight });
        }
    }

    /// A time before which no request finishes; `None` when idle.
    pub(super) fn next_finish(&mut self) -> Option<Stamp> {
        let engine = &self.engine;
        *self.next_finish.get_or_insert_with(|| engine.next_finish())
    }

    /// Runs the engine until `until`.
    pub(super) fn advance(&mut self, until: Stamp, finished: &mut Finished) {
        if self.open.is_empty() {
            return;
        }
        self.next_finish = None;
        let Self { engine, open, name, options, .. } = self;
        engine.advance(until, |done| {
            let Some(OpenRequest { request, phase, in_flight }) = open.remove(&done.seq) else { return };
            if matches!(phase, RequestPhase::Prefill) {
                let prefill = PrefillResult { first: done.at, cached: done.finished.cached_tokens };
                finished.transfers.push(Transfer { request, prefill });
                return;
            }
            let outcome = match done.finished.reason {
                EngineFinish::Abort => TwinOutcome::Aborted,
                _ => TwinOutcome::Complete,
            };
            let cached = done.finished.cached_tokens;
            let response =
                respond(request, phase, (done.generated, options.tokens_per_step), &done.times, (outcome, cached));
            finished.responses.push(TwinResponse {
                ended: done.at,
                replica: Some(name.clone()),
                in_flight,
                ..response
            });
        });
    }

    /// Loses all requests, and restarts the engine with an empty cache.
    pub(super) fn fail(&mut self, now: Stamp, finished: &mut Finished) {
        self.next_finish = None;
        self.state = ReplicaState::Starting;
        let engine = std::mem::replace(&mut self.engine, new_engine(&self.options));
        let Self { open, name, options, .. } = self;
        engine.abandon(|seq, generated, times| {
            let Some(OpenRequest { request, phase, in_flight }) = open.remove(&seq) else { return };
            let outcome = (TwinOutcome::ReplicaLost, 0);
            let response = respond(request, phase, (generated, options.tokens_per_step), &times, outcome);
            finished.responses.push(TwinResponse { ended: now, replica: Some(name.clone()), in_flight, ..response });
        });
    }
}

fn new_engine(options: &EngineOptions) -> Engine {
    let mut engine = Engine::new(options);
    engine.keep_token_times();
    engine
}

/// Builds the response; the caller knows its end and its replica.
fn respond(
    request: Box<TwinRequest>,
    phase: RequestPhase,
    (generated, tokens_per_step): (u32, u32),
    times: &TokenTimes<'_>,
    (outcome, cached): (TwinOutcome, u32),
) -> TwinResponse {
    let (count, mut times) = (times.count(), times.iter());
    let (first, cached) = match phase {
        RequestPhase::Decode(prefill) => (Some(prefill.first), prefill.cached),
        _ => (times.next(), cached),
    };
    let mut events = Vec::new();
    if let Some(first) = first {
        events.reserve_exact(count);
        let (mut before, mut left) = (first, generated.saturating_sub(1));
        // A loop inside of the iterator, which is faster than one around it.
        times.for_each(|at| {
            let tokens = tokens_per_step.min(left);
            left -= tokens;
            events.push(TokenEvent::new(at.since(std::mem::replace(&mut before, at)), Some(tokens)));
        });
    }
    let ended = request.at;
    TwinResponse { request, replica: None, outcome, first, events, ended, generated, cached, in_flight: 0 }
}

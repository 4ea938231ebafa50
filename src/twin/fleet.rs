//! A fleet: the replicas that serve one model, and the gateway before them.

use super::model::TwinModel;
use super::operations::{AutoscaleMetric, Autoscaler, Operations};
use super::parameter::Parameter;
use super::replica::{Finished, PrefillResult, Replica, ReplicaState, RequestPhase, Transfer};
use super::response::{TwinOutcome, TwinResponse};
use super::router::{Candidate, RouteKey, Router};
use super::traffic::TwinRequest;
use crate::engine::{EngineJob, EngineOptions};
use crate::measure::time::Stamp;
use crate::trace_file::header::BlockScheme;

/// Most requests that wait in a fleet, beyond those that its replicas run at once. A fleet that serves less than comes
/// would queue without end, and each request takes some kilobytes: it refuses further ones.
pub const MAX_QUEUED_REQUESTS: usize = 1 << 16;

/// Engines and size of a fleet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Model that it serves; `None` for any model.
    pub model: Option<String>,
    /// Engines of the replicas; further replicas repeat them.
    pub engines: Vec<EngineOptions>,
    /// Number of replicas at first.
    pub replicas: u32,
    /// The gateway's rule.
    pub router: Router,
}

impl TwinModel {
    /// One fleet per model, in the order of the twin. Without a number of replicas, each engine is one.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn fleets(
        &self,
        settings: &[(Parameter, f64)],
        replicas: Option<u32>,
        router: Router,
    ) -> Result<Vec<FleetOptions>, String> {
        let mut fleets: Vec<FleetOptions> = Vec::new();
        for engine in &self.engines {
            let mut options = engine.options()?;
            for (parameter, value) in settings {
                parameter.apply(*value, &mut options)?;
            }
            match fleets.iter_mut().find(|fleet| fleet.model == engine.model) {
                Some(fleet) => fleet.engines.push(options),
                None => {
                    let (model, engines) = (engine.model.clone(), vec![options]);
                    fleets.push(FleetOptions { model, engines, replicas: 0, router });
                }
            }
        }
        for fleet in &mut fleets {
            fleet.replicas = replicas.unwrap_or(u32::try_from(fleet.engines.len()).unwrap_or(u32::MAX));
        }
        if let [only] = &mut fleets[..] {
            // Traffic of another model is a question to this one.
            only.model = None;
        }
        Ok(fleets)
    }
}

impl FleetOptions {
    /// Whether requests for this model come here.
    pub fn serves(&self, model: Option<&str>) -> bool {
        self.model.is_none() || self.model.as_deref() == model
    }

    /// Replicas that serve at first.
    pub fn count(&self) -> u32 {
        self.router.replicas().unwrap_or(self.replicas)
    }
}

#[derive(Debug)]
pub(super) struct SimulatedFleet {
    pub(super) options: FleetOptions,
    admission: Option<usize>,
    replicas: Vec<Replica>,
    autoscaler: Option<Autoscaler>,
    /// Requests so far.
    turn: u64,
    finished: Finished,
    candidates: Vec<Candidate>,
}

impl SimulatedFleet {
    /// A fleet of running replicas.
    pub(super) fn new(options: FleetOptions, operations: &Operations) -> Self {
        let count = options.count().max(1);
        let mut fleet = Self {
            admission: operations.admission.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            replicas: Vec::new(),
            autoscaler: operations.autoscale.map(|rule| Autoscaler::new(rule, count)),
            turn: 0,
            finished: Finished::default(),
            candidates: Vec::new(),
            options,
        };
        (0..count).for_each(|_| fleet.add_replica(ReplicaState::Ready));
        fleet
    }

    fn add_replica(&mut self, state: ReplicaState) {
        let number = self.replicas.len();
        let engine = self.options.engines[number % self.options.engines.len()].clone();
        let name = match &self.options.model {
            Some(model) => format!("simulated-{model}-{}", number + 1),
            None => format!("simulated-{}", number + 1),
        };
        self.replicas.push(Replica::new(&name, engine, state));
    }

    /// True if a response can change what other replicas do.
    pub(super) fn is_reactive(&self) -> bool {
        matches!(self.options.router, Router::Pools { .. })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.replicas.iter().all(|replica| replica.in_flight() == 0)
    }

    /// Replicas that take requests or start.
    pub(super) fn replicas(&self) -> u32 {
        let counted = self.replicas.iter().filter(|replica| replica.state != ReplicaState::Draining);
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }

    /// A time before which no request finishes; `None` when idle.
    pub(super) fn next_finish(&mut self) -> Option<Stamp> {
        self.replicas.iter_mut().filter_map(Replica::next_finish).min()
    }

    /// Runs all replicas until `until`.
    pub(super) fn advance(&mut self, until: Stamp, done: &mut Vec<TwinResponse>) {
        for replica in &mut self.replicas {
            replica.advance(until, &mut self.finished);
        }
        self.collect(done);
    }

    /// Runs the replicas that may finish a request before `until`: the numbers of requests in flight are those of `until`.
    pub(super) fn finish_before(&mut self, until: Stamp, done: &mut Vec<TwinResponse>) {
        for replica in &mut self.replicas {
            if replica.next_finish().is_some_and(|finish| finish < until) {
                replica.advance(until, &mut self.finished);
            }
        }
        self.collect(done);
    }

    /// Routes a request at `now`.
    pub(super) fn submit(
        &mut self,
        now: Stamp,
        request: Box<TwinRequest>,
        scheme: Option<&BlockScheme>,
        done: &mut Vec<TwinResponse>,
    ) {
        match self.options.router {
            Router::Prefix => self.advance(now, done),
            router if router.needs_load() || self.admission.is_some() => self.finish_before(now, done),
            _ => {}
        }
        let in_flight = || self.replicas.iter().map(Replica::in_flight).sum::<usize>();
        if self.admission.is_some_and(|most| in_flight() >= most) {
            done.push(TwinResponse::refused(request, TwinOutcome::NotAdmitted));
            return;
        }
        let first = &self.options.engines[0];
        if request.kv_tokens().div_ceil(u64::from(first.block_tokens)) > u64::from(first.kv_blocks) {
            done.push(TwinResponse::refused(request, TwinOutcome::TooLong));
            return;
        }
        let prompt = request.engine_prompt(scheme, first.block_tokens);
        let job = request.job(prompt);
        let split = self.is_reactive() && request.output_tokens > 1;
        match split {
            true => self.place(now, request, RequestPhase::Prefill, EngineJob { output_tokens: 1, ..job }, done),
            false => self.place(now, request, RequestPhase::Whole, job, done),
        }
    }

    fn place(
        &mut self,
        now: Stamp,
        request: Box<TwinRequest>,
        phase: RequestPhase,
        job: EngineJob,
        done: &mut Vec<TwinResponse>,
    ) {
        let reads_caches = self.options.router == Router::Prefix;
        self.candidates.clear();
        let (mut open, mut most) = (0, MAX_QUEUED_REQUESTS);
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            open += replica.in_flight();
            most = most.saturating_add(replica.max_running());
            if replica.state == ReplicaState::Ready {
                let cached = if reads_caches { replica.engine().cached_tokens(&job.prompt) } else { 0 };
                self.candidates.push(Candidate { index, in_flight: replica.in_flight(), cached });
            }
        }
        if open >= most && !job.transferred {
            done.push(TwinResponse::refused(request, TwinOutcome::Overloaded));
            return;
        }
        let key =
            RouteKey { prompt_tokens: request.prompt_tokens, session: request.session, transferred: job.transferred };
        let chosen = self.options.router.choose(key, &self.candidates, self.turn, self.replicas.len());
        self.turn += u64::from(!job.transferred);
        let Some(replica) = chosen.and_then(|index| self.replicas.get_mut(index)) else {
            let lost = TwinResponse::refused(request, TwinOutcome::NoReplica);
            done.push(TwinResponse { ended: now, ..lost });
            return;
        };
        replica.advance(now, &mut self.finished);
        replica.submit(now, request, phase, job);
        self.collect(done);
    }

    /// Passes on responses, and hands computed prompts to decoding replicas.
    fn collect(&mut self, done: &mut Vec<TwinResponse>) {
        done.append(&mut self.finished.responses);
        for Transfer { request, prefill } in std::mem::take(&mut self.finished.transfers) {
            let prompt = crate::engine::EnginePrompt { tokens: request.prompt_tokens, ..Default::default() };
            let job = EngineJob { transferred: true, ..request.job(prompt) };
            let PrefillResult { first, .. } = prefill;
            self.place(first, request, RequestPhase::Decode(prefill), job, done);
        }
    }

    /// Fails a replica; `false` if there is none of this number, or it does not run.
    pub(super) fn fail(&mut self, number: usize, now: Stamp, done: &mut Vec<TwinResponse>) -> bool {
        self.advance(now, done);
        let Some(replica) = self.replicas.get_mut(number).filter(|replica| replica.state == ReplicaState::Ready) else {
            return false;
        };
        replica.fail(now, &mut self.finished);
        self.collect(done);
        true
    }

    /// A replica that starts takes requests from now on.
    pub(super) fn start(&mut self, number: usize) {
        if let Some(replica) = self.replicas.get_mut(number).filter(|one| one.state == ReplicaState::Starting) {
            replica.state = ReplicaState::Ready;
        }
    }

    /// Decides on the number of replicas. Returns the numbers of those that begin to start.
    pub(super) fn autoscale(&mut self, now: Stamp, done: &mut Vec<TwinResponse>) -> Vec<usize> {
        self.advance(now, done);
        let current = self.replicas();
        let Some(autoscaler) = &mut self.autoscaler else { return Vec::new() };
        let metric = autoscaler.metric();
        let (mut sum, mut ready) = (0.0, 0);
        for replica in self.replicas.iter_mut().filter(|replica| replica.state == ReplicaState::Ready) {
            ready += 1;
            let in_flight = replica.in_flight();
            let stats = replica.engine().stats();
            sum += match metric {
                AutoscaleMetric::InFlight => in_flight as f64,
                AutoscaleMetric::Waiting => stats.waiting as f64,
                AutoscaleMetric::KvUsage => stats.kv_usage,
            };
        }
        let desired = autoscaler.decide(now, sum, ready, current);
        self.resize(desired)
    }

    /// Orders replicas up to `desired`, or drains those beyond. Returns the numbers of those that begin to start.
    pub(super) fn resize(&mut self, desired: u32) -> Vec<usize> {
        let current = self.replicas();
        let mut starting = Vec::new();
        for _ in current..desired {
            // A replica that was drained is ordered anew: its cache is cold.
            let free = self.replicas.iter().position(|one| one.state == ReplicaState::Draining && one.in_flight() == 0);
            let number = free.unwrap_or(self.replicas.len());
            match self.replicas.get_mut(number) {
                Some(replica) => {
                    *replica = Replica::new(&replica.name, replica.options().clone(), ReplicaState::Starting)
                }
                None => self.add_replica(ReplicaState::Starting),
            }
            starting.push(number);
        }
        let excess = usize::try_from(current.saturating_sub(desired)).unwrap_or(0);
        let running = self.replicas.iter_mut().rev().filter(|replica| replica.state != ReplicaState::Draining);
        running.take(excess).for_each(|replica| replica.state = ReplicaState::Draining);
        starting
    }
}

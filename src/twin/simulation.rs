//! The event loop: arrivals, responses and operations in the order of their virtual times.
//!
//! Engines run on their own between two events that concern them, so a run of decode steps is applied at once. Where a
//! response causes an arrival (the next turn of a session, the decoding of a computed prompt), the loop goes from one
//! finish to the next, and no engine runs ahead of a cause.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use ahash::AHashMap;

use super::fleet::{FleetOptions, MAX_QUEUED_REQUESTS, SimulatedFleet};
use super::operations::{AUTOSCALE_PERIOD, Operations};
use super::response::{TwinOutcome, TwinResponse};
use super::traffic::TwinRequest;
use crate::measure::time::{Gap, Stamp};
use crate::trace_file::header::BlockScheme;
use crate::trace_file::row::TraceEntry;

/// How far rows are read ahead, so that a turn can come earlier than in the trace.
const READ_AHEAD: Gap = Gap::from_millis(300_000);
/// Most requests that are read ahead. Turns beyond come no earlier than in the trace.
const MAX_READ_AHEAD: usize = 1 << 16;
/// Most sessions whose last end is known. Idle ones are forgotten beyond.
const MAX_SESSIONS: usize = 1 << 20;
/// Interval in which all replicas run, so that responses are passed on.
const COLLECT_PERIOD: Gap = Gap::from_millis(1_000);

/// Counts of a finished simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulationTotals {
    /// Rows of the traffic.
    pub rows: u64,
    /// Rows without lengths, which were not simulated.
    pub skipped: u64,
    /// Output tokens.
    pub tokens: u64,
    /// End of the last response.
    pub ended: Stamp,
    /// Maximum number of replicas of one fleet.
    pub max_replicas: u32,
    /// Failures of replicas that did not run.
    pub ignored_failures: u64,
    /// Requests that were refused because too many others waited.
    pub overloaded: u64,
}

/// A simulation of one variant.
#[derive(Debug)]
pub struct Simulation {
    fleets: Vec<SimulatedFleet>,
    scheme: Option<BlockScheme>,
    start_up: Gap,
    autoscales: bool,
    pending: BinaryHeap<Reverse<PendingRequest>>,
    operations: BinaryHeap<Reverse<(Stamp, OperationEvent)>>,
    sessions: AHashMap<u64, TwinSession>,
    /// Turns that wait for a response.
    waiting: usize,
    number: u64,
    done: Vec<TwinResponse>,
    totals: SimulationTotals,
}

#[derive(Debug)]
struct PendingRequest {
    at: Stamp,
    number: u64,
    request: Box<TwinRequest>,
}

impl PendingRequest {
    fn key(&self) -> (Stamp, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for PendingRequest {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for PendingRequest {}

impl PartialOrd for PendingRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingRequest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OperationEvent {
    /// A replica of a fleet takes requests.
    Start(usize, usize),
    /// Every fleet gets this number of replicas.
    Resize(u32),
    /// A replica of every fleet fails.
    Fail(usize),
    Autoscale,
}

#[derive(Debug, Default)]
struct TwinSession {
    /// Turns that are pending or in flight.
    open: u32,
    ended: Option<Stamp>,
    waiting: VecDeque<Box<TwinRequest>>,
}

impl Simulation {
    /// A simulation of these fleets. `scheme` is the block scheme of the traffic.
    pub fn new(fleets: Vec<FleetOptions>, scheme: Option<BlockScheme>, operations: &Operations) -> Self {
        let fleets: Vec<SimulatedFleet> =
            fleets.into_iter().map(|options| SimulatedFleet::new(options, operations)).collect();
        let mut events = BinaryHeap::new();
        events.extend(operations.failures.iter().map(|fail| Reverse((fail.at, OperationEvent::Fail(fail.replica)))));
        let resizes = operations.schedule.iter().map(|of| Reverse((of.at, OperationEvent::Resize(of.replicas))));
        events.extend(resizes);
        if operations.autoscale.is_some() {
            events.push(Reverse((Stamp::default().after(AUTOSCALE_PERIOD), OperationEvent::Autoscale)));
        }
        let max_replicas = fleets.iter().map(SimulatedFleet::replicas).max().unwrap_or(0);
        Self {
            fleets,
            scheme,
            start_up: operations.start_up,
            autoscales: operations.autoscale.is_some(),
            pending: BinaryHeap::new(),
            operations: events,
            sessions: AHashMap::new(),
            waiting: 0,
            number: 0,
            done: Vec::new(),
            totals: SimulationTotals { max_replicas, ..SimulationTotals::default() },
        }
    }

    /// Simulates all rows, which are in order of time, and passes each response to `take`.
    ///
    /// # Errors
    /// Those of `rows` and `take`.
    pub fn run<E>(
        mut self,
        rows: impl Iterator<Item = Result<TraceEntry, E>>,
        mut take: impl FnMut(TwinResponse) -> Result<(), E>,
    ) -> Result<SimulationTotals, E> {
        let mut rows = rows.fuse();
        let (mut now, mut last_read, mut collected) = (Stamp::default(), Stamp::default(), Stamp::default());
        let mut is_read = false;
        loop {
            while !is_read && self.wants_row(now, last_read) {
                match rows.next().transpose()? {
                    Some(entry) => {
                        last_read = last_read.max(Stamp::from_nanos(entry.at));
                        self.add_row(entry, now);
                    }
                    None => is_read = true,
                }
            }
            let arrival = self.pending.peek().map(|Reverse(pending)| pending.at);
            let idle = arrival.is_none() && self.waiting == 0 && self.fleets.iter().all(SimulatedFleet::is_idle);
            if idle {
                break;
            }
            let operation = self.operations.peek().map(|Reverse((at, _))| *at);
            let next = arrival.into_iter().chain(operation).min();
            if self.is_reactive() || next.is_none() {
                let finish = self.fleets.iter_mut().filter_map(SimulatedFleet::next_finish).min();
                if let Some(finish) = finish.filter(|finish| next.is_none_or(|next| *finish < next)) {
                    now = now.max(finish);
                    // Alone until the end, the engines need no further look.
                    let until =
                        if self.is_reactive() || next.is_some() { finish } else { Stamp::from_nanos(u64::MAX - 1) };
                    self.advance(until.after(Gap::from_nanos(1)));
                    self.settle(now, &mut take)?;
                    continue;
                }
            }
            let Some(at) = next else { break };
            now = now.max(at);
            if operation.is_some_and(|operation| arrival.is_none_or(|arrival| operation <= arrival)) {
                self.operate(now);
            } else if let Some(Reverse(pending)) = self.pending.pop() {
                self.submit(now, pending.request);
            }
            if now.since(collected) >= COLLECT_PERIOD {
                collected = now;
                self.fleets.iter_mut().for_each(|fleet| fleet.finish_before(now, &mut self.done));
            }
            self.settle(now, &mut take)?;
        }
        Ok(self.totals)
    }

    fn wants_row(&self, now: Stamp, last_read: Stamp) -> bool {
        let ahead = self.pending.len() + self.waiting < MAX_READ_AHEAD && last_read <= now.after(READ_AHEAD);
        ahead || self.pending.peek().is_none_or(|Reverse(next)| next.at > last_read)
    }

    /// True if a response can cause an arrival.
    fn is_reactive(&self) -> bool {
        self.waiting > 0 || self.fleets.iter().any(SimulatedFleet::is_reactive)
    }

    fn add_row(&mut self, entry: TraceEntry, now: Stamp) {
        self.totals.rows += 1;
        let Some(request) = TwinRequest::from_row(entry) else {
            self.totals.skipped += 1;
            return;
        };
        let request = Box::new(request);
        let Some(id) = request.session else { return self.schedule(request.at, request) };
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&id) {
            self.sessions.retain(|_, session| session.open > 0 || !session.waiting.is_empty());
        }
        let session = self.sessions.entry(id).or_default();
        let at = match (request.think, session.ended) {
            (Some(_), _) if session.open > 0 || !session.waiting.is_empty() => {
                if self.waiting >= MAX_QUEUED_REQUESTS {
                    // It was never a turn of its session, and ends none.
                    let refused = Box::new(TwinRequest { session: None, ..*request });
                    self.done.push(TwinResponse::refused(refused, TwinOutcome::Overloaded));
                    return;
                }
                session.waiting.push_back(request);
                self.waiting += 1;
                return;
            }
            (Some(think), Some(ended)) => ended.after(think).max(now),
            _ => request.at,
        };
        session.open += 1;
        self.schedule(at, request);
    }

    fn schedule(&mut self, at: Stamp, mut request: Box<TwinRequest>) {
        request.at = at;
        self.number += 1;
        self.pending.push(Reverse(PendingRequest { at, number: self.number, request }));
    }

    fn submit(&mut self, now: Stamp, request: Box<TwinRequest>) {
        let model = request.entry.model.as_deref();
        match self.fleets.iter_mut().find(|fleet| fleet.options.serves(model)) {
            Some(fleet) => fleet.submit(now, request, self.scheme.as_ref(), &mut self.done),
            None => self.done.push(TwinResponse::refused(request, TwinOutcome::NoReplica)),
        }
    }

    fn advance(&mut self, until: Stamp) {
        self.fleets.iter_mut().for_each(|fleet| fleet.advance(until, &mut self.done));
    }

    fn operate(&mut self, now: Stamp) {
        let Some(Reverse((_, event))) = self.operations.pop() else { return };
        let ready = now.after(self.start_up);
        match event {
            OperationEvent::Start(fleet, replica) => self.fleets[fleet].start(replica),
            OperationEvent::Resize(replicas) => {
                for fleet in &mut self.fleets {
                    fleet.advance(now, &mut self.done);
                    fleet.resize(replicas).into_iter().for_each(|replica| fleet.start(replica));
                    self.totals.max_replicas = self.totals.max_replicas.max(fleet.replicas());
                }
            }
            OperationEvent::Fail(replica) => {
                for (number, fleet) in self.fleets.iter_mut().enumerate() {
                    match fleet.fail(replica, now, &mut self.done) {
                        true => self.operations.push(Reverse((ready, OperationEvent::Start(number, replica)))),
                        false => self.totals.ignored_failures += 1,
                    }
                }
            }
            OperationEvent::Autoscale => {
                for (number, fleet) in self.fleets.iter_mut().enumerate() {
                    for replica in fleet.autoscale(now, &mut self.done) {
                        self.operations.push(Reverse((ready, OperationEvent::Start(number, replica))));
                    }
                    self.totals.max_replicas = self.totals.max_replicas.max(fleet.replicas());
                }
                if self.autoscales {
                    self.operations.push(Reverse((now.after(AUTOSCALE_PERIOD), OperationEvent::Autoscale)));
                }
            }
        }
    }

    /// Passes on responses, and schedules the turns that they cause.
    fn settle<E>(&mut self, now: Stamp, take: &mut impl FnMut(TwinResponse) -> Result<(), E>) -> Result<(), E> {
        if self.done.is_empty() {
            return Ok(());
        }
        let mut done = std::mem::take(&mut self.done);
        for response in done.drain(..) {
            self.totals.tokens += u64::from(response.generated);
            self.totals.ended = self.totals.ended.max(response.ended);
            self.totals.overloaded += u64::from(response.outcome == TwinOutcome::Overloaded);
            if let Some(id) = response.request.session {
                self.end_turn(id, response.ended, now);
            }
            take(response)?;
        }
        self.done = done;
        Ok(())
    }

    fn end_turn(&mut self, id: u64, ended: Stamp, now: Stamp) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.open = session.open.saturating_sub(1);
        session.ended = session.ended.max(Some(ended));
        if session.open > 0 {
            return;
        }
        if let Some(request) = session.waiting.pop_front() {
            session.open = 1;
            self.waiting -= 1;
            let at = session.ended.unwrap_or(ended).after(request.think.unwrap_or(Gap::ZERO)).max(now);
            self.schedule(at, request);
        }
    }
}

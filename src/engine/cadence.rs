//! Exact cadence: every stream gets token `k` (from 0) at `first + k * cadence`, independent of the other streams.
//!
//! Instruments are calibrated against this cadence, so sends must not delay each other. The period is divided into
//! slots, and a new stream gets one of the slots with the fewest streams. That delays its first token by less than
//! one cadence, compared with a lone request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::cost::{CostModel, StepWork};
use super::finish::EngineFinish;
use super::options::EngineOptions;
use super::stats::{E2E_BOUNDS, EngineStats, ITL_BOUNDS, TTFT_BOUNDS};
use super::{EngineJob, EngineOutput, FinishedJob};
use crate::measure::time::{Gap, Stamp};

/// Minimum slot width in nanoseconds: several times the time to write one event.
const SLOT: u64 = 100_000;

/// Maximum slots per period.
const MAX_SLOTS: u64 = 4_096;

#[derive(Debug)]
pub(super) struct CadenceScheduler {
    cost: CostModel,
    beat: u64,
    tokens_per_step: u32,
    max_streams: usize,
    streams: HashMap<u64, CadenceStream>,
    /// Next token time of each stream.
    due: BinaryHeap<Reverse<(Stamp, u64)>>,
    slots: Vec<u32>,
}

#[derive(Debug)]
struct CadenceStream {
    job: EngineJob,
    arrived: Stamp,
    first: Stamp,
    slot: usize,
    generated: u32,
    last: Stamp,
}

impl CadenceScheduler {
    pub(super) fn new(options: &EngineOptions, beat: Gap) -> Self {
        let beat = beat.as_nanos().max(1);
        let slots = (beat / SLOT).clamp(1, MAX_SLOTS);
        Self {
            cost: options.cost.clone(),
            beat,
            tokens_per_step: options.tokens_per_step,
            max_streams: usize::try_from(options.max_num_seqs).unwrap_or(usize::MAX),
            streams: HashMap::new(),
            due: BinaryHeap::new(),
            slots: vec![0; usize::try_from(slots).unwrap_or(1)],
        }
    }

    /// Streams that can be accepted now. None wait, because a wait would not be exact.
    pub(super) fn room(&self) -> usize {
        self.max_streams.saturating_sub(self.streams.len())
    }

    pub(super) fn submit(&mut self, now: Stamp, seq: u64, mut job: EngineJob, stats: &mut EngineStats) {
        let tokens = u64::from(job.prompt.tokens);
        let (first, slot) = self.place(now.after(self.cost.step(&StepWork::prompt(job.prompt.tokens))));
        let first = first.after(pause(&mut job, 0));
        stats.prompt_tokens += tokens;
        stats.cache_queries += tokens;
        self.slots[slot] += 1;
        self.streams.insert(seq, CadenceStream { job, arrived: now, first, slot, generated: 0, last: now });
        self.due.push(Reverse((first, seq)));
    }

    /// The first instant from `natural` on that starts one of the least occupied slots.
    fn place(&self, natural: Stamp) -> (Stamp, usize) {
        let count = self.slots.len();
        let width = self.beat / count as u64;
        let phase = natural.as_nanos() % self.beat;
        let from = usize::try_from(phase.div_ceil(width.max(1))).unwrap_or(0);
        let order = (from..from + count).map(|slot| slot % count);
        let slot = order.min_by_key(|slot| self.slots[*slot]).unwrap_or(0);
        let wait = (slot as u64 * width + self.beat - phase) % self.beat;
        (natural.after(Gap::from_nanos(wait)), slot)
    }

    pub(super) fn abort(&mut self, seqs: Range<u64>, why: EngineFinish, stats: &mut EngineStats) {
        for seq in seqs.clone() {
            if let Some(stream) = self.streams.remove(&seq) {
                self.slots[stream.slot] -= 1;
                stats.finish(why);
            }
        }
        self.due.retain(|Reverse((_, seq))| !seqs.contains(seq));
    }

    pub(super) fn gauge(&self, stats: &mut EngineStats) {
        stats.running = self.streams.len() as u64;
    }

    pub(super) fn in_flight(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn due(&self) -> Option<Stamp> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn step(&mut self, now: Stamp, stats: &mut EngineStats, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        while let Some(Reverse((at, seq))) = self.due.peek().copied() {
            if at > now {
                return Some(at);
            }
            self.due.pop();
            let Some(stream) = self.streams.get_mut(&seq) else { continue };
            let output = stream.beat(at, seq, self.tokens_per_step, stats);
            if output.finished.is_some() {
                self.slots[stream.slot] -= 1;
                self.streams.remove(&seq);
            } else {
                let next = at.after(Gap::from_nanos(self.beat)).after(pause(&mut stream.job, output.generated));
                self.due.push(Reverse((next, seq)));
            }
            out.push(output);
        }
        None
    }
}

impl CadenceStream {
    /// The tokens of one period. No step passes a stall.
    fn beat(&mut self, at: Stamp, seq: u64, tokens_per_step: u32, stats: &mut EngineStats) -> EngineOutput {
        let most = if self.generated == 0 { 1 } else { tokens_per_step };
        let left = self.job.output_tokens.saturating_sub(self.generated);
        let until_stall = self.job.stall.map_or(u32::MAX, |stall| stall.before - 1 - self.generated);
        let tokens = most.min(left).min(until_stall);
        if self.generated == 0 {
            stats.ttft.observe(&TTFT_BOUNDS, at.since(self.arrived));
        } else {
            stats.itl.observe(&ITL_BOUNDS, at.since(self.last));
        }
        self.generated += tokens;
        self.last = at;
        stats.generation_tokens += u64::from(tokens);
        let finished = (self.generated >= self.job.output_tokens).then(|| {
            stats.finish(self.job.ending);
            stats.e2e.observe(&E2E_BOUNDS, at.since(self.arrived));
            FinishedJob {
                reason: self.job.ending,
                cached_tokens: 0,
                queued: Gap::ZERO,
                first: self.first.since(self.arrived),
                decode: at.since(self.first),
            }
        });
        EngineOutput { seq, generated: self.generated, at, finished }
    }
}

/// Takes the stall before the next token of a stream with `generated` tokens; each stall happens once.
fn pause(job: &mut EngineJob, generated: u32) -> Gap {
    job.stall.take_if(|stall| stall.before <= generated + 1).map_or(Gap::ZERO, |stall| stall.gap)
}

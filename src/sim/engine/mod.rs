//! The simulated inference engine: jobs in, tokens and the time of the next step out.
//!
//! A pure state machine without clock, threads or randomness. The caller passes the time as a [`Stamp`], so tests
//! state exact times and the server's lateness does not affect the model. Two schedulers share the interface:
//! [`batching`] simulates continuous batching, [`cadence`] gives every stream an exact interval.

mod batching;
mod blocks;
mod cadence;
pub(super) mod finish;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use super::options::SimOptions;
use super::stats::SimStats;
use crate::measure::time::{Gap, Stamp};
use batching::BatchScheduler;
use cadence::CadenceScheduler;
pub(crate) use finish::EngineFinish;

/// The properties of a prompt that affect its cost; excludes its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EnginePrompt {
    pub(crate) tokens: u32,
    /// One hash per full block, each over the text up to the block's end, so equal hashes mean equal prefixes.
    pub(crate) chain: Arc<[u64]>,
}

/// An injected pause: the sequence stands still for `gap` before its token `before` (counted from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) before: u32,
    pub(crate) gap: Gap,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub(crate) struct EngineJob {
    pub(crate) prompt: EnginePrompt,
    /// Number of tokens to generate, at least 1.
    pub(crate) output_tokens: u32,
    /// The reason to report at the end.
    pub(crate) ending: EngineFinish,
    pub(crate) stall: Option<Stall>,
}

/// Tokens that one step generated for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineOutput {
    pub(crate) seq: u64,
    /// Tokens of this sequence so far, including these.
    pub(crate) generated: u32,
    /// End of the step, in engine time.
    pub(crate) at: Stamp,
    pub(crate) finished: Option<FinishedJob>,
}

/// Statistics of a finished sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FinishedJob {
    pub(crate) reason: EngineFinish,
    /// Prompt tokens found in the prefix cache.
    pub(crate) cached_tokens: u32,
    /// Time from arrival to first scheduling.
    pub(crate) queued: Gap,
    /// Time from first scheduling to first token.
    pub(crate) first: Gap,
    /// Time from first token to last.
    pub(crate) decode: Gap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The engine: one scheduler, its counters, and the numbering of sequences.
#[derive(Debug)]
pub(crate) struct Engine {
    next_seq: u64,
    stats: SimStats,
    scheduler: Scheduler,
}

#[derive(Debug)]
enum Scheduler {
    Batching(BatchScheduler),
    Cadence(CadenceScheduler),
}

impl Engine {
    pub(crate) fn new(options: &SimOptions) -> Self {
        let scheduler = match options.exact_cadence {
            None => Scheduler::Batching(BatchScheduler::new(options)),
            Some(cadence) => Scheduler::Cadence(CadenceScheduler::new(options, cadence)),
        };
        Self { next_seq: 0, stats: SimStats::default(), scheduler }
    }

    /// Submits all of `jobs` with arrival time `now`, or none. Sequence numbers follow the order of `jobs`.
    ///
    /// # Errors
    /// [`QueueFull`] if they do not fit into the waiting queue.
    pub(crate) fn submit(&mut self, now: Stamp, jobs: Vec<EngineJob>) -> Result<Range<u64>, QueueFull> {
        let room = match &self.scheduler {
            Scheduler::Batching(batching) => batching.room(),
            Scheduler::Cadence(cadence) => cadence.room(),
        };
        if jobs.len() > room {
            self.stats.refused += 1;
            return Err(QueueFull);
        }
        let first = self.next_seq;
        for job in jobs {
            match &mut self.scheduler {
                Scheduler::Batching(batching) => batching.submit(now, self.next_seq, job),
                Scheduler::Cadence(cadence) => cadence.submit(now, self.next_seq, job, &mut self.stats),
            }
            self.next_seq += 1;
        }
        Ok(first..self.next_seq)
    }

    /// Aborts sequences; their slots are free at the next step. Ignores sequences that have ended.
    pub(crate) fn abort(&mut self, seqs: Range<u64>, why: EngineFinish) {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.abort(seqs, why),
            Scheduler::Cadence(cadence) => cadence.abort(seqs, why, &mut self.stats),
        }
    }

    /// Ends the steps due `now`, appends their tokens to `out`, and starts the next step.
    ///
    /// Returns the time of the next call; `None` if the engine is idle until the next [`Engine::submit`].
    pub(crate) fn step(&mut self, now: Stamp, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.step(now, &mut self.stats, out),
            Scheduler::Cadence(cadence) => cadence.step(now, &mut self.stats, out),
        }
    }

    /// Time of the next [`Engine::step`]; `None` when idle.
    pub(crate) fn due(&self) -> Option<Stamp> {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.due(),
            Scheduler::Cadence(cadence) => cadence.due(),
        }
    }

    /// The counters, with current gauges.
    pub(crate) fn stats(&mut self) -> &SimStats {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.gauge(&mut self.stats),
            Scheduler::Cadence(cadence) => cadence.gauge(&mut self.stats),
        }
        &self.stats
    }
}

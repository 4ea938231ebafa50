//! The simulated inference engine: jobs in, tokens out, and the time of the next step.
//!
//! A pure state machine: no clock, no thread, no randomness. Time comes in as a [`Stamp`], so a test states exact times
//! and the server's lateness never leaks into the model. Two schedulers share the interface: [`batching`] behaves like a
//! continuous-batching engine, [`cadence`] keeps every stream to an exact beat.

mod batching;
mod blocks;
mod cadence;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use super::options::SimOptions;
use super::stats::SimStats;
use crate::measure::time::{Gap, Stamp};
use batching::BatchScheduler;
use cadence::CadenceScheduler;

/// Why a sequence stopped, in vLLM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineFinish {
    /// The model drew its end-of-sequence token.
    Stop,
    /// The sequence reached `max_tokens`.
    Length,
    /// The client went away.
    Abort,
    /// The engine failed (on demand).
    Error,
}

impl EngineFinish {
    /// Every reason, in the order of the `/metrics` page.
    pub(crate) const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// The wire's word.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// A prompt without its text: what the cost of it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EnginePrompt {
    /// Length in tokens.
    pub(crate) tokens: u32,
    /// One hash per full block, each over everything up to the block's end, so that equal hashes mean equal prefixes.
    pub(crate) chain: Arc<[u64]>,
}

/// A pause on demand: nothing happens to the sequence for `gap` before its token number `before` (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) before: u32,
    pub(crate) gap: Gap,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub(crate) struct EngineJob {
    pub(crate) prompt: EnginePrompt,
    /// How many tokens it will have, at least 1.
    pub(crate) output_tokens: u32,
    /// Why it will stop there.
    pub(crate) ending: EngineFinish,
    pub(crate) stall: Option<Stall>,
}

/// Tokens that one step gave one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineOutput {
    pub(crate) seq: u64,
    /// Tokens of this sequence so far, these included.
    pub(crate) generated: u32,
    /// When the model had them: the end of the step, in the engine's own time.
    pub(crate) at: Stamp,
    pub(crate) finished: Option<FinishedJob>,
}

/// What is known of a sequence once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FinishedJob {
    pub(crate) reason: EngineFinish,
    /// Prompt tokens that the prefix cache already had.
    pub(crate) cached_tokens: u32,
    /// Arrival to first scheduling.
    pub(crate) queued: Gap,
    /// First scheduling to first token.
    pub(crate) first: Gap,
    /// First token to last.
    pub(crate) decode: Gap,
}

/// The waiting queue is full.
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
    /// An idle engine.
    pub(crate) fn new(options: &SimOptions) -> Self {
        let scheduler = match options.exact_cadence {
            None => Scheduler::Batching(BatchScheduler::new(options)),
            Some(cadence) => Scheduler::Cadence(CadenceScheduler::new(options, cadence)),
        };
        Self { next_seq: 0, stats: SimStats::default(), scheduler }
    }

    /// Takes all of `jobs`, which arrive `now`, or none. The sequences are numbered in order.
    ///
    /// # Errors
    /// [`Refusal`] when they do not fit into the waiting queue.
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

    /// Gives up sequences; their slots are free at the next step. Those that have ended already are not touched.
    pub(crate) fn abort(&mut self, seqs: Range<u64>, why: EngineFinish) {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.abort(seqs, why),
            Scheduler::Cadence(cadence) => cadence.abort(seqs, why, &mut self.stats),
        }
    }

    /// Ends what is due `now`, appends its tokens to `out`, and starts what can start.
    ///
    /// Returns when it wants to be called again; `None` means that there is nothing to do until the next
    /// [`Engine::submit`].
    pub(crate) fn step(&mut self, now: Stamp, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.step(now, &mut self.stats, out),
            Scheduler::Cadence(cadence) => cadence.step(now, &mut self.stats, out),
        }
    }

    /// When [`Engine::step`] has something to do; `None` when idle.
    pub(crate) fn due(&self) -> Option<Stamp> {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.due(),
            Scheduler::Cadence(cadence) => cadence.due(),
        }
    }

    /// The counters, with the gauges as they stand now.
    pub(crate) fn stats(&mut self) -> &SimStats {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.gauge(&mut self.stats),
            Scheduler::Cadence(cadence) => cadence.gauge(&mut self.stats),
        }
        &self.stats
    }
}

//! The simulated inference engine: jobs in, tokens and the time of the next step out.
//!
//! A pure state machine without clock, threads or randomness. The caller passes the time as a [`Stamp`], so tests
//! state exact times and the server's lateness does not affect the model. `sim` drives it in real time, `twin` in
//! virtual time. Two schedulers share the interface: `batching` simulates continuous batching, `cadence` gives every
//! stream an exact interval.

#[cfg(test)]
mod advance_tests;
mod batching;
mod blocks;
mod bulk;
mod cadence;
mod cost;
mod decode_group;
mod finish;
mod options;
mod sequence;
pub(crate) mod stats;
#[cfg(test)]
mod tests;
mod token_times;

use std::ops::Range;
use std::sync::Arc;

use crate::measure::time::{Gap, Stamp};
use batching::BatchScheduler;
use cadence::CadenceScheduler;
pub use cost::{CostModel, StepWork};
pub use finish::EngineFinish;
pub use options::{BLOCK_TOKENS, EngineOptions, EngineOptionsError, PrefillMode};
use stats::EngineStats;
pub use token_times::TokenTimes;

/// The properties of a prompt that affect its cost; excludes its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnginePrompt {
    /// Length.
    pub tokens: u32,
    /// One hash per full block, each over the text up to the block's end, so equal hashes mean equal prefixes.
    pub chain: Arc<[u64]>,
}

/// An injected pause: the sequence stands still before one of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Number of the token, from 1.
    pub before: u32,
    /// Length of the pause.
    pub gap: Gap,
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct EngineJob {
    /// Its prompt.
    pub prompt: EnginePrompt,
    /// Number of tokens to generate, at least 1.
    pub output_tokens: u32,
    /// The reason to report at the end.
    pub ending: EngineFinish,
    /// A pause for tests of clients.
    pub stall: Option<Stall>,
    /// Another engine has computed the prompt and the first token; this one decodes from the second token on.
    pub transferred: bool,
}

/// Tokens that one step generated for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOutput {
    /// Number of the sequence.
    pub seq: u64,
    /// Tokens of this sequence so far, including these.
    pub generated: u32,
    /// End of the step, in engine time.
    pub at: Stamp,
    /// Set with the last tokens.
    pub finished: Option<FinishedJob>,
}

/// Statistics of a finished sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedJob {
    /// Why it stopped.
    pub reason: EngineFinish,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
    /// Time from arrival to first scheduling.
    pub queued: Gap,
    /// Time from first scheduling to first token.
    pub first: Gap,
    /// Time from first token to last.
    pub decode: Gap,
}

/// A finished sequence of [`Engine::advance`].
#[derive(Debug)]
pub struct CompletedSequence<'a> {
    /// Number of the sequence.
    pub seq: u64,
    /// Number of its tokens.
    pub generated: u32,
    /// Time of the last token.
    pub at: Stamp,
    /// Its statistics.
    pub finished: FinishedJob,
    /// Times of its tokens.
    pub times: TokenTimes<'a>,
}

/// The waiting queue has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// The engine: one scheduler, its counters, and the numbering of sequences.
#[derive(Debug)]
pub struct Engine {
    next_seq: u64,
    stats: EngineStats,
    scheduler: Scheduler,
}

#[derive(Debug)]
enum Scheduler {
    Batching(Box<BatchScheduler>),
    Cadence(CadenceScheduler),
}

impl Engine {
    /// Creates an idle engine.
    pub fn new(options: &EngineOptions) -> Self {
        let scheduler = match options.exact_cadence {
            None => Scheduler::Batching(Box::new(BatchScheduler::new(options))),
            Some(cadence) => Scheduler::Cadence(CadenceScheduler::new(options, cadence)),
        };
        Self { next_seq: 0, stats: EngineStats::default(), scheduler }
    }

    /// Submits all of `jobs` with arrival time `now`, or none. Sequence numbers follow the order of `jobs`.
    ///
    /// # Errors
    /// [`QueueFull`] if they do not fit into the waiting queue.
    pub fn submit(&mut self, now: Stamp, jobs: Vec<EngineJob>) -> Result<Range<u64>, QueueFull> {
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
    pub fn abort(&mut self, seqs: Range<u64>, why: EngineFinish) {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.abort(seqs, why),
            Scheduler::Cadence(cadence) => cadence.abort(seqs, why, &mut self.stats),
        }
    }

    /// Ends the steps due `now`, appends their tokens to `out`, and starts the next step.
    ///
    /// Returns the time of the next call; `None` if the engine is idle until the next [`Engine::submit`].
    pub fn step(&mut self, now: Stamp, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        match &mut self.scheduler {
            Scheduler::Batching(batching) => batching.step(now, &mut self.stats, out),
            Scheduler::Cadence(cadence) => cadence.step(now, &mut self.stats, out),
        }
    }

    /// Time of the next [`Engine::step`]; `None` when idle.
    pub fn due(&self) -> Option<Stamp> {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.due(),
            Scheduler::Cadence(cadence) => cadence.due(),
        }
    }

    /// Keeps the times of tokens for [`advance`](Self::advance), which an engine in real time does not need.
    pub fn keep_token_times(&mut self) {
        if let Scheduler::Batching(batching) = &mut self.scheduler {
            batching.keep_token_times();
        }
    }

    /// Runs all steps due before `until`, and passes each finished sequence to `done`. It gives the same times as
    /// [`step`](Self::step) at each due time, and is many times faster. Does nothing for an exact cadence.
    pub fn advance(&mut self, until: Stamp, mut done: impl FnMut(CompletedSequence<'_>)) {
        if let Scheduler::Batching(batching) = &mut self.scheduler {
            batching.advance(until, &mut self.stats, &mut done);
        }
    }

    /// A time before which no sequence can finish, unless a job arrives or is aborted; `None` when idle.
    pub fn next_finish(&self) -> Option<Stamp> {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.next_finish(),
            Scheduler::Cadence(cadence) => cadence.due(),
        }
    }

    /// Ends the engine, and passes each unfinished sequence to `lost` with its number of tokens and their times.
    pub fn abandon(self, mut lost: impl FnMut(u64, u32, TokenTimes<'_>)) {
        if let Scheduler::Batching(batching) = self.scheduler {
            batching.abandon(&mut lost);
        }
    }

    /// Tokens of a prompt that the prefix cache holds.
    pub fn cached_tokens(&self, prompt: &EnginePrompt) -> u32 {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.cached_tokens(prompt),
            Scheduler::Cadence(_) => 0,
        }
    }

    /// Sequences in the batch and in the queue.
    pub fn in_flight(&self) -> usize {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.in_flight(),
            Scheduler::Cadence(cadence) => cadence.in_flight(),
        }
    }

    /// The counters, with current gauges.
    pub(crate) fn stats(&mut self) -> &EngineStats {
        match &self.scheduler {
            Scheduler::Batching(batching) => batching.gauge(&mut self.stats),
            Scheduler::Cadence(cadence) => cadence.gauge(&mut self.stats),
        }
        &self.stats
    }
}

//! One sequence of the batch scheduler: its progress, and what a step adds to it.

use super::blocks::BlockLease;
use super::stats::{E2E_BOUNDS, EngineStats, TTFT_BOUNDS};
use super::token_times::TokenSteps;
use super::{EngineJob, EngineOutput, FinishedJob};
use crate::measure::time::Stamp;

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) seq: u64,
    pub(super) job: EngineJob,
    pub(super) held: BlockLease,
    pub(super) arrived: Stamp,
    pub(super) admitted: Option<Stamp>,
    pub(super) first: Option<Stamp>,
    pub(super) last: Stamp,
    /// End of the current stall.
    pub(super) resumes: Option<Stamp>,
    /// Prompt tokens found in the prefix cache at first admission.
    pub(super) cached: u32,
    /// Tokens with computed keys and values.
    pub(super) computed: u32,
    /// Tokens computed by the step in flight; zero if the sequence is not in it.
    pub(super) scheduled: u32,
    /// Output tokens of the step in flight.
    pub(super) emits: u32,
    pub(super) generated: u32,
    /// The prompt is computed; after a preemption, also the output so far.
    pub(super) decoding: bool,
    /// Steps that gave tokens.
    pub(super) steps: TokenSteps,
    /// Set while it is counted in the group; then all that a step changes is as it was when it joined.
    pub(super) member: Option<GroupMember>,
}

/// A sequence's place in the group of those that decode in every step.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupMember {
    /// Steps of the group when it joined.
    pub(super) joined: u64,
    /// Number in the step log of its next step.
    pub(super) log_step: Option<u64>,
    /// Number of the step that ends it.
    pub(super) finish: u64,
    pub(super) block_phase: usize,
}

impl Sequence {
    pub(super) fn new(seq: u64, job: EngineJob, arrived: Stamp) -> Self {
        let transferred = job.transferred;
        let mut new = Self {
            seq,
            job,
            held: BlockLease::default(),
            arrived,
            admitted: None,
            first: transferred.then_some(arrived),
            last: arrived,
            resumes: None,
            cached: 0,
            computed: 0,
            scheduled: 0,
            emits: 0,
            generated: transferred.into(),
            decoding: transferred,
            steps: TokenSteps::default(),
            member: None,
        };
        new.stall_from(arrived);
        new
    }

    /// Begins the stall if it precedes the next token.
    pub(super) fn stall_from(&mut self, at: Stamp) {
        if let Some(stall) = self.job.stall.take_if(|stall| stall.before <= self.generated + 1) {
            self.resumes = Some(at.after(stall.gap));
        }
    }

    pub(super) fn stalled(&self, at: Stamp) -> bool {
        self.resumes.is_some_and(|resumes| resumes > at)
    }

    pub(super) fn remaining(&self) -> u32 {
        self.job.prompt.tokens.saturating_add(self.generated).saturating_sub(self.computed)
    }

    /// Output tokens of a step that computes all remaining tokens. The first step gives one, and no step passes a
    /// stall.
    pub(super) fn next_output(&self, tokens_per_step: u32) -> u32 {
        let most = if self.decoding { tokens_per_step } else { 1 };
        let left = self.job.output_tokens.saturating_sub(self.generated);
        let until_stall = self.job.stall.map_or(u32::MAX, |stall| stall.before - 1 - self.generated);
        most.min(left).min(until_stall)
    }

    /// Applies the step that ends at `at`, with its number in the log if there is one. `None` if this sequence had no
    /// output.
    pub(super) fn book_step(&mut self, at: Stamp, step: Option<u64>, stats: &mut EngineStats) -> Option<EngineOutput> {
        self.computed += std::mem::take(&mut self.scheduled);
        let emits = std::mem::take(&mut self.emits);
        if emits == 0 {
            return None;
        }
        self.decoding = true;
        self.generated += emits;
        stats.generation_tokens += u64::from(emits);
        if self.first.is_none() {
            self.first = Some(at);
            stats.prompt_tokens += u64::from(self.job.prompt.tokens);
            stats.ttft.observe(&TTFT_BOUNDS, at.since(self.arrived));
            stats.prefill.observe(&E2E_BOUNDS, at.since(self.admitted.unwrap_or(self.arrived)));
        } else {
            stats.observe_gaps(at.since(self.last), 1);
        }
        if let Some(step) = step {
            self.steps.add(step, 1);
        }
        self.last = at;
        self.stall_from(at);
        let done = self.generated >= self.job.output_tokens;
        Some(EngineOutput {
            seq: self.seq,
            generated: self.generated,
            at,
            finished: done.then(|| self.finish(at, stats)),
        })
    }

    pub(super) fn finish(&self, at: Stamp, stats: &mut EngineStats) -> FinishedJob {
        stats.finish(self.job.ending);
        stats.e2e.observe(&E2E_BOUNDS, at.since(self.arrived));
        let admitted = self.admitted.unwrap_or(self.arrived);
        let first = self.first.unwrap_or(at);
        FinishedJob {
            reason: self.job.ending,
            cached_tokens: self.cached,
            queued: admitted.since(self.arrived),
            first: first.since(admitted),
            decode: at.since(first),
        }
    }

    /// Tokens that a decode step reads.
    pub(super) fn context(&self) -> u32 {
        self.job.prompt.tokens.saturating_add(self.generated)
    }

    /// True if every step gives this sequence tokens until it finishes: it decodes, and no stall is ahead.
    pub(super) fn is_steady(&self, at: Stamp) -> bool {
        self.decoding && self.job.stall.is_none() && !self.stalled(at)
    }

    /// Output tokens that are not generated yet.
    pub(super) fn tokens_left(&self) -> u32 {
        self.job.output_tokens.saturating_sub(self.generated)
    }
}

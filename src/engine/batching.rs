//! Continuous batching, as vLLM's scheduler does it.
//!
//! Time is a sequence of steps. A step takes one token of every decoding sequence, and as much prefill as the token
//! budget leaves, oldest sequence first. Then waiting sequences join while there are slots, budget and blocks. A
//! joining sequence first takes its cached prefix. If no block is free for a running sequence, the scheduler preempts
//! the youngest one: it loses its blocks, returns to the head of the queue, and computes everything again.
//!
//! With [`PrefillMode::First`], a step computes whole prompts, and decodes only when no prompt can be computed.

use std::collections::VecDeque;
use std::ops::Range;

use super::blocks::BlockPool;
use super::cost::{CostModel, StepWork};
use super::decode_group::DecodeGroup;
use super::finish::EngineFinish;
use super::options::{EngineOptions, PrefillMode};
use super::sequence::Sequence;
use super::stats::{E2E_BOUNDS, EngineStats};
use super::token_times::{StepLog, TokenTimes};
use super::{EngineJob, EngineOutput, EnginePrompt};
use crate::measure::time::{Gap, Stamp};

/// Length of the step log below which it is not searched for old steps.
const MIN_LOG_STEPS: usize = 4_096;

#[derive(Debug)]
pub(super) struct BatchScheduler {
    pub(super) cost: CostModel,
    pub(super) prefill_mode: PrefillMode,
    pub(super) front_end: Gap,
    pub(super) max_num_seqs: usize,
    pub(super) max_waiting: usize,
    pub(super) token_budget: u32,
    pub(super) tokens_per_step: u32,
    pub(super) blocks: BlockPool,
    pub(super) waiting: VecDeque<Sequence>,
    /// In order of admission.
    pub(super) running: Vec<Sequence>,
    /// Those of `running` that decode in every step; used in virtual time only.
    pub(super) group: DecodeGroup,
    /// Aborted since the last step.
    pub(super) aborted: Vec<(Range<u64>, EngineFinish)>,
    /// End of the step in flight.
    pub(super) ends: Option<Stamp>,
    /// End of the previous step.
    pub(super) free_at: Stamp,
    /// Ends of the steps; kept only if a caller reads token times.
    pub(super) log: Option<StepLog>,
    /// Length of `log` at which steps that no sequence needs are dropped.
    pub(super) log_limit: usize,
}

/// Why a sequence is or is not in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Scheduled,
    /// No block is free.
    NoBlocks,
    /// The token budget of the step is used up.
    NoBudget,
}

impl BatchScheduler {
    pub(super) fn new(options: &EngineOptions) -> Self {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        let blocks = BlockPool::new(options.kv_blocks, options.block_tokens, options.prefix_cache);
        Self {
            cost: options.cost.clone(),
            prefill_mode: options.prefill_mode,
            front_end: options.front_end,
            max_num_seqs: size(options.max_num_seqs),
            max_waiting: size(options.max_waiting),
            token_budget: options.max_batched_tokens,
            tokens_per_step: options.tokens_per_step,
            group: DecodeGroup::new(options.tokens_per_step, &blocks),
            blocks,
            waiting: VecDeque::new(),
            running: Vec::new(),
            aborted: Vec::new(),
            ends: None,
            free_at: Stamp::default(),
            log: None,
            log_limit: MIN_LOG_STEPS,
        }
    }

    /// Keeps the times of tokens from now on, for [`advance`](Self::advance).
    pub(super) fn keep_token_times(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Sequences that can be accepted now: free queue places plus free slots.
    pub(super) fn room(&self) -> usize {
        let slots = self.max_num_seqs.saturating_sub(self.running.len());
        self.max_waiting.saturating_add(slots).saturating_sub(self.waiting.len())
    }

    pub(super) fn submit(&mut self, now: Stamp, seq: u64, job: EngineJob) {
        // A transferred sequence has passed a front end already.
        let front_end = if job.transferred { Gap::ZERO } else { self.front_end };
        self.waiting.push_back(Sequence::new(seq, job, now.after(front_end)));
    }

    pub(super) fn abort(&mut self, seqs: Range<u64>, why: EngineFinish) {
        self.aborted.push((seqs, why));
    }

    /// Passes each unfinished sequence to `lost`.
    pub(super) fn abandon(mut self, lost: &mut impl FnMut(u64, u32, TokenTimes<'_>)) {
        self.dissolve_group();
        let log = self.log.unwrap_or_default();
        for sequence in self.running.iter().chain(&self.waiting) {
            lost(sequence.seq, sequence.generated, TokenTimes::new(&sequence.steps, &log));
        }
    }

    pub(super) fn cached_tokens(&self, prompt: &EnginePrompt) -> u32 {
        self.blocks.cached_tokens(&prompt.chain, prompt.tokens)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    pub(super) fn gauge(&self, stats: &mut EngineStats) {
        stats.running = self.running.len() as u64;
        stats.waiting = self.waiting.len() as u64;
        stats.kv_usage = self.blocks.usage();
    }

    pub(super) fn due(&self) -> Option<Stamp> {
        let sweep = (!self.aborted.is_empty()).then_some(self.free_at);
        self.ends.or(sweep).or_else(|| self.next_start())
    }

    pub(super) fn step(&mut self, now: Stamp, stats: &mut EngineStats, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        if let Some(ends) = self.ends {
            if now < ends {
                return Some(ends);
            }
            self.ends = None;
            self.free_at = ends;
        }
        self.dissolve_group();
        self.sweep(stats);
        self.land(false, stats, &mut |output, _| out.push(output));
        self.launch(now, stats)
    }

    /// Releases aborted sequences.
    pub(super) fn sweep(&mut self, stats: &mut EngineStats) {
        if self.aborted.is_empty() {
            return;
        }
        self.dissolve_group();
        for (seqs, why) in std::mem::take(&mut self.aborted) {
            let blocks = &mut self.blocks;
            let mut keep = |sequence: &mut Sequence| {
                let stays = !seqs.contains(&sequence.seq);
                if !stays {
                    blocks.release(std::mem::take(&mut sequence.held));
                    stats.finish(why);
                }
                stays
            };
            self.running.retain_mut(&mut keep);
            self.waiting.retain_mut(&mut keep);
        }
    }

    /// Applies the step that has just ended. With `grouped`, sequences that will decode in every step become one group.
    pub(super) fn land(
        &mut self,
        grouped: bool,
        stats: &mut EngineStats,
        out: &mut impl FnMut(EngineOutput, TokenTimes<'_>),
    ) {
        let at = self.free_at;
        let of_group = self.group.land(at, stats);
        let of_others = self.group.len() < self.running.len() && self.running.iter().any(|sequence| sequence.emits > 0);
        if of_others && !of_group {
            // Its members have all steps of the log from their first one on.
            self.dissolve_group();
        }
        if (of_group || of_others)
            && let Some(log) = &mut self.log
        {
            log.push(at);
        }
        if self.group.len() == self.running.len() {
            return;
        }
        let unread = StepLog::default();
        let (blocks, group, log) = (&mut self.blocks, &mut self.group, self.log.as_ref());
        self.running.retain_mut(|sequence| {
            if sequence.member.is_some() {
                return true;
            }
            let step = log.map(|log| log.next().saturating_sub(1));
            let Some(output) = sequence.book_step(at, step, stats) else { return true };
            let stays = output.finished.is_none();
            if !stays {
                blocks.release(std::mem::take(&mut sequence.held));
            } else if grouped {
                group.join(sequence, at, log.map(StepLog::next), blocks);
            }
            out(output, TokenTimes::new(&sequence.steps, log.unwrap_or(&unread)));
            stays
        });
        self.forget_old_steps();
    }

    /// Drops the steps of the log that no sequence needs, once there are many.
    fn forget_old_steps(&mut self) {
        let Some(log) = self.log.as_mut().filter(|log| log.len() >= self.log_limit) else { return };
        let oldest = self.running.iter().chain(&self.waiting).filter_map(|sequence| sequence.steps.first()).min();
        log.forget_before(oldest.unwrap_or(log.next()));
        self.log_limit = (2 * log.len()).max(MIN_LOG_STEPS);
    }

    /// Start of the next step: now if any sequence can run, else at the next arrival or resumption.
    fn next_start(&self) -> Option<Stamp> {
        // Mostly the first sequence decides, and a batch is long.
        if self.running.iter().any(|sequence| !sequence.stalled(self.free_at)) {
            return Some(self.free_at);
        }
        let arrival = self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs);
        let ready = self.running.iter().map(|sequence| sequence.resumes.unwrap_or_default());
        let earliest = ready.chain(arrival.map(|sequence| sequence.arrived)).min()?;
        Some(earliest.max(self.free_at))
    }

    /// Starts the next step if it is due; returns the time of the next call.
    ///
    /// A step starts at the end of the previous one, however late the caller is. Neither that lateness nor an arrival
    /// during it affects the model. If the caller is late by more than the shortest step, the lost time is skipped
    /// without a burst, as for a stopped process.
    pub(super) fn launch(&mut self, now: Stamp, stats: &mut EngineStats) -> Option<Stamp> {
        let mut start = self.next_start()?;
        if start > now {
            return Some(start);
        }
        if now.since(start) > self.cost.step_base {
            start = now;
        }
        let work = self.schedule(start, stats);
        if work.seqs == 0 {
            // All sequences of the batch are stalled, and they hold the resources that the others need.
            return self.running.iter().filter_map(|sequence| sequence.resumes).filter(|at| *at > start).min();
        }
        self.ends = Some(start.after(self.step_time(&work)));
        self.ends
    }

    pub(super) fn step_time(&self, work: &StepWork) -> Gap {
        self.cost.step(work).max(Gap::from_nanos(1))
    }

    /// Fills the step.
    fn schedule(&mut self, start: Stamp, stats: &mut EngineStats) -> StepWork {
        let mut step = StepPlan { budget: self.token_budget, work: StepWork::default() };
        match self.prefill_mode {
            PrefillMode::Chunked => {
                if !self.schedule_running(start, &mut step, stats) {
                    self.admit(start, &mut step, stats);
                }
            }
            PrefillMode::First => {
                let whole = Some(self.token_budget);
                for sequence in self.running.iter_mut().filter(|sequence| !sequence.decoding) {
                    if !sequence.stalled(start) {
                        step.place(sequence, &mut self.blocks, self.tokens_per_step, whole);
                    }
                }
                self.admit(start, &mut step, stats);
                if step.budget == self.token_budget {
                    self.schedule_running(start, &mut step, stats);
                }
            }
        }
        step.work
    }

    /// Schedules the running sequences. Returns `true` if it had to preempt one: always one that is not in the step yet.
    fn schedule_running(&mut self, start: Stamp, step: &mut StepPlan, stats: &mut EngineStats) -> bool {
        self.schedule_group(start, step);
        if self.group.len() == self.running.len() {
            return false;
        }
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && step.budget > 0 {
            let sequence = &mut self.running[at];
            if sequence.member.is_some() || sequence.stalled(start) {
                at += 1;
                continue;
            }
            match step.place(sequence, &mut self.blocks, self.tokens_per_step, None) {
                Placement::Scheduled | Placement::NoBudget => {
                    at += 1;
                    continue;
                }
                Placement::NoBlocks => preempted = true,
            }
            if let Some(mut victim) = self.running.pop() {
                self.blocks.release(std::mem::take(&mut victim.held));
                victim.computed = 0;
                victim.decoding = false;
                stats.preemptions += 1;
                self.waiting.push_front(victim);
            }
        }
        preempted
    }

    /// Admits waiting sequences that arrived before the step started.
    fn admit(&mut self, start: Stamp, step: &mut StepPlan, stats: &mut EngineStats) {
        let whole = (self.prefill_mode == PrefillMode::First).then_some(self.token_budget);
        while step.budget > 0 && self.running.len() < self.max_num_seqs {
            let Some(mut sequence) = self.waiting.pop_front_if(|next| next.arrived <= start) else { break };
            let tokens = sequence.job.prompt.tokens;
            // Only a transferred sequence decodes before its admission.
            let transferred = sequence.decoding;
            if !transferred {
                sequence.held = self.blocks.adopt(&sequence.job.prompt.chain, tokens);
            }
            let cached = self.blocks.shared_tokens(&sequence.held);
            sequence.computed = if transferred { tokens } else { cached };
            // A stall before the first token occupies a slot, like any other stall.
            let joins = sequence.stalled(start)
                || step.place(&mut sequence, &mut self.blocks, self.tokens_per_step, whole) == Placement::Scheduled;
            if !joins {
                self.blocks.release(std::mem::take(&mut sequence.held));
                sequence.computed = 0;
                self.waiting.push_front(sequence);
                break;
            }
            if sequence.admitted.is_none() {
                sequence.admitted = Some(start);
                sequence.cached = cached;
                if !transferred {
                    stats.cache_queries += u64::from(tokens);
                    stats.cache_hits += u64::from(cached);
                }
                stats.queue.observe(&E2E_BOUNDS, start.since(sequence.arrived));
            }
            step.work.cached += u64::from(cached);
            self.running.push(sequence);
        }
    }
}

/// A step while it is filled.
pub(super) struct StepPlan {
    /// Tokens that still fit.
    pub(super) budget: u32,
    work: StepWork,
}

impl StepPlan {
    /// Adds sequences that decode `tokens`, which fit.
    pub(super) fn add_decoding(&mut self, tokens: u64, work: &StepWork) {
        self.budget = self.budget.saturating_sub(u32::try_from(tokens).unwrap_or(u32::MAX));
        self.work.seqs += work.seqs;
        self.work.kv_tokens += work.kv_tokens;
    }

    /// Adds one sequence with as many tokens as the budget allows; with `whole_prompts`, the budget of an empty step,
    /// with all or none. A prompt over that budget has a step for itself. Changes nothing if there is no place.
    fn place(
        &mut self,
        sequence: &mut Sequence,
        blocks: &mut BlockPool,
        tokens_per_step: u32,
        whole_prompts: Option<u32>,
    ) -> Placement {
        let remaining = sequence.remaining();
        let whole = whole_prompts.is_some() && remaining > self.budget;
        if whole && whole_prompts.is_some_and(|full| self.budget < full) {
            return Placement::NoBudget;
        }
        let tokens = if whole { remaining } else { remaining.min(self.budget) };
        let computed = sequence.computed.saturating_add(tokens);
        if !blocks.grow(&mut sequence.held, computed) {
            return Placement::NoBlocks;
        }
        blocks.publish(&mut sequence.held, &sequence.job.prompt.chain, computed);
        if tokens == remaining {
            sequence.emits = sequence.next_output(tokens_per_step);
        }
        sequence.scheduled = tokens;
        self.budget = self.budget.saturating_sub(tokens);
        self.work.seqs += u64::from(tokens > 0);
        match sequence.decoding {
            true if tokens > 0 => self.work.kv_tokens += u64::from(sequence.context()),
            true => {}
            false => self.work.add_chunk(sequence.computed, tokens),
        }
        Placement::Scheduled
    }
}

//! Continuous batching, as vLLM's scheduler does it.
//!
//! Time is a sequence of steps. A step takes one token of every decoding sequence, and as much prefill as the token
//! budget leaves, oldest sequence first. Then waiting sequences join while there are slots, budget and blocks. A
//! joining sequence first takes its cached prefix. If no block is free for a running sequence, the scheduler preempts
//! the youngest one: it loses its blocks, returns to the head of the queue, and computes everything again.

use std::collections::VecDeque;
use std::ops::Range;

use super::blocks::{BlockLease, BlockPool};
use super::finish::EngineFinish;
use super::{EngineJob, EngineOutput, FinishedJob};
use crate::measure::time::{Gap, Stamp};
use crate::sim::cost::CostModel;
use crate::sim::options::SimOptions;
use crate::sim::stats::{E2E_BOUNDS, ITL_BOUNDS, SimStats, TTFT_BOUNDS};

#[derive(Debug)]
pub(super) struct BatchScheduler {
    cost: CostModel,
    max_num_seqs: usize,
    max_waiting: usize,
    token_budget: u32,
    tokens_per_step: u32,
    blocks: BlockPool,
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
    /// Aborted since the last step.
    gone: Vec<(Range<u64>, EngineFinish)>,
    /// End of the step in flight.
    ends: Option<Stamp>,
    /// End of the previous step.
    free_at: Stamp,
}

#[derive(Debug)]
struct Sequence {
    seq: u64,
    job: EngineJob,
    held: BlockLease,
    arrived: Stamp,
    admitted: Option<Stamp>,
    first: Option<Stamp>,
    last: Stamp,
    /// End of the current stall.
    resumes: Option<Stamp>,
    /// Prompt tokens found in the prefix cache at first admission.
    cached: u32,
    /// Tokens with computed keys and values.
    computed: u32,
    /// Tokens computed by the step in flight; zero if the sequence is not in it.
    scheduled: u32,
    /// Output tokens of the step in flight.
    emits: u32,
    generated: u32,
    /// The prompt is computed; after a preemption, also the output so far.
    decoding: bool,
}

impl Sequence {
    fn new(seq: u64, job: EngineJob, arrived: Stamp) -> Self {
        let mut new = Self {
            seq,
            job,
            held: BlockLease::default(),
            arrived,
            admitted: None,
            first: None,
            last: arrived,
            resumes: None,
            cached: 0,
            computed: 0,
            scheduled: 0,
            emits: 0,
            generated: 0,
            decoding: false,
        };
        new.stall_from(arrived);
        new
    }

    /// Begins the stall if it precedes the next token.
    fn stall_from(&mut self, at: Stamp) {
        if let Some(stall) = self.job.stall.take_if(|stall| stall.before <= self.generated + 1) {
            self.resumes = Some(at.after(stall.gap));
        }
    }

    fn stalled(&self, at: Stamp) -> bool {
        self.resumes.is_some_and(|resumes| resumes > at)
    }

    fn remaining(&self) -> u32 {
        self.job.prompt.tokens.saturating_add(self.generated).saturating_sub(self.computed)
    }

    /// Output tokens of a step that computes all remaining tokens. The first step gives one, and no step passes a
    /// stall.
    fn next_output(&self, tokens_per_step: u32) -> u32 {
        let most = if self.decoding { tokens_per_step } else { 1 };
        let left = self.job.output_tokens.saturating_sub(self.generated);
        let until_stall = self.job.stall.map_or(u32::MAX, |stall| stall.before - 1 - self.generated);
        most.min(left).min(until_stall)
    }

    /// Applies the step that ends at `at`. `None` if this sequence had no output.
    fn book_step(&mut self, at: Stamp, stats: &mut SimStats) -> Option<EngineOutput> {
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
            stats.itl.observe(&ITL_BOUNDS, at.since(self.last));
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

    fn finish(&self, at: Stamp, stats: &mut SimStats) -> FinishedJob {
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
}

impl BatchScheduler {
    pub(super) fn new(options: &SimOptions) -> Self {
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            cost: options.cost.clone(),
            max_num_seqs: size(options.max_num_seqs),
            max_waiting: size(options.max_waiting),
            token_budget: options.max_batched_tokens,
            tokens_per_step: options.tokens_per_step,
            blocks: BlockPool::new(options.kv_blocks, options.prefix_cache),
            waiting: VecDeque::new(),
            running: Vec::new(),
            gone: Vec::new(),
            ends: None,
            free_at: Stamp::default(),
        }
    }

    /// Sequences that can be accepted now: free queue places plus free slots.
    pub(super) fn room(&self) -> usize {
        let slots = self.max_num_seqs.saturating_sub(self.running.len());
        self.max_waiting.saturating_add(slots).saturating_sub(self.waiting.len())
    }

    pub(super) fn submit(&mut self, now: Stamp, seq: u64, job: EngineJob) {
        self.waiting.push_back(Sequence::new(seq, job, now));
    }

    pub(super) fn abort(&mut self, seqs: Range<u64>, why: EngineFinish) {
        self.gone.push((seqs, why));
    }

    pub(super) fn gauge(&self, stats: &mut SimStats) {
        stats.running = self.running.len() as u64;
        stats.waiting = self.waiting.len() as u64;
        stats.kv_usage = self.blocks.usage();
    }

    pub(super) fn due(&self) -> Option<Stamp> {
        let sweep = (!self.gone.is_empty()).then_some(self.free_at);
        self.ends.or(sweep).or_else(|| self.next_start())
    }

    pub(super) fn step(&mut self, now: Stamp, stats: &mut SimStats, out: &mut Vec<EngineOutput>) -> Option<Stamp> {
        if let Some(ends) = self.ends {
            if now < ends {
                return Some(ends);
            }
            self.ends = None;
            self.free_at = ends;
        }
        self.sweep(stats);
        self.land(stats, out);
        self.launch(now, stats)
    }

    /// Releases aborted sequences.
    fn sweep(&mut self, stats: &mut SimStats) {
        for (seqs, why) in std::mem::take(&mut self.gone) {
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

    /// Applies the step that has just ended.
    fn land(&mut self, stats: &mut SimStats, out: &mut Vec<EngineOutput>) {
        let (blocks, at) = (&mut self.blocks, self.free_at);
        self.running.retain_mut(|sequence| {
            let Some(output) = sequence.book_step(at, stats) else { return true };
            let stays = output.finished.is_none();
            if !stays {
                blocks.release(std::mem::take(&mut sequence.held));
            }
            out.push(output);
            stays
        });
    }

    /// Start of the next step: now if any sequence can run, else at the next arrival or resumption.
    fn next_start(&self) -> Option<Stamp> {
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
    fn launch(&mut self, now: Stamp, stats: &mut SimStats) -> Option<Stamp> {
        let mut start = self.next_start()?;
        if start > now {
            return Some(start);
        }
        if now.since(start) > self.cost.step_base {
            start = now;
        }
        let mut budget = self.token_budget;
        let preempted = self.schedule_running(start, &mut budget, stats);
        if !preempted {
            self.admit(start, &mut budget, stats);
        }
        let (mut seqs, mut prefill) = (0, 0);
        for sequence in self.running.iter().filter(|sequence| sequence.scheduled > 0) {
            seqs += 1;
            if !sequence.decoding {
                prefill += u64::from(sequence.scheduled);
            }
        }
        if seqs == 0 {
            // All sequences of the batch are stalled, and they hold the resources that the others need.
            return self.running.iter().filter_map(|sequence| sequence.resumes).filter(|at| *at > start).min();
        }
        let took = self.cost.step(seqs, prefill).max(Gap::from_nanos(1));
        self.ends = Some(start.after(took));
        self.ends
    }

    /// Schedules the running sequences. Returns `true` if it had to preempt one.
    fn schedule_running(&mut self, start: Stamp, budget: &mut u32, stats: &mut SimStats) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let sequence = &mut self.running[at];
            if sequence.stalled(start) {
                at += 1;
                continue;
            }
            if schedule(sequence, &mut self.blocks, budget, self.tokens_per_step) {
                at += 1;
                continue;
            }
            preempted = true;
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
    fn admit(&mut self, start: Stamp, budget: &mut u32, stats: &mut SimStats) {
        while *budget > 0 && self.running.len() < self.max_num_seqs {
            let Some(mut sequence) = self.waiting.pop_front_if(|next| next.arrived <= start) else { break };
            let tokens = sequence.job.prompt.tokens;
            sequence.held = self.blocks.adopt(&sequence.job.prompt.chain, tokens);
            let cached = sequence.held.tokens();
            sequence.computed = cached;
            // A stall before the first token occupies a slot, like any other stall.
            let joins =
                sequence.stalled(start) || schedule(&mut sequence, &mut self.blocks, budget, self.tokens_per_step);
            if !joins {
                self.blocks.release(std::mem::take(&mut sequence.held));
                sequence.computed = 0;
                self.waiting.push_front(sequence);
                break;
            }
            if sequence.admitted.is_none() {
                sequence.admitted = Some(start);
                sequence.cached = cached;
                stats.cache_queries += u64::from(tokens);
                stats.cache_hits += u64::from(cached);
                stats.queue.observe(&E2E_BOUNDS, start.since(sequence.arrived));
            }
            self.running.push(sequence);
        }
    }
}

/// Adds one sequence to the step with as many tokens as the budget allows. Returns `false` and changes nothing if no
/// block is free.
fn schedule(sequence: &mut Sequence, blocks: &mut BlockPool, budget: &mut u32, tokens_per_step: u32) -> bool {
    let tokens = sequence.remaining().min(*budget);
    let computed = sequence.computed.saturating_add(tokens);
    if !blocks.grow(&mut sequence.held, computed) {
        return false;
    }
    blocks.publish(&mut sequence.held, &sequence.job.prompt.chain, computed);
    if tokens == sequence.remaining() {
        sequence.emits = sequence.next_output(tokens_per_step);
    }
    sequence.scheduled = tokens;
    *budget -= tokens;
    true
}

//! Continuous batching, as vLLM's scheduler does it.
//!
//! Time is a chain of steps. A step takes one token of every decoding sequence and as much prefill as the token budget
//! leaves, oldest first; then waiting sequences join while there are slots, budget and blocks. Whoever joins has found
//! its cached prefix first. When a running sequence finds no block, the youngest running one is preempted: it gives up
//! its blocks, goes to the head of the queue, and computes everything again.

use std::collections::VecDeque;
use std::ops::Range;

use super::blocks::{BlockLease, BlockPool};
use super::{EngineFinish, EngineJob, EngineOutput, FinishedJob};
use crate::measure::time::{Gap, Stamp};
use crate::sim::cost::CostModel;
use crate::sim::options::SimOptions;
use crate::sim::stats::{E2E_BOUNDS, ITL_BOUNDS, SimStats, TTFT_BOUNDS};

/// The scheduler.
#[derive(Debug)]
pub(super) struct BatchScheduler {
    cost: CostModel,
    max_num_seqs: usize,
    max_waiting: usize,
    token_budget: u32,
    tokens_per_step: u32,
    blocks: BlockPool,
    waiting: VecDeque<Sequence>,
    /// In the order of admission.
    running: Vec<Sequence>,
    /// Aborted since the last step.
    gone: Vec<(Range<u64>, EngineFinish)>,
    /// The end of the step in flight.
    ends: Option<Stamp>,
    /// The end of the step before.
    free_at: Stamp,
}

/// One sequence on its way.
#[derive(Debug)]
struct Sequence {
    seq: u64,
    job: EngineJob,
    held: BlockLease,
    arrived: Stamp,
    admitted: Option<Stamp>,
    first: Option<Stamp>,
    last: Stamp,
    /// Where a stall ends.
    resumes: Option<Stamp>,
    /// Prompt tokens found in the prefix cache at first admission.
    cached: u32,
    /// Tokens whose keys and values exist.
    computed: u32,
    /// Tokens that the step in flight computes; zero if the sequence is not in it.
    scheduled: u32,
    /// Output tokens that the step in flight will give.
    emits: u32,
    generated: u32,
    /// The prompt (after a preemption: and the output so far) is computed.
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

    /// Begins the stall if the next token is the one it stands before.
    fn stall_from(&mut self, at: Stamp) {
        if let Some(stall) = self.job.stall.take_if(|stall| stall.before <= self.generated + 1) {
            self.resumes = Some(at.after(stall.gap));
        }
    }

    fn stalled(&self, at: Stamp) -> bool {
        self.resumes.is_some_and(|resumes| resumes > at)
    }

    /// Tokens to compute before the next output token.
    fn remaining(&self) -> u32 {
        self.job.prompt.tokens.saturating_add(self.generated).saturating_sub(self.computed)
    }

    /// Output tokens of a step that computes all that remains. The first step gives one; a stall is not jumped.
    fn next_output(&self, tokens_per_step: u32) -> u32 {
        let most = if self.decoding { tokens_per_step } else { 1 };
        let left = self.job.output_tokens.saturating_sub(self.generated);
        let until_stall = self.job.stall.map_or(u32::MAX, |stall| stall.before - 1 - self.generated);
        most.min(left).min(until_stall)
    }

    /// Books the step that ends at `at`. `None` if it gave this sequence nothing.
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

    /// Sequences that could be taken now: the rest of the queue, and the slots that are free.
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

    /// Lets go of what was aborted.
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

    /// Books the step that has just ended.
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

    /// When the next step can start: at once if somebody runs, else when somebody arrives or resumes.
    fn next_start(&self) -> Option<Stamp> {
        let arrival = self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs);
        let ready = self.running.iter().map(|sequence| sequence.resumes.unwrap_or_default());
        let earliest = ready.chain(arrival.map(|sequence| sequence.arrived)).min()?;
        Some(earliest.max(self.free_at))
    }

    /// Starts the next step if its time has come, and returns when to look again.
    ///
    /// A step starts where the one before ended, however late the caller was to notice: neither its lateness nor an
    /// arrival in that time gets into the model. But a caller that is late by more than the shortest step is not
    /// answered with a burst; the time is lost, as it is for a process that was stopped.
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
            // Everybody in the batch is stalled, and they hold what the others wait for.
            return self.running.iter().filter_map(|sequence| sequence.resumes).filter(|at| *at > start).min();
        }
        let took = self.cost.step(seqs, prefill).max(Gap::from_nanos(1));
        self.ends = Some(start.after(took));
        self.ends
    }

    /// Gives the running sequences their tokens of the step. `true` if one had to be preempted for that.
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

    /// Lets waiting sequences join that had arrived when the step started.
    fn admit(&mut self, start: Stamp, budget: &mut u32, stats: &mut SimStats) {
        while *budget > 0 && self.running.len() < self.max_num_seqs {
            let Some(mut sequence) = self.waiting.pop_front_if(|next| next.arrived <= start) else { break };
            let tokens = sequence.job.prompt.tokens;
            sequence.held = self.blocks.adopt(&sequence.job.prompt.chain, tokens);
            let cached = sequence.held.tokens();
            sequence.computed = cached;
            // A stall before the first token keeps a slot, like every other stall.
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

/// Puts one sequence into the step with as much as the budget allows. `false` changes nothing: there is no block left.
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

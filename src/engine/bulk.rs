//! Virtual time: steps that only decode are applied in bulk.

use super::CompletedSequence;
use super::batching::BatchScheduler;
use super::cost::StepWork;
use super::sequence::Sequence;
use super::stats::EngineStats;
use super::token_times::StepLog;
use crate::measure::time::Stamp;

/// Steps that a prediction of the next finish looks ahead. A longer run is predicted in parts.
const MAX_LOOKAHEAD_STEPS: u32 = 4_096;

/// A batch that only decodes.
struct SteadyBatch {
    /// Steps until the first sequence finishes, at least 1. A step in flight counts.
    steps: u32,
    /// Work of the next step.
    work: StepWork,
}

impl BatchScheduler {
    /// Runs all steps due before `until`, and passes each finished sequence to `done`. Equal to calls of
    /// [`step`](Self::step) at each due time, but steps that only decode are applied in bulk.
    pub(super) fn advance(
        &mut self,
        until: Stamp,
        stats: &mut EngineStats,
        done: &mut impl FnMut(CompletedSequence<'_>),
    ) {
        while let Some(due) = self.due().filter(|due| *due < until) {
            if let Some(ends) = self.ends.take() {
                self.free_at = ends;
            }
            self.sweep(stats);
            self.land(stats, &mut |output, times| {
                if let Some(finished) = output.finished {
                    done(CompletedSequence {
                        seq: output.seq,
                        generated: output.generated,
                        finished,
                        at: output.at,
                        times,
                    });
                }
            });
            self.decode_in_bulk(until, stats);
            if self.launch(due.max(self.free_at), stats).is_none() && self.gone.is_empty() {
                break;
            }
        }
    }

    /// A time before which no sequence can finish, unless a job arrives or is aborted.
    pub(super) fn next_finish(&self) -> Option<Stamp> {
        let due = self.due()?;
        let Some(ends) = self.ends else { return Some(due) };
        let in_step = self.running.iter().all(|sequence| sequence.emits > 0);
        let Some(SteadyBatch { steps, mut work }) = self.steady_batch(ends).filter(|steady| self.fits(steady.steps))
        else {
            return Some(ends);
        };
        if !in_step {
            return Some(ends);
        }
        let (seqs, each) = (work.seqs, u64::from(self.tokens_per_step));
        let mut at = ends;
        for _ in 1..steps.min(MAX_LOOKAHEAD_STEPS) {
            work.kv_tokens += seqs * each;
            at = at.after(self.step_time(&work));
        }
        let arrival = self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs);
        Some(arrival.map_or(at, |sequence| at.min(sequence.arrived.max(ends))))
    }

    fn can_admit(&self, start: Stamp) -> bool {
        self.running.len() < self.max_num_seqs && self.waiting.front().is_some_and(|next| next.arrived <= start)
    }

    /// Applies steps that end before `until`, decode every running sequence, and finish none. Needs a landed step.
    fn decode_in_bulk(&mut self, until: Stamp, stats: &mut EngineStats) {
        let (start, each) = (self.free_at, self.tokens_per_step);
        let Some(SteadyBatch { steps, mut work }) = self.steady_batch(start) else { return };
        let mut most = steps - 1;
        while most > 0 && !self.fits(most) {
            most /= 2;
        }
        let arrival = self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs).map(|next| next.arrived);
        let (mut at, mut done, mut first_end) = (start, 0_u32, start);
        while done < most && arrival.is_none_or(|arrival| arrival > at) {
            let took = self.step_time(&work);
            let end = at.after(took);
            if end >= until {
                break;
            }
            match done {
                0 => first_end = end,
                _ => stats.observe_gaps(took, work.seqs),
            }
            if let Some(log) = &mut self.log {
                log.push(end);
            }
            (at, done) = (end, done + 1);
            work.kv_tokens += work.seqs * u64::from(each);
        }
        if done == 0 {
            return;
        }
        self.free_at = at;
        let next = self.log.as_ref().map_or(0, StepLog::next);
        for sequence in &mut self.running {
            sequence.observe_gap(first_end, stats);
            let computed = sequence.computed_after(done, each);
            // `fits` has made sure of the blocks.
            let grown = self.blocks.grow(&mut sequence.held, computed);
            debug_assert!(grown, "blocks for a bulk of steps");
            sequence.decode(done, each, at);
            sequence.steps.add(next - u64::from(done), u64::from(done));
        }
        stats.generation_tokens += work.seqs * u64::from(each) * u64::from(done);
    }

    /// The batch, if every step decodes all running sequences until the first of them finishes. No block may be missing,
    /// which [`fits`](Self::fits) says.
    fn steady_batch(&self, start: Stamp) -> Option<SteadyBatch> {
        if !self.gone.is_empty() || self.can_admit(start) {
            return None;
        }
        let (mut kv_tokens, mut next, mut left) = (0, 0, u32::MAX);
        for sequence in &self.running {
            if !sequence.is_steady(start) {
                return None;
            }
            kv_tokens += u64::from(sequence.context());
            next += u64::from(sequence.remaining());
            left = left.min(sequence.tokens_left());
        }
        let (budget, each, seqs) = (u64::from(self.token_budget), self.tokens_per_step, self.running.len() as u64);
        if seqs == 0 || next > budget || seqs * u64::from(each) > budget {
            return None;
        }
        let work = StepWork { seqs, kv_tokens, ..StepWork::default() };
        Some(SteadyBatch { steps: left.div_ceil(each).max(1), work })
    }

    /// True if the KV cache has the blocks for `steps` further steps of all sequences.
    fn fits(&self, steps: u32) -> bool {
        let (each, seqs) = (self.tokens_per_step, self.running.len() as u64);
        if seqs * u64::from(self.blocks.most_missing(steps.saturating_mul(each))) <= u64::from(self.blocks.free()) {
            return true;
        }
        let missing =
            |sequence: &Sequence| u64::from(self.blocks.missing(&sequence.held, sequence.computed_after(steps, each)));
        self.running.iter().map(missing).sum::<u64>() <= u64::from(self.blocks.free())
    }
}

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
        let steps = self.steady_steps(ends);
        if !in_step || steps == 0 || !self.fits(steps) {
            return Some(ends);
        }
        let mut work = self.decode_work();
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

    /// Work of a step that decodes all running sequences.
    fn decode_work(&self) -> StepWork {
        let kv_tokens = self.running.iter().map(|sequence| u64::from(sequence.context())).sum();
        StepWork { seqs: self.running.len() as u64, kv_tokens, ..StepWork::default() }
    }

    /// Applies steps that end before `until`, decode every running sequence, and finish none. Needs a landed step.
    fn decode_in_bulk(&mut self, until: Stamp, stats: &mut EngineStats) {
        let (start, each) = (self.free_at, self.tokens_per_step);
        let mut most = self.steady_steps(start).saturating_sub(1);
        while most > 0 && !self.fits(most) {
            most /= 2;
        }
        let arrival = self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs).map(|next| next.arrived);
        let mut work = self.decode_work();
        let (mut at, mut done) = (start, 0_u32);
        while done < most && arrival.is_none_or(|arrival| arrival > at) {
            let took = self.step_time(&work);
            let end = at.after(took);
            if end >= until {
                break;
            }
            match done {
                0 => self.running.iter().for_each(|sequence| sequence.observe_gap(end, stats)),
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
            let computed = sequence.computed_after(done, each);
            // `fits` has made sure of the blocks.
            let grown = self.blocks.grow(&mut sequence.held, computed);
            debug_assert!(grown, "blocks for a bulk of steps");
            sequence.decode(done, each, at);
            sequence.steps.add(next - u64::from(done), u64::from(done));
        }
        stats.generation_tokens += work.seqs * u64::from(each) * u64::from(done);
    }

    /// Steps until the first sequence finishes, if every step until then decodes all running sequences; else 0. A step
    /// in flight counts. No block may be missing, which [`fits`](Self::fits) says.
    fn steady_steps(&self, start: Stamp) -> u32 {
        if !self.gone.is_empty() || self.can_admit(start) {
            return 0;
        }
        if !self.running.iter().all(|sequence| sequence.is_steady(start)) {
            return 0;
        }
        let (budget, each) = (u64::from(self.token_budget), self.tokens_per_step);
        let next: u64 = self.running.iter().map(|sequence| u64::from(sequence.remaining())).sum();
        if next > budget || self.running.len() as u64 * u64::from(each) > budget {
            return 0;
        }
        self.running.iter().map(|sequence| sequence.steps_to_finish(each)).min().unwrap_or(0)
    }

    /// True if the KV cache has the blocks for `steps` further steps of all sequences.
    fn fits(&self, steps: u32) -> bool {
        let each = self.tokens_per_step;
        let missing =
            |sequence: &Sequence| u64::from(self.blocks.missing(&sequence.held, sequence.computed_after(steps, each)));
        self.running.iter().map(missing).sum::<u64>() <= u64::from(self.blocks.free())
    }
}

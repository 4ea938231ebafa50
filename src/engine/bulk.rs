//! Virtual time: sequences that only decode are a [`DecodeGroup`](super::decode_group), and steps of nothing but that
//! group are applied in bulk.

use super::CompletedSequence;
use super::batching::{BatchScheduler, StepPlan};
use super::cost::StepWork;
use super::stats::EngineStats;
use crate::measure::time::Stamp;

/// Steps that a prediction of the next finish looks ahead. A longer run is predicted in parts.
const MAX_LOOKAHEAD_STEPS: u64 = 4_096;

impl BatchScheduler {
    /// Runs all steps due before `until`, and passes each finished sequence to `done`. Equal to calls of
    /// [`step`](Self::step) at each due time.
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
            self.land(true, stats, &mut |output, times| {
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
            if self.launch(due.max(self.free_at), stats).is_none() && self.aborted.is_empty() {
                break;
            }
        }
    }

    /// A time before which no sequence can finish, unless a job arrives or is aborted.
    pub(super) fn next_finish(&self) -> Option<Stamp> {
        let due = self.due()?;
        let Some(ends) = self.ends else { return Some(due) };
        let steps = self.group.steps_left().min(MAX_LOOKAHEAD_STEPS);
        let most_missing = self.group.len() as u64 * self.blocks.most_missing(steps * u64::from(self.tokens_per_step));
        if !self.is_steady(ends) || most_missing > u64::from(self.blocks.free()) {
            return Some(ends);
        }
        let mut work = self.group_work();
        let mut at = ends;
        for _ in 1..steps {
            work.kv_tokens += self.group.tokens();
            at = at.after(self.step_time(&work));
        }
        Some(self.next_arrival().map_or(at, |arrival| at.min(arrival.max(ends))))
    }

    /// True if nothing but the group is in the batch, and nothing else can be before the next arrival.
    fn is_steady(&self, start: Stamp) -> bool {
        self.group.len() > 0
            && self.group.len() == self.running.len()
            && self.aborted.is_empty()
            && self.group.tokens() <= u64::from(self.token_budget)
            && self.next_arrival().is_none_or(|arrival| arrival > start)
    }

    /// Arrival of the next sequence to admit, if a slot is free.
    fn next_arrival(&self) -> Option<Stamp> {
        self.waiting.front().filter(|_| self.running.len() < self.max_num_seqs).map(|next| next.arrived)
    }

    fn group_work(&self) -> StepWork {
        StepWork { seqs: self.group.len() as u64, kv_tokens: self.group.kv_tokens(), ..StepWork::default() }
    }

    /// Applies steps of the group alone that end before `until` and finish no sequence. Needs a landed step.
    fn decode_in_bulk(&mut self, until: Stamp, stats: &mut EngineStats) {
        while self.group.steps_left() > 1 && self.is_steady(self.free_at) {
            let end = self.free_at.after(self.step_time(&self.group_work()));
            if end >= until || !self.blocks.reserve(self.group.missing_blocks()) {
                break;
            }
            self.group.launch();
            self.group.land(end, stats);
            if let Some(log) = &mut self.log {
                log.push(end);
            }
            self.free_at = end;
        }
    }

    /// Adds the group to the step, without those whom the step ends. The group is dissolved if its sequences have to
    /// compete with others for blocks or tokens, because then their order decides.
    pub(super) fn schedule_group(&mut self, start: Stamp, step: &mut StepPlan) {
        if self.group.len() == 0 {
            return;
        }
        self.group.let_finish(self.running.iter_mut(), &self.blocks);
        let of_group = self.group.missing_blocks();
        let (mut tokens, mut missing) = (self.group.tokens(), of_group);
        let mut is_decided_by_order = false;
        if self.group.len() < self.running.len() {
            let mut after_prompt = false;
            for sequence in &self.running {
                is_decided_by_order |= after_prompt && sequence.decoding;
                if sequence.member.is_some() || sequence.stalled(start) {
                    continue;
                }
                let remaining = sequence.remaining().min(self.token_budget);
                missing += u64::from(self.blocks.missing(&sequence.held, sequence.computed.saturating_add(remaining)));
                match sequence.decoding {
                    true => tokens += u64::from(remaining),
                    false => after_prompt = true,
                }
            }
        }
        if is_decided_by_order || tokens > u64::from(step.budget) || missing > u64::from(self.blocks.free()) {
            self.dissolve_group();
        } else if self.group.len() > 0 && self.blocks.reserve(of_group) {
            step.add_decoding(self.group.tokens(), &self.group_work());
            self.group.launch();
        }
    }

    /// Makes single sequences of all members.
    pub(super) fn dissolve_group(&mut self) {
        if self.group.len() > 0 {
            self.running.iter_mut().for_each(|sequence| self.group.leave(sequence, &self.blocks));
        }
    }
}

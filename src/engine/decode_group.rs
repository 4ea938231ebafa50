//! Sequences that decode in every step, counted as one.
//!
//! Such a sequence changes in each step as all others of its kind do: it gets tokens at the end of the step, its context
//! grows by as many, and now and then it takes a block. So the group counts steps, and a step costs the same however
//! many sequences are in it. What happened to a member is computed once, when it leaves.

use super::blocks::BlockPool;
use super::sequence::{GroupMember, Sequence};
use super::stats::EngineStats;
use crate::measure::time::Stamp;

/// Longest block that is counted by phase. Sequences with longer ones stay single.
const MAX_BLOCK_TOKENS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct DecodeGroup {
    tokens_per_step: u32,
    len: usize,
    /// Context tokens of all members, before the step in flight.
    kv_tokens: u64,
    /// Steps that the group has ended.
    steps: u64,
    /// End of the last of them.
    last: Stamp,
    /// The group is in the step in flight.
    in_flight: bool,
    /// Number of the earliest step that ends a member.
    next_finish: u64,
    /// Members by the place of their last block's end in `tokens_taken`: those of one place take their next block in the
    /// same step.
    members_by_block_phase: Vec<u32>,
    /// Tokens that each member has taken, modulo the length of a block.
    tokens_taken: u32,
}

impl DecodeGroup {
    pub(super) fn new(tokens_per_step: u32, blocks: &BlockPool) -> Self {
        Self {
            tokens_per_step,
            len: 0,
            kv_tokens: 0,
            steps: 0,
            last: Stamp::default(),
            in_flight: false,
            next_finish: u64::MAX,
            members_by_block_phase: vec![0; blocks.block_tokens().min(MAX_BLOCK_TOKENS)],
            tokens_taken: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn kv_tokens(&self) -> u64 {
        self.kv_tokens
    }

    /// Tokens of a step.
    pub(super) fn tokens(&self) -> u64 {
        self.len as u64 * u64::from(self.tokens_per_step)
    }

    /// Steps until the first member finishes, the one in flight included.
    pub(super) fn steps_left(&self) -> u64 {
        self.next_finish.saturating_sub(self.steps)
    }

    /// Takes a sequence that has got tokens at `at`, if it will do so in each step and not only in the next one. The
    /// members must have got tokens then too.
    pub(super) fn join(&mut self, sequence: &mut Sequence, at: Stamp, log_step: Option<u64>, blocks: &BlockPool) {
        let each = self.tokens_per_step;
        let left = sequence.tokens_left();
        let phases = self.members_by_block_phase.len();
        if phases < blocks.block_tokens()
            || !sequence.is_steady(at)
            || sequence.last != at
            || sequence.remaining() != each
            || left <= each
        {
            return;
        }
        let Some(spare) = blocks.spare_tokens(&sequence.held, sequence.computed) else { return };
        if self.len == 0 {
            (self.last, self.next_finish) = (at, u64::MAX);
        } else if self.last != at {
            return;
        }
        let block_phase = (spare + self.tokens_taken as usize) % phases;
        let finish = self.steps + u64::from(left.div_ceil(each));
        self.members_by_block_phase[block_phase] += 1;
        self.len += 1;
        self.kv_tokens += u64::from(sequence.context());
        self.next_finish = self.next_finish.min(finish);
        sequence.member = Some(GroupMember { joined: self.steps, log_step, finish, block_phase });
    }

    /// Ends the membership of a sequence: it becomes what single steps would have made of it.
    pub(super) fn leave(&mut self, sequence: &mut Sequence, blocks: &BlockPool) {
        let Some(member) = sequence.member.take() else { return };
        let (each, steps) = (self.tokens_per_step, self.steps - member.joined);
        let tokens = u32::try_from(steps * u64::from(each)).unwrap_or(u32::MAX);
        sequence.generated = sequence.generated.saturating_add(tokens);
        sequence.computed = sequence.context().saturating_sub(each);
        sequence.last = self.last;
        if let Some(step) = member.log_step.filter(|_| steps > 0) {
            sequence.steps.add(step, steps);
        }
        self.len -= 1;
        self.kv_tokens -= u64::from(sequence.context());
        self.members_by_block_phase[member.block_phase] -= 1;
        if self.in_flight {
            (sequence.scheduled, sequence.emits) = (each, each);
        }
        blocks.assign(&mut sequence.held, sequence.computed + sequence.scheduled);
        if self.len == 0 {
            self.in_flight = false;
        }
    }

    /// Lets those leave that the next step ends.
    pub(super) fn let_finish<'a>(&mut self, sequences: impl Iterator<Item = &'a mut Sequence>, blocks: &BlockPool) {
        let due = self.steps + 1;
        if self.next_finish > due {
            return;
        }
        self.next_finish = u64::MAX;
        for sequence in sequences {
            match sequence.member {
                Some(member) if member.finish <= due => self.leave(sequence, blocks),
                Some(member) => self.next_finish = self.next_finish.min(member.finish),
                None => {}
            }
        }
    }

    /// Blocks that the members take in the next step.
    pub(super) fn missing_blocks(&self) -> u64 {
        let phases = self.members_by_block_phase.len();
        let (whole, rest) = (self.tokens_per_step as usize / phases, self.tokens_per_step as usize % phases);
        let at_end = (0..rest).map(|phase| (self.tokens_taken as usize + phase) % phases);
        let in_part: u64 = at_end.map(|phase| u64::from(self.members_by_block_phase[phase])).sum();
        (whole * self.len) as u64 + in_part
    }

    /// Begins a step. The caller has taken its blocks.
    pub(super) fn launch(&mut self) {
        self.in_flight = true;
        let phases = self.members_by_block_phase.len() as u64;
        let taken = (u64::from(self.tokens_taken) + u64::from(self.tokens_per_step)) % phases;
        self.tokens_taken = u32::try_from(taken).unwrap_or(0);
    }

    /// Ends the step in flight at `at`. Returns whether the group was in it.
    pub(super) fn land(&mut self, at: Stamp, stats: &mut EngineStats) -> bool {
        if !std::mem::take(&mut self.in_flight) {
            return false;
        }
        let tokens = self.tokens();
        stats.observe_gaps(at.since(self.last), self.len as u64);
        stats.generation_tokens += tokens;
        self.kv_tokens += tokens;
        self.steps += 1;
        self.last = at;
        true
    }
}

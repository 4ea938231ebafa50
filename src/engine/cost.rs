//! The cost of a step of the simulated engine.

use crate::measure::time::Gap;

/// Duration of a step. With `s` scheduled sequences, `p` prompt tokens to compute, `c` prompt tokens taken from the
/// cache, and `k` tokens of context over all decoding sequences, a step takes
///
/// ```text
/// step_base + min(s, batch_knee) * step_per_seq + max(s - batch_knee, 0) * step_per_further_seq + p / prefill_per_second
///   + k * kv_token_ns + c * cached_token_ns + (sum of end² - start² over the prompt chunks) * prefill_square_ns
/// ```
///
/// The last sum telescopes: a prompt of `n` tokens costs `n² * prefill_square_ns`, whatever its chunks.
///
/// The defaults are round numbers close to an 8-billion-parameter model on one data-centre accelerator. They are a
/// model and not a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Prompt tokens per second during prefill, without attention.
    pub prefill_per_second: u32,
    /// Fixed cost of a step, because the engine reads the weights once per step.
    pub step_base: Gap,
    /// Additional cost per sequence in the step.
    pub step_per_seq: Gap,
    /// Sequences that cost `step_per_seq`. Hardware that a small batch does not fill computes further ones for less, and
    /// hardware that waits for its memory computes the first ones for nothing.
    pub batch_knee: u32,
    /// Additional cost per sequence beyond the knee.
    pub step_per_further_seq: Gap,
    /// Attention of prefill, in nanoseconds per squared token.
    pub prefill_square_ns: f64,
    /// Cost of a prompt token found in the cache, in nanoseconds.
    pub cached_token_ns: f64,
    /// Cost of a context token of a decoding sequence, in nanoseconds.
    pub kv_token_ns: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            prefill_per_second: 20_000,
            step_base: Gap::from_millis(10),
            step_per_seq: Gap::from_nanos(100_000),
            batch_knee: u32::MAX,
            step_per_further_seq: Gap::ZERO,
            prefill_square_ns: 0.0,
            cached_token_ns: 0.0,
            kv_token_ns: 0.0,
        }
    }
}

/// What a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Sequences in the step.
    pub seqs: u64,
    /// Prompt tokens to compute.
    pub prefill: u64,
    /// Sum of `end² - start²` over the prompt chunks, in squared tokens.
    pub prefill_squares: u64,
    /// Prompt tokens taken from the cache.
    pub cached: u64,
    /// Context tokens of the decoding sequences.
    pub kv_tokens: u64,
}

impl StepWork {
    /// Adds a prompt chunk: `tokens` after `start` computed ones.
    pub fn add_chunk(&mut self, start: u32, tokens: u32) {
        let (start, end) = (u64::from(start), u64::from(start) + u64::from(tokens));
        self.prefill += u64::from(tokens);
        self.prefill_squares = self.prefill_squares.saturating_add((end - start).saturating_mul(start + end));
    }

    /// The step that computes a prompt of `tokens` alone.
    pub fn prompt(tokens: u32) -> Self {
        let mut work = Self { seqs: 1, ..Self::default() };
        work.add_chunk(0, tokens);
        work
    }
}

impl CostModel {
    /// Duration of a step.
    pub fn step(&self, work: &StepWork) -> Gap {
        let first = work.seqs.min(self.batch_knee.into());
        let further = self.step_per_further_seq.as_nanos().saturating_mul(work.seqs - first);
        let decode = self.step_per_seq.as_nanos().saturating_mul(first).saturating_add(further);
        let prefill = match work.prefill {
            0 => 0,
            tokens => u128::from(tokens) * 1_000_000_000 / u128::from(self.prefill_per_second.max(1)),
        };
        let prefill = u64::try_from(prefill).unwrap_or(u64::MAX);
        let more = self.kv_token_ns * work.kv_tokens as f64
            + self.cached_token_ns * work.cached as f64
            + self.prefill_square_ns * work.prefill_squares as f64;
        let sum = self.step_base.as_nanos().saturating_add(decode).saturating_add(prefill);
        Gap::from_nanos(sum.saturating_add(more.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(seqs: u64, prefill: u64) -> StepWork {
        StepWork { seqs, prefill, ..StepWork::default() }
    }

    #[test]
    fn a_step_costs_its_base_its_batch_and_its_prompt_tokens() {
        let cost = CostModel::default();
        assert_eq!(cost.step(&work(0, 0)), Gap::from_millis(10));
        assert_eq!(cost.step(&work(1, 0)), Gap::from_nanos(10_100_000));
        assert_eq!(cost.step(&work(64, 0)), Gap::from_nanos(16_400_000));
        assert_eq!(cost.step(&StepWork::prompt(2_000)), Gap::from_nanos(110_100_000));
    }

    #[test]
    fn attention_costs_the_square_of_the_prompt_whatever_its_chunks() {
        let cost =
            CostModel { prefill_square_ns: 0.5, cached_token_ns: 100.0, kv_token_ns: 2.0, ..CostModel::default() };
        let (mut first, mut second) = (StepWork::default(), StepWork::default());
        first.add_chunk(0, 600);
        second.add_chunk(600, 400);
        assert_eq!(first.prefill_squares + second.prefill_squares, 1_000_000);
        let alone = cost.step(&StepWork::prompt(1_000));
        assert_eq!(alone, Gap::from_nanos(10_100_000 + 50_000_000 + 500_000));
        let more = StepWork { cached: 50, kv_tokens: 1_000, ..work(1, 0) };
        assert_eq!(cost.step(&more), Gap::from_nanos(10_100_000 + 5_000 + 2_000));
    }

    #[test]
    fn beyond_the_knee_a_sequence_has_another_cost() {
        let cost = CostModel { batch_knee: 4, step_per_further_seq: Gap::from_nanos(1_000), ..CostModel::default() };
        assert_eq!(cost.step(&work(4, 0)), Gap::from_nanos(10_400_000));
        assert_eq!(cost.step(&work(64, 0)), Gap::from_nanos(10_460_000));
    }

    #[test]
    fn absurd_numbers_saturate() {
        let cost = CostModel { prefill_per_second: 0, step_base: Gap::from_nanos(u64::MAX), ..CostModel::default() };
        assert_eq!(cost.step(&work(u64::MAX, u64::MAX)), Gap::from_nanos(u64::MAX));
    }
}

//! The cost of a step of the simulated engine.

use crate::measure::time::Gap;

/// Duration of a step. With `s` scheduled sequences that prefill `p` prompt tokens in total, a step takes
///
/// ```text
/// step_base + s * step_per_seq + p / prefill_per_second
/// ```
///
/// The defaults are round numbers close to an 8-billion-parameter model on one data-centre accelerator. They are a
/// model and not a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Prompt tokens per second during prefill.
    pub prefill_per_second: u32,
    /// Fixed cost of a step, because the engine reads the weights once per step.
    pub step_base: Gap,
    /// Additional cost per sequence in the step.
    pub step_per_seq: Gap,
}

impl Default for CostModel {
    fn default() -> Self {
        Self { prefill_per_second: 20_000, step_base: Gap::from_millis(10), step_per_seq: Gap::from_nanos(100_000) }
    }
}

impl CostModel {
    /// Duration of a step with `seqs` sequences and `prefill` prompt tokens in total.
    pub fn step(&self, seqs: u64, prefill: u64) -> Gap {
        let decode = self.step_per_seq.as_nanos().saturating_mul(seqs);
        let prefill = u128::from(prefill) * 1_000_000_000 / u128::from(self.prefill_per_second.max(1));
        let prefill = u64::try_from(prefill).unwrap_or(u64::MAX);
        Gap::from_nanos(self.step_base.as_nanos().saturating_add(decode).saturating_add(prefill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_its_base_its_batch_and_its_prompt_tokens() {
        let cost = CostModel::default();
        assert_eq!(cost.step(0, 0), Gap::from_millis(10));
        assert_eq!(cost.step(1, 0), Gap::from_nanos(10_100_000));
        assert_eq!(cost.step(64, 0), Gap::from_nanos(16_400_000));
        assert_eq!(cost.step(1, 2_000), Gap::from_nanos(110_100_000));
    }

    #[test]
    fn absurd_numbers_saturate() {
        let cost = CostModel { prefill_per_second: 0, step_base: Gap::from_nanos(u64::MAX), ..CostModel::default() };
        assert_eq!(cost.step(u64::MAX, u64::MAX), Gap::from_nanos(u64::MAX));
    }
}

//! Options of the engine.

use thiserror::Error;

use super::cost::CostModel;
use crate::measure::time::Gap;

/// Tokens in one KV-cache block, vLLM's usual size.
pub const BLOCK_TOKENS: u32 = 16;

/// How prompts share steps with decoding sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillMode {
    /// A step takes every decoding sequence first, and prompt tokens up to the token budget: chunked prefill.
    #[default]
    Chunked,
    /// A step computes whole prompts only, and decoding waits until no prompt can be computed.
    First,
}

/// All options of the engine. The defaults are those of `streamgauge sim`.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Cost of a step.
    pub cost: CostModel,
    /// How prompts share steps with decoding sequences.
    pub prefill_mode: PrefillMode,
    /// Maximum sequences per step.
    pub max_num_seqs: u32,
    /// Maximum tokens per step, prompt and output together. Longer prefills are split into chunks.
    pub max_batched_tokens: u32,
    /// Maximum waiting sequences; jobs beyond that are refused.
    pub max_waiting: u32,
    /// KV-cache blocks.
    pub kv_blocks: u32,
    /// Tokens per KV-cache block.
    pub block_tokens: u32,
    /// Reuse the blocks of prompts for later requests with an equal prefix.
    pub prefix_cache: bool,
    /// Tokens per sequence and decode step. Above 1 an event has several tokens, as in speculative decoding.
    pub tokens_per_step: u32,
    /// Time between a job's arrival and its place in the queue: network, tokenizer and front end.
    pub front_end: Gap,
    /// Give every stream this exact interval instead of simulating a batch.
    pub exact_cadence: Option<Gap>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            cost: CostModel::default(),
            prefill_mode: PrefillMode::default(),
            max_num_seqs: 256,
            max_batched_tokens: 2_048,
            max_waiting: 4_096,
            kv_blocks: 16_384,
            block_tokens: BLOCK_TOKENS,
            prefix_cache: true,
            tokens_per_step: 1,
            front_end: Gap::ZERO,
            exact_cadence: None,
        }
    }
}

/// The options contradict each other or are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EngineOptionsError {
    /// A value that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A cost is negative or no number.
    #[error("{0} must be a number of at least 0")]
    InvalidCost(&'static str),
    /// Steps would take no time, and the engine would never yield its thread.
    #[error("a decode step must take at least 1 µs (--step-base)")]
    InstantStep,
    /// The machine cannot sustain a cadence this short, so calibration would be invalid.
    #[error("the exact cadence must be at least 100 µs (--exact-cadence)")]
    CadenceTooFast,
}

impl EngineOptions {
    /// Tokens that fit into the KV cache.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.kv_blocks) * u64::from(self.block_tokens)
    }

    /// Checks whether an engine can run with these options.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check(&self) -> Result<(), EngineOptionsError> {
        for (name, value) in [
            ("prefill_per_second", self.cost.prefill_per_second),
            ("max_num_seqs", self.max_num_seqs),
            ("max_batched_tokens", self.max_batched_tokens),
            ("kv_blocks", self.kv_blocks),
            ("block_tokens", self.block_tokens),
            ("tokens_per_step", self.tokens_per_step),
        ] {
            if value == 0 {
                return Err(EngineOptionsError::Zero(name));
            }
        }
        for (name, value) in [
            ("prefill_square_ns", self.cost.prefill_square_ns),
            ("cached_token_ns", self.cost.cached_token_ns),
            ("kv_token_ns", self.cost.kv_token_ns),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(EngineOptionsError::InvalidCost(name));
            }
        }
        if self.cost.step_base < Gap::from_nanos(1_000) {
            return Err(EngineOptionsError::InstantStep);
        }
        if self.exact_cadence.is_some_and(|cadence| cadence < Gap::from_nanos(100_000)) {
            return Err(EngineOptionsError::CadenceTooFast);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert_eq!(EngineOptions::default().check(), Ok(()));
        let zero = EngineOptions { max_num_seqs: 0, ..EngineOptions::default() };
        assert_eq!(zero.check(), Err(EngineOptionsError::Zero("max_num_seqs")));
        let cost = CostModel { kv_token_ns: f64::NAN, ..CostModel::default() };
        let odd = EngineOptions { cost, ..EngineOptions::default() };
        assert_eq!(odd.check(), Err(EngineOptionsError::InvalidCost("kv_token_ns")));
        let fast = EngineOptions { exact_cadence: Some(Gap::from_nanos(1)), ..EngineOptions::default() };
        assert_eq!(fast.check(), Err(EngineOptionsError::CadenceTooFast));
    }
}

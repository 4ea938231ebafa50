//! What the simulated server may believe.

use thiserror::Error;

use super::cost::CostModel;
use crate::measure::time::Gap;

/// Tokens in one KV-cache block, vLLM's usual size.
pub(crate) const BLOCK_TOKENS: u32 = 16;

/// The most choices that one request may ask for, over all its prompts.
pub(crate) const MAX_CHOICES: u32 = 128;

/// Everything that can be set about the simulated server. The defaults are those of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// The names under which the one model is served, as vLLM's `--served-model-name`; but a reply carries the name that
    /// was asked for. The first is the one on `/metrics` and of requests that name none.
    pub models: Vec<String>,
    /// Decides text and output lengths where the request brings no seed of its own.
    pub seed: u64,
    /// What a step costs.
    pub cost: CostModel,
    /// Most sequences in one step.
    pub max_num_seqs: u32,
    /// Most tokens in one step, prompt and output together: longer prefills are cut into chunks.
    pub max_batched_tokens: u32,
    /// Most sequences that wait for a slot; what comes on top is refused with 503.
    pub max_waiting: u32,
    /// Most tokens of one sequence, prompt and output together.
    pub max_model_len: u32,
    /// KV-cache blocks of 16 tokens.
    pub kv_blocks: u32,
    /// Keep the blocks of prompts for later requests that start alike.
    pub prefix_cache: bool,
    /// Tokens that one decode step gives each sequence; above 1 an event carries several, as with speculative decoding.
    pub tokens_per_step: u32,
    /// Tokens between two events of a stream; a request may ask for more, never for less.
    pub stream_interval: u32,
    /// Mean of the (geometric) length at which a sequence stops by itself, in tokens.
    pub mean_output_tokens: u32,
    /// Keep every stream to this beat instead of simulating a batch.
    pub exact_cadence: Option<Gap>,
    /// Put vLLM's `metrics` object on the usage chunk.
    pub per_request_metrics: bool,
    /// Close a kept-alive connection after this long without a request.
    pub idle_timeout: Gap,
    /// Close the connection after every streamed reply without having said so, as llama-server does.
    pub hangup_after_stream: bool,
    /// Largest request body, in bytes.
    pub max_body: usize,
    /// Most open connections; further ones wait to be accepted.
    pub max_connections: usize,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            models: vec!["sim".to_owned()],
            seed: 0,
            cost: CostModel::default(),
            max_num_seqs: 256,
            max_batched_tokens: 2_048,
            max_waiting: 4_096,
            max_model_len: 131_072,
            kv_blocks: 16_384,
            prefix_cache: true,
            tokens_per_step: 1,
            stream_interval: 1,
            mean_output_tokens: 200,
            exact_cadence: None,
            per_request_metrics: false,
            idle_timeout: Gap::from_millis(5_000),
            hangup_after_stream: false,
            max_body: 64 << 20,
            max_connections: 16_384,
        }
    }
}

/// Options that no server can be built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SimOptionsError {
    /// A bound that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A step would take no time at all and the engine would never let go of its thread.
    #[error("a decode step must take at least 1 µs (--step-base)")]
    InstantStep,
    /// Calibration needs a beat that the machine can hold.
    #[error("the exact cadence must be at least 100 µs (--exact-cadence)")]
    CadenceTooFast,
    /// A longest sequence has to fit into the KV cache alone, or it could wait for ever.
    #[error(
        "a sequence of --max-model-len tokens does not fit into the KV cache: \
         lower that to {fits}, or give the cache {needs} blocks (--kv-blocks)"
    )]
    ModelLongerThanCache {
        /// The longest sequence that does fit, in tokens.
        fits: u64,
        /// The blocks that would be enough.
        needs: u32,
    },
}

impl SimOptions {
    /// Whether a server can be built from this.
    ///
    /// # Errors
    /// The first thing that stands in the way.
    pub fn check(&self) -> Result<(), SimOptionsError> {
        for (name, value) in [
            ("prefill_per_second", self.cost.prefill_per_second),
            ("max_num_seqs", self.max_num_seqs),
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("tokens_per_step", self.tokens_per_step),
            ("stream_interval", self.stream_interval),
            ("mean_output_tokens", self.mean_output_tokens),
        ] {
            if value == 0 {
                return Err(SimOptionsError::Zero(name));
            }
        }
        if self.max_connections == 0 {
            return Err(SimOptionsError::Zero("max_connections"));
        }
        if self.models.is_empty() {
            return Err(SimOptionsError::Zero("the number of models"));
        }
        if self.cost.step_base < Gap::from_nanos(1_000) {
            return Err(SimOptionsError::InstantStep);
        }
        if self.exact_cadence.is_some_and(|cadence| cadence < Gap::from_nanos(100_000)) {
            return Err(SimOptionsError::CadenceTooFast);
        }
        let needs = self.max_model_len.div_ceil(BLOCK_TOKENS);
        if needs > self.kv_blocks {
            let fits = u64::from(self.kv_blocks) * u64::from(BLOCK_TOKENS);
            return Err(SimOptionsError::ModelLongerThanCache { fits, needs });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_a_server() {
        assert_eq!(SimOptions::default().check(), Ok(()));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let zero = SimOptions { max_num_seqs: 0, ..SimOptions::default() };
        assert_eq!(zero.check(), Err(SimOptionsError::Zero("max_num_seqs")));
        let small = SimOptions { kv_blocks: 10, max_model_len: 161, ..SimOptions::default() };
        assert_eq!(small.check(), Err(SimOptionsError::ModelLongerThanCache { fits: 160, needs: 11 }));
        let fast = SimOptions { exact_cadence: Some(Gap::from_nanos(1)), ..SimOptions::default() };
        assert_eq!(fast.check(), Err(SimOptionsError::CadenceTooFast));
    }
}

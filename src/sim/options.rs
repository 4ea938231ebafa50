//! Options of the simulated server.

use thiserror::Error;

use super::cost::CostModel;
use crate::measure::time::Gap;

/// Tokens in one KV-cache block, vLLM's usual size.
pub(crate) const BLOCK_TOKENS: u32 = 16;

/// Maximum choices per request, over all its prompts.
pub(crate) const MAX_CHOICES: u32 = 128;

/// All options of the simulated server. The defaults are those of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Names of the single model, as in vLLM's `--served-model-name`. A reply has the name that its request used. The
    /// first name appears on `/metrics` and in replies to requests without a model.
    pub models: Vec<String>,
    /// Determines text and output lengths of requests without their own seed.
    pub seed: u64,
    /// Cost of a step.
    pub cost: CostModel,
    /// Maximum sequences per step.
    pub max_num_seqs: u32,
    /// Maximum tokens per step, prompt and output together. Longer prefills are split into chunks.
    pub max_batched_tokens: u32,
    /// Maximum waiting sequences; requests beyond that are rejected with 503.
    pub max_waiting: u32,
    /// Maximum tokens per sequence, prompt and output together.
    pub max_model_len: u32,
    /// KV-cache blocks of 16 tokens.
    pub kv_blocks: u32,
    /// Reuse the blocks of prompts for later requests with an equal prefix.
    pub prefix_cache: bool,
    /// Tokens per sequence and decode step. Above 1 an event has several tokens, as in speculative decoding.
    pub tokens_per_step: u32,
    /// Tokens between two events of a stream; a request may set a larger value, but not a smaller one.
    pub stream_interval: u32,
    /// Mean of the geometric distribution of output lengths, in tokens.
    pub mean_output_tokens: u32,
    /// Give every stream this exact interval instead of simulating a batch.
    pub exact_cadence: Option<Gap>,
    /// Include vLLM's `metrics` object in the usage chunk.
    pub per_request_metrics: bool,
    /// Close an idle keep-alive connection after this time.
    pub idle_timeout: Gap,
    /// Close the connection unannounced after every streamed reply, as llama-server does.
    pub hangup_after_stream: bool,
    /// Largest request body, in bytes.
    pub max_body: usize,
    /// Maximum open connections; further ones wait for accept.
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

/// The options contradict each other or are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SimOptionsError {
    /// A value that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// Steps would take no time, and the engine would never yield its thread.
    #[error("a decode step must take at least 1 µs (--step-base)")]
    InstantStep,
    /// The machine cannot sustain a cadence this short, so calibration would be invalid.
    #[error("the exact cadence must be at least 100 µs (--exact-cadence)")]
    CadenceTooFast,
    /// A sequence of maximum length must fit into the KV cache alone, or it could wait forever.
    #[error(
        "a sequence of --max-model-len tokens does not fit into the KV cache: \
         lower that to {fits}, or give the cache {needs} blocks (--kv-blocks)"
    )]
    ModelLongerThanCache {
        /// The longest sequence that fits, in tokens.
        fits: u64,
        /// The number of blocks that would suffice.
        needs: u32,
    },
}

impl SimOptions {
    /// Checks whether a server can run with these options.
    ///
    /// # Errors
    /// The first violation found.
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

//! Options of the simulated server.

use thiserror::Error;

use crate::engine::{EngineOptions, EngineOptionsError};
use crate::measure::time::Gap;

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
    /// The engine behind the server. The server rejects jobs that it refuses with 503.
    pub engine: EngineOptions,
    /// Maximum tokens per sequence, prompt and output together.
    pub max_model_len: u32,
    /// Tokens between two events of a stream; a request may set a larger value, but not a smaller one.
    pub stream_interval: u32,
    /// Mean of the geometric distribution of output lengths, in tokens.
    pub mean_output_tokens: u32,
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
            engine: EngineOptions::default(),
            max_model_len: 131_072,
            stream_interval: 1,
            mean_output_tokens: 200,
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
    /// The engine cannot run.
    #[error(transparent)]
    Engine(#[from] EngineOptionsError),
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
            ("max_model_len", self.max_model_len),
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
        self.engine.check()?;
        let (blocks, block_tokens) = (self.engine.kv_blocks, self.engine.block_tokens);
        let needs = self.max_model_len.div_ceil(block_tokens);
        if needs > blocks {
            let fits = self.engine.kv_tokens();
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
        let engine = EngineOptions { max_num_seqs: 0, ..EngineOptions::default() };
        let zero = SimOptions { engine, ..SimOptions::default() };
        assert_eq!(zero.check(), Err(SimOptionsError::Engine(EngineOptionsError::Zero("max_num_seqs"))));
        let engine = EngineOptions { kv_blocks: 10, ..EngineOptions::default() };
        let small = SimOptions { engine, max_model_len: 161, ..SimOptions::default() };
        assert_eq!(small.check(), Err(SimOptionsError::ModelLongerThanCache { fits: 160, needs: 11 }));
    }
}

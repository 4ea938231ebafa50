//! The parameters of a twin's engine, and what a fit knows of each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::{EngineOptions, PrefillMode};
use crate::measure::time::Gap;

/// An estimated parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterEstimate {
    /// The value; absent if the data does not determine it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Lower end of the values that the data allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end of the values that the data allows; absent if any larger value fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// The value that a simulation uses for a parameter that the data does not determine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assumed: Option<f64>,
}

impl ParameterEstimate {
    /// A determined value.
    pub fn value(value: f64) -> Self {
        Self { value: Some(value), ..Self::default() }
    }

    /// A determined value and its interval.
    pub(super) fn between(low: f64, value: f64, high: f64) -> Self {
        Self { value: Some(value), low: Some(low), high: Some(high), assumed: None }
    }

    /// A range without a value; a simulation uses `assumed`.
    pub fn range(low: Option<f64>, high: Option<f64>, assumed: f64) -> Self {
        Self { value: None, low, high, assumed: Some(assumed) }
    }

    /// The estimate with no value below `least` or above `most`.
    pub(super) fn within(self, (least, most): (f64, f64)) -> Self {
        let limited = |value: Option<f64>| value.map(|value| value.clamp(least, most));
        let Self { value, low, high, assumed } = self;
        Self { value: limited(value), low: limited(low), high: limited(high), assumed: limited(assumed) }
    }

    /// The value that a simulation uses.
    pub fn used(&self) -> Option<f64> {
        self.value.or(self.assumed).or(self.low)
    }
}

/// A parameter of an engine. Names are those of the flags of `streamgauge sim`, with the unit where a flag has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Parameter {
    /// Delay before the scheduler, in nanoseconds: network, tokenizer and front end.
    FrontEnd,
    /// Fixed cost of a step, in nanoseconds.
    StepBase,
    /// Cost of each sequence of a step, in nanoseconds.
    StepPerSeq,
    /// Sequences of a step that cost `step-per-seq`.
    BatchKnee,
    /// Cost of each sequence beyond `batch-knee`, in nanoseconds.
    StepPerFurtherSeq,
    /// Cost of each context token of a decoding sequence, in nanoseconds.
    KvToken,
    /// Prompt tokens per second.
    PrefillRate,
    /// Cost of the square of a prompt's length, in nanoseconds.
    PrefillSquare,
    /// Cost of each prompt token found in the cache, in nanoseconds.
    CachedToken,
    /// Maximum sequences per step.
    MaxNumSeqs,
    /// Maximum tokens per step.
    MaxBatchedTokens,
    /// KV-cache blocks.
    KvBlocks,
    /// Tokens per KV-cache block.
    BlockSize,
    /// Tokens per sequence and decode step.
    TokensPerStep,
    /// 1 if whole prompts are computed before any decoding, 0 for chunked prefill.
    PrefillFirst,
    /// 1 if prompts share cached prefixes, 0 if not.
    PrefixCache,
}

impl Parameter {
    /// All parameters, in the order of the file.
    pub const ALL: [Self; 16] = [
        Self::FrontEnd,
        Self::StepBase,
        Self::StepPerSeq,
        Self::BatchKnee,
        Self::StepPerFurtherSeq,
        Self::KvToken,
        Self::PrefillRate,
        Self::PrefillSquare,
        Self::CachedToken,
        Self::MaxNumSeqs,
        Self::MaxBatchedTokens,
        Self::KvBlocks,
        Self::BlockSize,
        Self::TokensPerStep,
        Self::PrefillFirst,
        Self::PrefixCache,
    ];

    /// Name in `--set`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FrontEnd => "front-end",
            Self::StepBase => "step-base",
            Self::StepPerSeq => "step-per-seq",
            Self::BatchKnee => "batch-knee",
            Self::StepPerFurtherSeq => "step-per-further-seq",
            Self::KvToken => "kv-token",
            Self::PrefillRate => "prefill-rate",
            Self::PrefillSquare => "prefill-square",
            Self::CachedToken => "cached-token",
            Self::MaxNumSeqs => "max-num-seqs",
            Self::MaxBatchedTokens => "max-batched-tokens",
            Self::KvBlocks => "kv-blocks",
            Self::BlockSize => "block-size",
            Self::TokensPerStep => "tokens-per-step",
            Self::PrefillFirst => "prefill-first",
            Self::PrefixCache => "prefix-cache",
        }
    }

    /// Unit of the value.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::FrontEnd | Self::StepBase | Self::StepPerSeq | Self::StepPerFurtherSeq => "ns",
            Self::KvToken | Self::CachedToken => "ns/token",
            Self::PrefillSquare => "ns/token²",
            Self::PrefillRate => "tokens/s",
            Self::BatchKnee | Self::MaxNumSeqs => "sequences",
            Self::MaxBatchedTokens | Self::BlockSize | Self::TokensPerStep => "tokens",
            Self::KvBlocks => "blocks",
            Self::PrefillFirst | Self::PrefixCache => "0 or 1",
        }
    }

    /// The parameter of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|parameter| parameter.name() == name)
    }

    /// Smallest and largest value.
    pub(super) const fn limits(self) -> (f64, f64) {
        let most = u32::MAX as f64;
        match self {
            Self::StepBase => (1_000.0, 1e12),
            Self::FrontEnd
            | Self::StepPerSeq
            | Self::StepPerFurtherSeq
            | Self::KvToken
            | Self::PrefillSquare
            | Self::CachedToken => (0.0, 1e12),
            Self::PrefillFirst | Self::PrefixCache => (0.0, 1.0),
            _ => (1.0, most),
        }
    }

    /// Sets the value in the options of an engine.
    ///
    /// # Errors
    /// The value is out of range.
    pub fn apply(self, value: f64, options: &mut EngineOptions) -> Result<(), String> {
        let (least, most) = self.limits();
        if !(least..=most).contains(&value) {
            return Err(format!("{}: {value} is not between {least} and {most} ({})", self.name(), self.unit()));
        }
        let cost = &mut options.cost;
        let time = Gap::from_nanos(value.round() as u64);
        let count = value.round() as u32;
        match self {
            Self::FrontEnd => options.front_end = time,
            Self::StepBase => cost.step_base = time,
            Self::StepPerSeq => cost.step_per_seq = time,
            Self::BatchKnee => cost.batch_knee = count,
            Self::StepPerFurtherSeq => cost.step_per_further_seq = time,
            Self::KvToken => cost.kv_token_ns = value,
            Self::PrefillRate => cost.prefill_per_second = count,
            Self::PrefillSquare => cost.prefill_square_ns = value,
            Self::CachedToken => cost.cached_token_ns = value,
            Self::MaxNumSeqs => options.max_num_seqs = count,
            Self::MaxBatchedTokens => options.max_batched_tokens = count,
            Self::KvBlocks => options.kv_blocks = count,
            Self::BlockSize => options.block_tokens = count,
            Self::TokensPerStep => options.tokens_per_step = count,
            Self::PrefillFirst => {
                options.prefill_mode = if value >= 0.5 { PrefillMode::First } else { PrefillMode::Chunked };
            }
            Self::PrefixCache => options.prefix_cache = value >= 0.5,
        }
        Ok(())
    }

    /// The value in the options of an engine.
    pub fn read(self, options: &EngineOptions) -> f64 {
        let cost = &options.cost;
        let time = |time: Gap| time.as_nanos() as f64;
        match self {
            Self::FrontEnd => time(options.front_end),
            Self::StepBase => time(cost.step_base),
            Self::StepPerSeq => time(cost.step_per_seq),
            Self::BatchKnee => cost.batch_knee.into(),
            Self::StepPerFurtherSeq => time(cost.step_per_further_seq),
            Self::KvToken => cost.kv_token_ns,
            Self::PrefillRate => cost.prefill_per_second.into(),
            Self::PrefillSquare => cost.prefill_square_ns,
            Self::CachedToken => cost.cached_token_ns,
            Self::MaxNumSeqs => options.max_num_seqs.into(),
            Self::MaxBatchedTokens => options.max_batched_tokens.into(),
            Self::KvBlocks => options.kv_blocks.into(),
            Self::BlockSize => options.block_tokens.into(),
            Self::TokensPerStep => options.tokens_per_step.into(),
            Self::PrefillFirst => u8::from(options.prefill_mode == PrefillMode::First).into(),
            Self::PrefixCache => u8::from(options.prefix_cache).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_reads_back_what_it_sets() {
        for parameter in Parameter::ALL {
            let mut options = EngineOptions::default();
            let value = if parameter.unit() == "0 or 1" { 1.0 } else { 4_321.0 };
            parameter.apply(value, &mut options).unwrap();
            assert_eq!(parameter.read(&options), value, "{}", parameter.name());
            assert_eq!(Parameter::named(parameter.name()), Some(parameter));
            let key = serde_json::to_value(parameter).unwrap();
            assert_eq!(key, parameter.name().replace('-', "_"), "the name in the file");
            assert!(parameter.apply(-1.0, &mut options).is_err() && parameter.apply(f64::NAN, &mut options).is_err());
        }
    }
}

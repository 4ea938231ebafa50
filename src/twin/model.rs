//! The file of a twin: `twin.json`.
//!
//! An engine has [`Parameter`]s, each an [`Estimate`]. A parameter that is absent has the default of `streamgauge sim`,
//! so that a twin can be written by hand with a few lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::{EngineOptions, PrefillMode};
use crate::measure::time::Gap;

/// The version that is written. All older versions are readable.
pub const VERSION: u32 = 1;

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A fitted twin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TwinModel {
    /// Version of this format.
    pub streamgauge_twin: u32,
    /// Version of Streamgauge that wrote it.
    #[serde(default)]
    pub version: String,
    /// What it was fitted to.
    #[serde(default)]
    pub sources: Vec<TwinSource>,
    /// The engines: one per upstream and model.
    pub engines: Vec<TwinEngine>,
}

/// A source of the fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TwinSource {
    /// Path as given on the command line.
    pub path: String,
    /// Number of rows.
    pub rows: u64,
}

/// One fitted engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TwinEngine {
    /// Host and port of its server; absent if rows name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Model that it serves; absent for any model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its parameters.
    #[serde(default)]
    #[schemars(transform = list_parameters)]
    pub parameters: BTreeMap<Parameter, Estimate>,
    /// The part of the load that the fit has seen; outside of it the twin extrapolates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<FittedLoad>,
    /// Error of the fit on rows that it has not seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_out: Vec<HeldOutError>,
}

/// Lists the names of the parameters, with their units.
fn list_parameters(schema: &mut schemars::Schema) {
    let estimate = |parameter: Parameter| {
        let name = parameter.name().replace('-', "_");
        (name, serde_json::json!({ "$ref": "#/$defs/Estimate", "description": format!("In {}.", parameter.unit()) }))
    };
    let properties: serde_json::Map<String, serde_json::Value> = Parameter::ALL.into_iter().map(estimate).collect();
    schema.insert("properties".to_owned(), properties.into());
    schema.insert("additionalProperties".to_owned(), false.into());
}

/// Load that a fit has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FittedLoad {
    /// Requests that the fit used.
    pub requests: u64,
    /// Mean requests per second.
    pub rate: f64,
    /// Maximum requests in flight.
    pub max_in_flight: u32,
    /// Maximum prompt tokens.
    pub max_prompt_tokens: u64,
    /// Maximum prompt and output tokens of one request.
    pub max_context_tokens: u64,
}

/// Error of one figure on held-out rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldOutError {
    /// Name of the figure, such as `ttft.p99`, in seconds, or `goodput`, as a share.
    pub figure: String,
    /// Its value in the held-out rows.
    pub measured: f64,
    /// Its value in the simulation of the same arrivals.
    pub predicted: f64,
}

impl HeldOutError {
    /// Relative error, signed: 0.1 predicts ten percent too much.
    pub fn relative(&self) -> f64 {
        if self.measured == 0.0 {
            f64::from(u8::from(self.predicted != 0.0))
        } else {
            self.predicted / self.measured - 1.0
        }
    }
}

/// An estimated parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
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

impl Estimate {
    /// A determined value.
    pub fn value(value: f64) -> Self {
        Self { value: Some(value), ..Self::default() }
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
    pub const ALL: [Self; 14] = [
        Self::FrontEnd,
        Self::StepBase,
        Self::StepPerSeq,
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
            Self::FrontEnd | Self::StepBase | Self::StepPerSeq => "ns",
            Self::KvToken | Self::CachedToken => "ns/token",
            Self::PrefillSquare => "ns/token²",
            Self::PrefillRate => "tokens/s",
            Self::MaxNumSeqs => "sequences",
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
            Self::FrontEnd | Self::StepPerSeq | Self::KvToken | Self::PrefillSquare | Self::CachedToken => (0.0, 1e12),
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

/// Why a twin cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}; remedy: {remedy}", path.display())]
pub struct TwinModelError {
    path: PathBuf,
    problem: String,
    remedy: &'static str,
}

impl TwinModel {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or holds no valid twin.
    pub fn read(path: &Path) -> Result<Self, TwinModelError> {
        let error = |problem: String, remedy| TwinModelError { path: path.to_owned(), problem, remedy };
        let size =
            fs::metadata(path).map_err(|e| error(e.to_string(), "name a file of `streamgauge twin fit -o`"))?.len();
        if size > MAX_FILE_BYTES {
            return Err(error(format!("{size} bytes are no twin"), "name a file of `streamgauge twin fit -o`"));
        }
        let bytes = fs::read(path).map_err(|e| error(e.to_string(), "name a file of `streamgauge twin fit -o`"))?;
        let told: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|e| error(e.to_string(), "write the file as JSON"))?;
        match told["streamgauge_twin"].as_u64() {
            Some(version) if version > u64::from(VERSION) => {
                return Err(error(format!("its version {version} is newer than {VERSION}"), "use a newer Streamgauge"));
            }
            Some(_) => {}
            None => {
                return Err(error(
                    "streamgauge_twin is missing".to_owned(),
                    "name a file of `streamgauge twin fit -o`",
                ));
            }
        }
        // From the bytes, so that an error has its line and column.
        let model: Self = serde_json::from_slice(&bytes)
            .map_err(|e| error(e.to_string(), "see `streamgauge twin schema`, and correct this place"))?;
        if model.engines.is_empty() {
            return Err(error("engines is empty".to_owned(), "fit the twin to rows with streamed responses"));
        }
        for (at, engine) in model.engines.iter().enumerate() {
            engine
                .options()
                .map_err(|problem| error(format!("engines[{at}].parameters: {problem}"), "correct this parameter"))?;
        }
        Ok(model)
    }

    /// JSON Schema of the file.
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}

impl TwinEngine {
    /// Options of the engine. The queue has no limit: a twin refuses by the admission limit of its fleet.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn options(&self) -> Result<EngineOptions, String> {
        let mut options = EngineOptions { max_waiting: u32::MAX, ..EngineOptions::default() };
        for (parameter, estimate) in &self.parameters {
            if let Some(value) = estimate.used() {
                parameter.apply(value, &mut options)?;
            }
        }
        options.check().map_err(|error| error.to_string())?;
        Ok(options)
    }

    /// Name for people.
    pub fn label(&self) -> String {
        match (&self.model, &self.upstream) {
            (Some(model), Some(upstream)) => format!("{model} at {upstream}"),
            (Some(one), None) | (None, Some(one)) => one.clone(),
            (None, None) => "engine".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TwinModel, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("twin.json");
        fs::write(&path, text).unwrap();
        TwinModel::read(&path).map_err(|error| error.to_string().replace(&path.display().to_string(), "twin.json"))
    }

    #[test]
    fn a_twin_by_hand_has_the_defaults_of_the_simulated_server() {
        let twin = read(
            r#"{"streamgauge_twin": 1, "engines": [{"model": "m", "parameters": {"step_base": {"value": 2e7},
               "max_num_seqs": {"low": 8, "assumed": 64}, "prefill_first": {"value": 1}}}]}"#,
        );
        let options = twin.unwrap().engines[0].options().unwrap();
        assert_eq!((options.cost.step_base, options.max_num_seqs), (Gap::from_millis(20), 64));
        assert_eq!(options.prefill_mode, PrefillMode::First);
        assert_eq!(options.kv_blocks, EngineOptions::default().kv_blocks);
    }

    #[test]
    fn an_error_names_the_file_the_place_and_the_remedy() {
        let said = |text| read(text).unwrap_err();
        let version = said(r#"{"streamgauge_twin": 2, "engines": []}"#);
        assert_eq!(version, "twin.json: its version 2 is newer than 1; remedy: use a newer Streamgauge");
        let unknown = said("{\"streamgauge_twin\": 1, \"engines\": [{\"parameters\":\n {\"speed\": {}}}]}");
        assert!(unknown.contains("unknown variant `speed`") && unknown.contains("line 2 column 9"), "{unknown}");
        let zero = said(r#"{"streamgauge_twin": 1, "engines": [{"parameters": {"kv_blocks": {"value": 0}}}]}"#);
        assert_eq!(
            zero,
            "twin.json: engines[0].parameters: kv-blocks: 0 is not between 1 and 4294967295 (blocks); remedy: correct this parameter"
        );
        assert!(said(r#"{"streamgauge_twin": 1, "engines": []}"#).contains("engines is empty"));
        assert!(said("[]").contains("streamgauge_twin is missing"));
    }

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

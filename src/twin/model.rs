//! The file of a twin: `twin.json`.
//!
//! An engine has [`Parameter`]s, each an [`ParameterEstimate`]. A parameter that is absent has the default of `streamgauge sim`,
//! so that a twin can be written by hand with a few lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parameter::{Parameter, ParameterEstimate};
use crate::engine::EngineOptions;

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
    pub parameters: BTreeMap<Parameter, ParameterEstimate>,
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
        (
            name,
            serde_json::json!({ "$ref": "#/$defs/ParameterEstimate", "description": format!("In {}.", parameter.unit()) }),
        )
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
    /// Requests per second of the busiest minute.
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
        let document: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|e| error(e.to_string(), "write the file as JSON"))?;
        match document["streamgauge_twin"].as_u64() {
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
    /// Options of the engine. The queue of a twin has the limits of its fleet.
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
    use crate::engine::PrefillMode;
    use crate::measure::time::Gap;

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
        let error_of = |text| read(text).unwrap_err();
        let version = error_of(r#"{"streamgauge_twin": 2, "engines": []}"#);
        assert_eq!(version, "twin.json: its version 2 is newer than 1; remedy: use a newer Streamgauge");
        let unknown = error_of("{\"streamgauge_twin\": 1, \"engines\": [{\"parameters\":\n {\"speed\": {}}}]}");
        assert!(unknown.contains("unknown variant `speed`") && unknown.contains("line 2 column 9"), "{unknown}");
        let zero = error_of(r#"{"streamgauge_twin": 1, "engines": [{"parameters": {"kv_blocks": {"value": 0}}}]}"#);
        assert_eq!(
            zero,
            "twin.json: engines[0].parameters: kv-blocks: 0 is not between 1 and 4294967295 (blocks); remedy: correct this parameter"
        );
        assert!(error_of(r#"{"streamgauge_twin": 1, "engines": []}"#).contains("engines is empty"));
        assert!(error_of("[]").contains("streamgauge_twin is missing"));
    }
}

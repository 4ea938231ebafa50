//! Settings of the aggregation that an operator can change.

use std::sync::Arc;

use crate::export::registry::catalog::{Convention, Instrument};
use crate::measure::dialect::Dialect;
use crate::measure::slo::Slos;

/// Default limit on models with their own series. A server has a handful; each costs about 35 KiB here and 450 series
/// in the backend.
pub const DEFAULT_MAX_MODELS: usize = 100;

/// Default limit on the values of each class with their own series: they multiply the series of each model.
const DEFAULT_MAX_CLASS_VALUES: usize = 20;

/// Settings of the aggregation.
#[derive(Clone, Debug)]
pub struct AggregateSettings {
    /// SLOs whose limits become histogram bounds.
    pub slos: Arc<Slos>,
    /// Maximum number of models with their own series.
    pub max_models: usize,
    /// Maximum number of values of each class with their own series.
    pub max_class_values: usize,
    /// `gen_ai.provider.name`; the default is the owner of the dialect's API.
    pub provider: Option<String>,
    /// Whether to export the metrics of a client: `gen_ai.client.*`, and the usage in spans.
    pub gen_ai_client: bool,
    /// `url.scheme` of the listener.
    pub scheme: &'static str,
    /// Version of the `gen_ai.*` names.
    pub convention: Convention,
}

impl Default for AggregateSettings {
    fn default() -> Self {
        Self {
            slos: Arc::default(),
            max_models: DEFAULT_MAX_MODELS,
            max_class_values: DEFAULT_MAX_CLASS_VALUES,
            provider: None,
            gen_ai_client: true,
            scheme: "http",
            convention: Convention::default(),
        }
    }
}

impl AggregateSettings {
    /// Returns `true` if this instrument is exported.
    pub(in crate::export) fn exports(&self, instrument: &Instrument) -> bool {
        instrument.is_in(self.convention) && (self.gen_ai_client || !instrument.is_of_client())
    }

    /// Returns `gen_ai.provider.name` for a dialect, using the conventions' value where one exists.
    pub(in crate::export) fn provider_of(&self, dialect: &'static Dialect) -> &str {
        let whose = || {
            let whose = dialect.name.bytes().position(|byte| byte == b'.').unwrap_or(dialect.name.len());
            match &dialect.name[..whose] {
                "bedrock" => "aws.bedrock",
                "gemini" => "gcp.gemini",
                whose => whose,
            }
        };
        self.provider.as_deref().unwrap_or_else(whose)
    }
}

//! How records are counted: what an operator may say of it.

use std::sync::Arc;

use crate::export::catalog::Convention;
use crate::measure::dialect::Dialect;
use crate::measure::slo::Slos;

/// Models that have series of their own unless configured otherwise: a server has a handful, and each costs some
/// 30 KiB here and 400 series at the backend.
pub const DEFAULT_MAX_MODELS: usize = 100;

/// How to count.
#[derive(Clone, Debug)]
pub struct AggregateSettings {
    /// The objectives whose limits become bounds of histograms.
    pub slos: Arc<Slos>,
    /// Most models with series of their own.
    pub max_models: usize,
    /// `gen_ai.provider.name`; by default whose API the dialect is.
    pub provider: Option<String>,
    /// `url.scheme` of the listener.
    pub scheme: &'static str,
    /// The set of `gen_ai.*` names.
    pub convention: Convention,
}

impl Default for AggregateSettings {
    fn default() -> Self {
        Self {
            slos: Arc::default(),
            max_models: DEFAULT_MAX_MODELS,
            provider: None,
            scheme: "http",
            convention: Convention::default(),
        }
    }
}

impl AggregateSettings {
    /// `gen_ai.provider.name` for a dialect, in the conventions' word where they have one.
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

//! The shape of one request, which its dialect fills in.

use std::borrow::Cow;
use std::sync::Arc;

use super::{AmbiguousPath, Dialect};
use crate::measure::request_class::ClassValues;
use crate::measure::slo::RequestSlo;

/// The shape of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestShape {
    /// Dialect of the path; `None` for plain HTTP.
    pub dialect: Option<&'static Dialect>,
    /// The shared path, until the body or the reply identifies the dialect.
    pub shared: Option<&'static AmbiguousPath>,
    /// Path of a health probe; `None` for other requests.
    pub probe: Option<&'static str>,
    /// HTTP method.
    pub method: Cow<'static, str>,
    /// Requested model, cut at 256 bytes.
    pub model: Option<Arc<str>>,
    /// Whether the client asked for a stream; `None` if the request does not specify it.
    pub stream: Option<bool>,
    /// Limit on generated tokens.
    pub max_tokens: Option<u64>,
    /// Requested number of choices.
    pub choices: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling mass.
    pub top_p: Option<f64>,
    /// Frequency penalty.
    pub frequency_penalty: Option<f64>,
    /// Presence penalty.
    pub presence_penalty: Option<f64>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Number of candidates of a token.
    pub top_k: Option<u64>,
    /// How much to reason; `None` also for a word that no server defines.
    pub reasoning_level: Option<&'static str>,
    /// Form of the output that the request asks for: `text` or `json`.
    pub output_type: Option<&'static str>,
    /// True if the client asked for the final usage report.
    pub include_usage: bool,
    /// True if the client asked for usage on every event, which makes it a running counter.
    pub continuous_usage: bool,
    /// True if the answer begins with the prompt.
    pub echo: bool,
    /// Configured host and port of the server.
    pub server: Option<(Arc<str>, u16)>,
    /// Values of the configured classes.
    pub classes: ClassValues,
    /// Limits that the request sets for itself; empty unless an SLO uses them.
    pub slo: RequestSlo,
}

impl RequestShape {
    /// True if the method can request generation. Other methods list, probe and replay.
    pub(in crate::measure) fn may_generate(&self) -> bool {
        matches!(&*self.method, "POST" | "PUT" | "")
    }

    /// Route label of the request: the dialect's route or a health probe's path; empty for other plain HTTP. Never an
    /// arbitrary path, because it may contain ids.
    pub fn route(&self) -> &'static str {
        self.dialect.map_or_else(|| self.probe.unwrap_or_default(), |dialect| dialect.route)
    }
}

//! What the fields of a request's JSON body tell.

use crate::measure::json_scanner::Scalar;
use crate::measure::shape::RequestShape;
use crate::measure::string_cache::shared;

/// What one field tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// The model. A model in the path goes before it: that is what the server looks at.
    Model,
    /// Whether to stream.
    Stream,
    /// Limit on generated tokens.
    MaxTokens,
    /// The same by another name, which counts where the first is missing.
    MaxTokensElse,
    /// Choices.
    Choices,
    /// Sampling temperature.
    Temperature,
    /// Nucleus sampling mass.
    TopP,
    /// Penalty on tokens by how often they came before.
    FrequencyPenalty,
    /// Penalty on tokens that came before.
    PresencePenalty,
    /// Sampling seed.
    Seed,
    /// The final usage report.
    IncludeUsage,
    /// Usage on every event.
    ContinuousUsage,
    /// The prompt before the answer.
    Echo,
}

impl RequestField {
    /// Notes the field's value.
    pub(in crate::measure) fn note(self, shape: &mut RequestShape, scalar: Scalar<'_>) {
        match self {
            Self::Model => shape.model = shape.model.take().or_else(|| Some(shared(&scalar.to_text()?))),
            Self::Stream => shape.stream = scalar.as_bool(),
            Self::MaxTokens => shape.max_tokens = scalar.as_u64(),
            Self::MaxTokensElse => shape.max_tokens = shape.max_tokens.or(scalar.as_u64()),
            Self::Choices => shape.choices = scalar.as_u64(),
            Self::Temperature => shape.temperature = scalar.as_f64(),
            Self::TopP => shape.top_p = scalar.as_f64(),
            Self::FrequencyPenalty => shape.frequency_penalty = scalar.as_f64(),
            Self::PresencePenalty => shape.presence_penalty = scalar.as_f64(),
            Self::Seed => shape.seed = scalar.as_u64(),
            Self::IncludeUsage => shape.include_usage = scalar.as_bool() == Some(true),
            Self::Echo => shape.echo = scalar.as_bool() == Some(true),
            Self::ContinuousUsage => shape.continuous_usage = scalar.as_bool() == Some(true),
        }
    }
}

//! Fields of a request's JSON body.

use super::RequestShape;
use crate::measure::json_scanner::Scalar;
use crate::measure::string_cache::shared;

/// Meaning of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// The model. A model in the path takes precedence, because servers use that one.
    Model,
    /// Whether the reply is a stream.
    Stream,
    /// Limit on generated tokens.
    MaxTokens,
    /// Another name for the token limit, used if [`MaxTokens`](Self::MaxTokens) is absent.
    MaxTokensElse,
    /// Number of choices.
    Choices,
    /// Sampling temperature.
    Temperature,
    /// Nucleus sampling mass.
    TopP,
    /// Frequency penalty.
    FrequencyPenalty,
    /// Presence penalty.
    PresencePenalty,
    /// Sampling seed.
    Seed,
    /// Whether the client asks for the final usage report.
    IncludeUsage,
    /// Whether the client asks for usage on every event.
    ContinuousUsage,
    /// Whether the answer begins with the prompt.
    Echo,
}

impl RequestField {
    /// Stores the field's value in `shape`.
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

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
    /// Number of candidates of a token.
    TopK,
    /// How much to reason, as a word.
    ReasoningLevel,
    /// The form of the output.
    OutputType,
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
            Self::TopK => shape.top_k = scalar.as_u64(),
            Self::ReasoningLevel => shape.reasoning_level = scalar.to_text().and_then(|word| reasoning_level(&word)),
            Self::OutputType => shape.output_type = scalar.to_text().and_then(|word| output_type(&word)),
            Self::IncludeUsage => shape.include_usage = scalar.as_bool() == Some(true),
            Self::Echo => shape.echo = scalar.as_bool() == Some(true),
            Self::ContinuousUsage => shape.continuous_usage = scalar.as_bool() == Some(true),
        }
    }
}

/// The levels of reasoning that servers define. No other word is kept: the field could hold text.
const REASONING_LEVELS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

fn reasoning_level(word: &str) -> Option<&'static str> {
    REASONING_LEVELS.into_iter().find(|level| level.eq_ignore_ascii_case(word))
}

/// The conventions' name of a form of output: `text`, or `json` for an object with or without a schema. A grammar or
/// a pattern has no name.
fn output_type(word: &str) -> Option<&'static str> {
    match word {
        "text" | "text/plain" => Some("text"),
        "json" | "json_object" | "json_schema" | "object" | "application/json" => Some("json"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::measure::dialect::Routes;
    use crate::measure::shape::{RequestShape, ShapeReader};

    #[test]
    fn candidates_reasoning_and_form_of_output_are_read_in_every_api_and_no_word_of_a_client_is_kept() {
        for (path, body, expected) in [
            (
                "/v1/chat/completions",
                r#"{"top_k":40,"reasoning_effort":"high","response_format":{"json_schema":{"type":"text"},"type":"json_schema"}}"#,
                (Some(40), Some("high"), Some("json")),
            ),
            (
                "/v1/responses",
                r#"{"reasoning":{"effort":"minimal"},"text":{"format":{"type":"text"}}}"#,
                (None, Some("minimal"), Some("text")),
            ),
            (
                "/v1/messages",
                r#"{"top_k":5,"output_config":{"effort":"max","format":{"type":"json_schema"}}}"#,
                (Some(5), Some("max"), Some("json")),
            ),
            (
                "/v1beta/models/g:generateContent",
                r#"{"generationConfig":{"topK":64,"thinkingConfig":{"thinkingLevel":"HIGH"},"responseMimeType":"application/json"}}"#,
                (Some(64), Some("high"), Some("json")),
            ),
            (
                "/api/chat",
                r#"{"options":{"top_k":20},"think":"low","format":"json"}"#,
                (Some(20), Some("low"), Some("json")),
            ),
            ("/api/chat", r#"{"think":true,"format":{"type":"object"}}"#, (None, None, Some("json"))),
            ("/generate", r#"{"text":"a","sampling_params":{"top_k":7}}"#, (Some(7), None, None)),
            (
                "/v1/chat/completions",
                r#"{"top_k":-1,"reasoning_effort":"my secret","response_format":{"type":"regex"}}"#,
                (None, None, None),
            ),
        ] {
            let mut reader = ShapeReader::new(RequestShape::of("POST", path, &Routes::default()), b"");
            reader.push(body.as_bytes());
            let shape = reader.take();
            assert_eq!((shape.top_k, shape.reasoning_level, shape.output_type), expected, "{path} {body}");
        }
    }
}

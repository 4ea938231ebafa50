//! Gemini's `:streamGenerateContent` and `:generateContent` of Google AI and Vertex; the model is in the path.
//!
//! A part with `thought` is reasoning. Every event has a cumulative `usageMetadata`: its growth is the event's token
//! count, and the last one is the total. A blocked prompt has no candidates. Without `alt=sse` the stream is one JSON
//! array. Errors in an event stream may be bare JSON.

use super::document_reply::sum;
use super::fault::ErrorObject;
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, TokenIncrement, USUAL, count,
    finish_reason, segment_of,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::JsonWalker;
use crate::measure::usage::{FinishReason, Usage};

pub(super) const DIALECT: Dialect = Dialect {
    name: "gemini",
    operation: "generate_content",
    route: "/models/{model}:streamGenerateContent",
    matches: |path| path.ends_with(":streamGenerateContent") || path.ends_with(":generateContent"),
    path: |shape, path| {
        shape.model = segment_of(path, "/models/", ':');
        shape.stream = Some(path.ends_with(":streamGenerateContent"));
    },
    request: REQUEST,
    prompt: &["tools", "systemInstruction", "system_instruction", "contents"],
    stored_keys: &["cachedContent", "cached_content"],
    reader: |_| Box::new(GeminiReader::default()),
    reply: REPLY,
    loose_json: true,
    error_body,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("generationConfig.maxOutputTokens", RequestField::MaxTokens),
    ("generationConfig.candidateCount", RequestField::Choices),
    ("generationConfig.temperature", RequestField::Temperature),
    ("generationConfig.topP", RequestField::TopP),
    ("generationConfig.frequencyPenalty", RequestField::FrequencyPenalty),
    ("generationConfig.presencePenalty", RequestField::PresencePenalty),
    ("generationConfig.seed", RequestField::Seed),
    ("generationConfig.topK", RequestField::TopK),
    ("generationConfig.thinkingConfig.thinkingLevel", RequestField::ReasoningLevel),
    ("generationConfig.responseMimeType", RequestField::OutputType),
    // Protocol Buffers also accept a field's original name.
    ("generation_config.max_output_tokens", RequestField::MaxTokens),
    ("generation_config.candidate_count", RequestField::Choices),
    ("generation_config.temperature", RequestField::Temperature),
    ("generation_config.top_p", RequestField::TopP),
    ("generation_config.frequency_penalty", RequestField::FrequencyPenalty),
    ("generation_config.presence_penalty", RequestField::PresencePenalty),
    ("generation_config.seed", RequestField::Seed),
    ("generation_config.top_k", RequestField::TopK),
    ("generation_config.thinking_config.thinking_level", RequestField::ReasoningLevel),
    ("generation_config.response_mime_type", RequestField::OutputType),
];

/// Candidates per event beyond the first. Real requests stay far below this limit, and each candidate takes memory.
const MAX_CANDIDATES: usize = 128;

const REPLY: &[(&str, ReplyField)] = &[
    ("responseId", ReplyField::Id),
    ("modelVersion", ReplyField::Model),
    ("candidates[].finishReason", ReplyField::Finish),
    ("promptFeedback.blockReason", ReplyField::Finish),
    ("usageMetadata.promptTokenCount", ReplyField::Input),
    ("usageMetadata.cachedContentTokenCount", ReplyField::Cached),
    ("usageMetadata.candidatesTokenCount", ReplyField::Output),
    ("usageMetadata.thoughtsTokenCount", ReplyField::ReasoningBeside),
    ("error.message", ReplyField::Error),
    ("error.status", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
    // For streams sent as a JSON array.
    ("[].error.message", ReplyField::Error),
    ("[].error.status", ReplyField::ErrorKind),
    ("[].error.code", ReplyField::ErrorCode),
];

fn error_body(status: u16, message: &str) -> String {
    let name = match status {
        400..=499 => "INVALID_ARGUMENT",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    };
    serde_json::json!({"error": {"code": status, "message": message, "status": name}}).to_string()
}

#[derive(Default)]
struct GeminiReader {
    generated: u64,
    /// Output has arrived since the last count, so the next count covers several events.
    uncounted: bool,
    identified: bool,
}

#[derive(Default)]
struct GeminiChunk<'a> {
    first: Option<GeminiCandidate<'a>>,
    /// Most events have one candidate; further candidates allocate.
    more: Vec<GeminiCandidate<'a>>,
    usage: Option<Usage>,
    id: Option<&'a str>,
    model: Option<&'a str>,
    blocked: Option<&'a str>,
    fault: Option<ErrorObject<'a>>,
}

#[derive(Default)]
struct GeminiCandidate<'a> {
    index: u32,
    output: Option<OutputKind>,
    finish: Option<&'a str>,
}

impl<'a> GeminiChunk<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut parts = Self::default();
        walk.object(|key, walk| {
            match key {
                b"candidates" => walk.array(|walk| {
                    let candidate = GeminiCandidate::read(walk)?;
                    match &mut parts.first {
                        first @ None => *first = Some(candidate),
                        Some(_) if parts.more.len() < MAX_CANDIDATES => parts.more.push(candidate),
                        Some(_) => {}
                    }
                    Some(())
                })?,
                b"usageMetadata" => parts.usage = Some(usage(walk)?),
                b"responseId" => parts.id = walk.text()?,
                b"modelVersion" => parts.model = walk.text()?,
                b"promptFeedback" => walk.object(|key, walk| {
                    match key {
                        b"blockReason" => parts.blocked = walk.text()?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"error" => parts.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        Some(parts)
    }
}

impl<'a> GeminiCandidate<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut candidate = Self::default();
        walk.object(|key, walk| {
            match key {
                b"index" => {
                    candidate.index = count(walk)?.and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
                }
                b"finishReason" => candidate.finish = walk.text()?,
                b"content" => walk.object(|key, walk| match key {
                    b"parts" => walk.array(|walk| {
                        let shown = part(walk)?;
                        // Output takes precedence over reasoning in an event that has both.
                        if candidate.output.is_none_or(|kind| kind == OutputKind::Reasoning) {
                            candidate.output = shown.or(candidate.output);
                        }
                        Some(())
                    }),
                    _ => walk.skip(),
                })?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        Some(candidate)
    }
}

/// The output kind of one part.
fn part(walk: &mut JsonWalker<'_>) -> Option<Option<OutputKind>> {
    let (mut kind, mut thought) = (None, false);
    walk.object(|key, walk| {
        let shown = match key {
            b"text" => OutputKind::Text,
            b"functionCall" | b"executableCode" => OutputKind::Tool,
            b"inlineData" => OutputKind::Audio,
            b"thought" => {
                thought = walk.raw()? == "true";
                return Some(());
            }
            _ => return walk.skip(),
        };
        if walk.shown()?.is_content() {
            kind = Some(shown);
        }
        Some(())
    })?;
    Some(if thought { kind.map(|_| OutputKind::Reasoning) } else { kind })
}

fn usage(walk: &mut JsonWalker<'_>) -> Option<Usage> {
    let (mut usage, mut candidates) = (Usage::default(), None);
    walk.object(|key, walk| {
        match key {
            b"promptTokenCount" => usage.input = count(walk)?,
            b"cachedContentTokenCount" => usage.cached = count(walk)?,
            b"candidatesTokenCount" => candidates = count(walk)?,
            b"thoughtsTokenCount" => usage.reasoning = count(walk)?,
            _ => walk.skip()?,
        }
        Some(())
    })?;
    usage.output = sum(candidates, usage.reasoning);
    Some(usage)
}

impl GeminiReader {
    fn emit_metadata(&mut self, parts: &GeminiChunk<'_>, sink: &mut dyn DeltaSink) {
        if let Some(id) = parts.id.or(parts.model)
            && !std::mem::replace(&mut self.identified, true)
        {
            if parts.id.is_some() {
                sink.delta(0, Delta::Id(id));
            }
            parts.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
        }
        let total = parts.usage.and_then(|usage| usage.output);
        let uncounted = total.is_none() && parts.first.iter().chain(&parts.more).any(|part| part.output.is_some());
        let mut grown = total.and_then(|total| {
            let before = std::mem::replace(&mut self.generated, total);
            let grown = TokenIncrement::growth(total.saturating_sub(before));
            (!std::mem::take(&mut self.uncounted)).then_some(grown)
        });
        self.uncounted |= uncounted;
        for candidate in parts.first.iter().chain(&parts.more) {
            if let Some(kind) = candidate.output {
                // The count covers all candidates, so it is reported once.
                sink.delta(candidate.index, Delta::Output { kind, tokens: grown.take() });
            }
            if let Some(raw) = candidate.finish
                && let Some(reason) = finish_reason(raw)
            {
                sink.delta(candidate.index, Delta::Finish(reason, raw));
            }
        }
        match grown {
            Some(TokenIncrement { tokens: 1.., .. }) => sink.delta(0, Delta::Evidence { tokens: grown }),
            Some(_) => sink.delta(0, Delta::NoToken),
            None => {}
        }
        if let Some(usage) = parts.usage.filter(super::document_reply::is_report) {
            sink.delta(0, Delta::Usage(usage));
        }
        if let Some(raw) = parts.blocked {
            sink.delta(0, Delta::Finish(FinishReason::Filter, raw));
        }
        if let Some(fault) = parts.fault {
            fault.emit(sink);
        }
    }

    fn read(&mut self, data: &[u8], sink: &mut dyn DeltaSink) -> Option<()> {
        let mut walk = JsonWalker::new(data)?;
        let mut whole = walk.clone();
        whole.skip()?;
        whole.end()?;
        // A bare error may be wrapped in a list.
        if walk.is_array() {
            return walk.array(|walk| GeminiChunk::read(walk).map(|parts| self.emit_metadata(&parts, sink)));
        }
        GeminiChunk::read(&mut walk).map(|parts| self.emit_metadata(&parts, sink))
    }
}

impl DialectReader for GeminiReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        if self.read(event.data, sink).is_none() {
            sink.delta(0, Delta::Malformed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::measure::dialect::Routes;
    use crate::measure::shape::{RequestShape, ShapeReader};

    #[test]
    fn a_config_is_read_by_either_of_its_names() {
        for body in [
            r#"{"generationConfig":{"maxOutputTokens":12,"candidateCount":2,"temperature":0.5,"topP":0.9,"seed":3}}"#,
            r#"{"generation_config":{"max_output_tokens":12,"candidate_count":2,"temperature":0.5,"top_p":0.9,"seed":3}}"#,
        ] {
            let path = "/v1beta/models/m:generateContent";
            let mut reader = ShapeReader::new(RequestShape::of("POST", path, &Routes::default()), b"");
            reader.push(body.as_bytes());
            let shape = reader.take();
            assert_eq!((shape.max_tokens, shape.choices, shape.seed), (Some(12), Some(2), Some(3)), "{body}");
            assert_eq!((shape.temperature, shape.top_p), (Some(0.5), Some(0.9)), "{body}");
        }
    }
}

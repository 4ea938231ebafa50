//! Common parts of Ollama's two dialects: JSON lines, of which the last has `done` and the counts.
//!
//! A line may contain several tokens. If the client requested log probabilities, their number is exact; otherwise
//! only `eval_count` is. The `done` line is not a token unless it has text. An error is a separate line and the last
//! one.

use super::document_reply::is_report;
use super::fault::ErrorObject;
use super::{
    Delta, DeltaSink, DialectReader, OutputKind, ReplyField, RequestField, RequestShape, TokenIncrement, count,
    finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::usage::Usage;

pub(super) const CONTENT_TYPE: &str = "application/x-ndjson";
pub(super) const FINAL_COUNT: &str = "eval_count";

/// Ollama streams by default.
pub(super) fn path(shape: &mut RequestShape, _: &str) {
    shape.stream = Some(true);
}

pub(super) const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("options.num_predict", RequestField::MaxTokens),
    ("options.temperature", RequestField::Temperature),
    ("options.top_p", RequestField::TopP),
    ("options.frequency_penalty", RequestField::FrequencyPenalty),
    ("options.presence_penalty", RequestField::PresencePenalty),
    ("options.seed", RequestField::Seed),
    ("options.top_k", RequestField::TopK),
    ("think", RequestField::ReasoningLevel),
    ("format", RequestField::OutputType),
    // A schema in its place.
    ("format.type", RequestField::OutputType),
];

pub(super) const REPLY: &[(&str, ReplyField)] = &[
    ("model", ReplyField::Model),
    ("done_reason", ReplyField::Finish),
    ("prompt_eval_count", ReplyField::Input),
    ("eval_count", ReplyField::Output),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
];

pub(super) fn error_body(_: u16, message: &str) -> String {
    serde_json::json!({"error": message}).to_string()
}

#[derive(Default)]
pub(super) struct OllamaReader {
    identified: bool,
}

#[derive(Default)]
struct OllamaChunk<'a> {
    model: Option<&'a str>,
    role: bool,
    /// `content` or `response`.
    text: Option<FieldState>,
    thinking: bool,
    tools: bool,
    /// Length of the log-probability list, which has one entry per token.
    logprobs: Option<u32>,
    done: bool,
    reason: Option<&'a str>,
    usage: Usage,
    fault: Option<ErrorObject<'a>>,
}

impl<'a> OllamaChunk<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (mut parts, mut walk) = (Self::default(), JsonWalker::new(data)?);
        walk.object(|key, walk| {
            match key {
                b"model" => parts.model = walk.text()?,
                b"message" if walk.is_object() => walk.object(|key, walk| parts.shown(key, walk))?,
                b"response" | b"thinking" => parts.shown(key, walk)?,
                b"logprobs" if walk.is_array() => parts.logprobs = walk.length()?.filter(|entries| *entries > 0),
                b"done" => parts.done = walk.raw()? == "true",
                b"done_reason" => parts.reason = walk.text()?,
                b"prompt_eval_count" => parts.usage.input = count(walk)?,
                b"eval_count" => parts.usage.output = count(walk)?,
                b"error" => parts.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.end()?;
        Some(parts)
    }

    /// Reads the content fields of a message, or of the line itself in `/api/generate`.
    fn shown(&mut self, key: &[u8], walk: &mut JsonWalker<'a>) -> Option<()> {
        match key {
            b"role" => self.role = walk.shown()? != FieldState::Null,
            b"content" | b"response" => self.text = Some(walk.shown()?).filter(|shown| *shown != FieldState::Null),
            b"thinking" => self.thinking = walk.shown()?.is_content(),
            b"tool_calls" => self.tools = walk.shown()?.is_content(),
            _ => walk.skip()?,
        }
        Some(())
    }

    fn output(&self) -> Option<OutputKind> {
        if self.text.as_ref().is_some_and(FieldState::is_content) {
            Some(OutputKind::Text)
        } else if self.tools {
            Some(OutputKind::Tool)
        } else {
            self.thinking.then_some(OutputKind::Reasoning)
        }
    }
}

impl DialectReader for OllamaReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        let Some(parts) = OllamaChunk::read(event.data) else { return sink.delta(0, Delta::Malformed) };
        if let Some(fault) = parts.fault {
            return fault.emit(sink);
        }
        if let Some(model) = parts.model
            && !std::mem::replace(&mut self.identified, true)
        {
            sink.delta(0, Delta::Model(model));
        }
        let tokens = parts.logprobs.map(TokenIncrement::listed);
        if let Some(kind) = parts.output() {
            sink.delta(0, Delta::Output { kind, tokens });
        } else if tokens.is_some() || parts.text.is_some() && !parts.role && !parts.done {
            sink.delta(0, Delta::Evidence { tokens });
        }
        if !parts.done {
            return;
        }
        if is_report(&parts.usage) {
            sink.delta(0, Delta::Usage(parts.usage));
        }
        if let Some(raw) = parts.reason
            && let Some(reason) = finish_reason(raw)
        {
            sink.delta(0, Delta::Finish(reason, raw));
        }
        sink.delta(0, Delta::Done);
    }
}

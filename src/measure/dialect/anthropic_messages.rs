//! `POST …/v1/messages`, as defined by Anthropic and served by vLLM, SGLang, llama.cpp, LMDeploy, Ollama, Dynamo and
//! mistral.rs.
//!
//! Generated text is a non-empty `text`, `thinking` or `partial_json` of a block's delta. Pings, signatures and
//! citations are not tokens, and unknown types are ignored. Block starts are not tokens either, because a tool's name
//! has no delta of its own.
//!
//! The usage of `message_start` has a placeholder for the output. The usage of `message_delta` is cumulative, so the
//! last one counts.

use super::document_reply::{is_report, sum};
use super::fault::ErrorObject;
use super::skeleton::Skeleton;
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, USUAL, count, finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::text_collector::TextFields;
use crate::measure::usage::Usage;

pub(super) const DIALECT: Dialect = Dialect {
    name: "anthropic.messages",
    operation: "chat",
    route: "/v1/messages",
    matches: |path| path.ends_with("/v1/messages"),
    request: REQUEST,
    prompt: &["tools", "system", "messages"],
    reader: |_| Box::new(AnthropicMessagesReader::default()),
    reply: REPLY,
    error_body,
    text: Some(&TextFields {
        choice: "index",
        text: &[&["delta.text"], &["delta.thinking"], &["delta.partial_json"]],
        whole: &[&["content[].text"], &["content[].thinking"]],
    }),
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("max_tokens", RequestField::MaxTokens),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("top_k", RequestField::TopK),
    ("output_config.effort", RequestField::ReasoningLevel),
    ("output_config.format.type", RequestField::OutputType),
];

const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("stop_reason", ReplyField::Finish),
    ("usage.input_tokens", ReplyField::Input),
    ("usage.cache_read_input_tokens", ReplyField::CachedBeside),
    ("usage.cache_creation_input_tokens", ReplyField::CacheWriteBeside),
    ("usage.output_tokens", ReplyField::Output),
    ("type", ReplyField::Mark),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
];

/// Error reply from the proxy, with the error classes of Anthropic's documentation.
fn error_body(status: u16, message: &str) -> String {
    let kind = match status {
        413 => "request_too_large",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        504 => "timeout_error",
        _ => "api_error",
    };
    serde_json::json!({"type": "error", "error": {"type": kind, "message": message}}).to_string()
}

/// The latest value of each count in the stream's events.
#[derive(Clone, Copy, Default)]
struct AnthropicUsage {
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    output: Option<u64>,
}

impl AnthropicUsage {
    fn read(&mut self, walk: &mut JsonWalker<'_>) -> Option<()> {
        walk.object(|key, walk| {
            let latest = match key {
                b"input_tokens" => &mut self.input,
                b"cache_read_input_tokens" => &mut self.cache_read,
                b"cache_creation_input_tokens" => &mut self.cache_creation,
                b"output_tokens" => &mut self.output,
                _ => return walk.skip(),
            };
            *latest = count(walk)?.or(*latest);
            Some(())
        })
    }

    fn usage(self) -> Usage {
        let (cached, cache_write) = (self.cache_read, self.cache_creation);
        let input = sum(sum(self.input, cached), cache_write);
        Usage { input, cached, cache_write, output: self.output, reasoning: None }
    }
}

#[derive(Default)]
pub(super) struct AnthropicMessagesReader {
    counts: AnthropicUsage,
    skeleton: Skeleton<OutputKind>,
}

#[derive(Default)]
struct AnthropicEvent<'a> {
    kind: Option<&'a str>,
    id: Option<&'a str>,
    model: Option<&'a str>,
    delta: AnthropicBlock<'a>,
    /// The event has counts.
    counts: bool,
    fault: Option<ErrorObject<'a>>,
}

#[derive(Default)]
struct AnthropicBlock<'a> {
    output: Option<OutputKind>,
    stop_reason: Option<&'a str>,
}

impl<'a> AnthropicBlock<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut block = Self::default();
        walk.object(|key, walk| {
            let kind = match key {
                b"text" => OutputKind::Text,
                b"thinking" => OutputKind::Reasoning,
                b"partial_json" => OutputKind::Tool,
                b"stop_reason" => {
                    block.stop_reason = walk.text()?;
                    return Some(());
                }
                _ => return walk.skip(),
            };
            match walk.shown()? {
                FieldState::String(_) => block.output = Some(kind),
                FieldState::Null | FieldState::Empty | FieldState::Other => {}
            }
            Some(())
        })?;
        Some(block)
    }
}

impl AnthropicEvent<'_> {
    /// The output kind, if the event has nothing else that matters.
    fn steady(&self) -> Option<OutputKind> {
        let shows_text_only = self.kind == Some("content_block_delta") && self.fault.is_none() && !self.counts;
        self.delta.output.filter(|_| shows_text_only)
    }
}

impl AnthropicMessagesReader {
    fn read<'a>(&mut self, walk: &mut JsonWalker<'a>) -> Option<AnthropicEvent<'a>> {
        let (mut parts, mut counts) = (AnthropicEvent::default(), self.counts);
        walk.object(|key, walk| {
            match key {
                b"type" => parts.kind = walk.text()?,
                b"message" if walk.is_object() => walk.object(|key, walk| {
                    match key {
                        b"id" => parts.id = walk.text()?,
                        b"model" => parts.model = walk.text()?,
                        b"usage" => {
                            parts.counts = true;
                            counts.read(walk)?;
                        }
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"delta" if walk.is_object() => parts.delta = AnthropicBlock::read(walk)?,
                b"usage" => {
                    parts.counts = true;
                    counts.read(walk)?;
                }
                b"error" => parts.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.is_at_end().then_some(())?;
        self.counts = counts;
        Some(parts)
    }

    fn usage(&self, output: Option<u64>, sink: &mut dyn DeltaSink) {
        let usage = Usage { output, ..self.counts.usage() };
        if is_report(&usage) {
            sink.delta(0, Delta::Usage(usage));
        }
    }
}

impl DialectReader for AnthropicMessagesReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if let Some(&kind) = self.skeleton.meaning_of(event, |_, _, _| ()) {
            return sink.delta(0, Delta::Output { kind, tokens: None });
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(mut walk) = self.skeleton.walk(event.data) else { return sink.delta(0, Delta::Malformed) };
        let parts = self.read(&mut walk);
        self.skeleton.parsed(event.data, walk, parts.as_ref().and_then(AnthropicEvent::steady));
        let Some(parts) = parts else { return sink.delta(0, Delta::Malformed) };
        if let Some(fault) = parts.fault {
            return fault.emit(sink);
        }
        match parts.kind.map_or(event.name, str::as_bytes) {
            b"message_start" => {
                parts.id.into_iter().for_each(|id| sink.delta(0, Delta::Id(id)));
                parts.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
                self.counts.output = None;
                self.usage(None, sink);
            }
            b"content_block_delta" => {
                if let Some(kind) = parts.delta.output {
                    sink.delta(0, Delta::Output { kind, tokens: None });
                }
            }
            b"message_delta" => {
                self.usage(self.counts.output, sink);
                if let Some(raw) = parts.delta.stop_reason
                    && let Some(reason) = finish_reason(raw)
                {
                    sink.delta(0, Delta::Finish(reason, raw));
                }
            }
            b"message_stop" => sink.delta(0, Delta::Done),
            b"error" => ErrorObject::named(event.data).emit(sink),
            _ => {}
        }
    }
}

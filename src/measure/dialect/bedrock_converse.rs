//! Bedrock's `/model/M/converse-stream` and `/converse`; the model is in the path.
//!
//! Frames are an Amazon event stream; a frame's headers name its event. An exception is a frame too. Each payload has
//! a padding field `p`, so sizes carry no information.

use super::document_reply::{is_report, sum};
use super::fault::{ErrorObject, tell_plain};
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, RequestShape, USUAL, count,
    finish_reason, segment_of,
};
use crate::measure::framing::{Event, PayloadKind};
use crate::measure::json_walker::JsonWalker;
use crate::measure::text_collector::TextFields;
use crate::measure::usage::Usage;

pub(super) const DIALECT: Dialect = Dialect {
    name: "bedrock.converse",
    operation: "chat",
    route: "/model/{model}/converse-stream",
    content_type: CONTENT_TYPE,
    matches: |path| path.ends_with("/converse-stream") || path.contains("/model/") && path.ends_with("/converse"),
    path,
    request: REQUEST,
    prompt: &["toolConfig", "system", "messages"],
    reader: |_| Box::new(BedrockConverseReader),
    reply: REPLY,
    error_body,
    text: Some(&TextFields {
        choice: "contentBlockIndex",
        text: &[&["delta.text"], &["delta.reasoningContent.text"], &["delta.toolUse.input"]],
        whole: &[&["output.message.content[].text"]],
    }),
    ..USUAL
};

pub(super) const CONTENT_TYPE: &str = "application/vnd.amazon.eventstream";

/// Reads the model and the streaming mode, which are both in the path.
pub(super) fn path(shape: &mut RequestShape, path: &str) {
    shape.model = segment_of(path, "/model/", '/');
    shape.stream = Some(path.ends_with("-stream"));
}

const REQUEST: &[(&str, RequestField)] = &[
    ("inferenceConfig.maxTokens", RequestField::MaxTokens),
    ("inferenceConfig.temperature", RequestField::Temperature),
    ("inferenceConfig.topP", RequestField::TopP),
];

const REPLY: &[(&str, ReplyField)] = &[
    ("stopReason", ReplyField::Finish),
    ("usage.inputTokens", ReplyField::Input),
    ("usage.cacheReadInputTokens", ReplyField::CachedBeside),
    ("usage.cacheWriteInputTokens", ReplyField::CacheWriteBeside),
    ("usage.outputTokens", ReplyField::Output),
    ("message", ReplyField::Error),
    ("__type", ReplyField::Kind),
];

pub(super) fn error_body(_: u16, message: &str) -> String {
    serde_json::json!({"message": message}).to_string()
}

/// Stateless: every event is independent.
pub(super) struct BedrockConverseReader;

impl DialectReader for BedrockConverseReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if event.mark == PayloadKind::Exception {
            return exception(event, sink);
        }
        if read(event.data, sink).is_none() {
            sink.delta(0, Delta::Malformed);
        }
    }
}

/// Reports an exception. Its name is the error class; its payload contains the message or is the message.
pub(super) fn exception(event: &Event<'_>, sink: &mut dyn DeltaSink) {
    let mut message = None;
    let read = JsonWalker::new(event.data).and_then(|mut walk| {
        walk.object(|key, walk| {
            match key {
                b"message" | b"Message" => message = walk.text()?,
                _ => walk.skip()?,
            }
            Some(())
        })
    });
    let text = |bytes| std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty());
    let kind = text(event.name);
    match read {
        None => tell_plain(text(event.data), kind, sink),
        Some(()) => ErrorObject { message, kind, code: None }.emit(sink),
    }
}

/// Reads an event by its keys, which match the frame's event name.
pub(super) fn read(data: &[u8], sink: &mut dyn DeltaSink) -> Option<()> {
    let (mut shown, mut reason, mut usage) = (None, None, None);
    let mut walk = JsonWalker::new(data)?;
    walk.object(|key, walk| event(key, walk, &mut shown, &mut reason, &mut usage))?;
    walk.end()?;
    if let Some(kind) = shown {
        sink.delta(0, Delta::Output { kind, tokens: None });
    }
    if let Some(usage) = usage.filter(is_report) {
        sink.delta(0, Delta::Usage(usage));
    }
    if let Some(raw) = reason
        && let Some(reason) = finish_reason(raw)
    {
        sink.delta(0, Delta::Finish(reason, raw));
    }
    Some(())
}

fn event<'a>(
    key: &[u8],
    walk: &mut JsonWalker<'a>,
    shown: &mut Option<OutputKind>,
    reason: &mut Option<&'a str>,
    usage: &mut Option<Usage>,
) -> Option<()> {
    match key {
        // Within `invoke`, some models wrap an event in an object with the event's name.
        b"contentBlockDelta" | b"messageStop" | b"metadata" if walk.is_object() => {
            walk.object(|key, walk| event(key, walk, shown, reason, usage))
        }
        b"delta" => walk.object(|key, walk| {
            let kind = match key {
                b"text" => walk.shown()?.is_content().then_some(OutputKind::Text),
                b"toolUse" => inside(walk, b"input")?.then_some(OutputKind::Tool),
                b"reasoningContent" => inside(walk, b"text")?.then_some(OutputKind::Reasoning),
                _ => {
                    walk.skip()?;
                    None
                }
            };
            *shown = kind.or(*shown);
            Some(())
        }),
        b"stopReason" => {
            *reason = walk.text()?;
            Some(())
        }
        b"usage" => {
            *usage = Some(counts(walk)?);
            Some(())
        }
        _ => walk.skip(),
    }
}

/// Whether the object has content under `name`.
fn inside(walk: &mut JsonWalker<'_>, name: &[u8]) -> Option<bool> {
    let mut shows = false;
    walk.object(|key, walk| {
        shows |= walk.shown()?.is_content() && key == name;
        Some(())
    })?;
    Some(shows)
}

/// Reads the usage. `inputTokens` excludes cache reads and writes; the total includes them.
fn counts(walk: &mut JsonWalker<'_>) -> Option<Usage> {
    let (mut usage, mut total) = (Usage::default(), None);
    walk.object(|key, walk| {
        match key {
            b"inputTokens" => usage.input = count(walk)?,
            b"outputTokens" => usage.output = count(walk)?,
            b"totalTokens" => total = count(walk)?,
            b"cacheReadInputTokens" => usage.cached = count(walk)?,
            b"cacheWriteInputTokens" => usage.cache_write = count(walk)?,
            _ => walk.skip()?,
        }
        Some(())
    })?;
    let by_total =
        total.and_then(|total: u64| total.checked_sub(usage.output?)).filter(|all| Some(*all) >= usage.input);
    usage.input = by_total.or(sum(sum(usage.input, usage.cached), usage.cache_write));
    Some(usage)
}

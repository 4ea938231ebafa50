//! `POST …/responses`: named events; only those that end in `.delta` contain generated text.
//!
//! Their `.done` events repeat it. Output of hosted tools (searches, images, a shell) is not generated text. One
//! terminal event has the usage; some servers append `[DONE]`.

use super::document_reply::is_report;
use super::fault::{self, ErrorObject};
use super::prompt::GOES_ON_FROM;
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, TokenIncrement, USUAL, count,
    finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::JsonWalker;
use crate::measure::text_collector::TextFields;
use crate::measure::usage::{FinishReason, Usage};

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.responses",
    operation: "chat",
    route: "/v1/responses",
    matches: |path| path.ends_with("/responses"),
    request: REQUEST,
    prompt: &["tools", "instructions", "input"],
    stored_keys: &[GOES_ON_FROM, "conversation", "prompt"],
    reader: |_| Box::new(ResponsesReader { identified: false }),
    reply: REPLY,
    text: Some(&TextFields { choice: "output_index", text: &[&["delta"]], whole: &[&["output[].content[].text"]] }),
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("max_output_tokens", RequestField::MaxTokens),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("top_k", RequestField::TopK),
    ("reasoning.effort", RequestField::ReasoningLevel),
    ("text.format.type", RequestField::OutputType),
];

const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("status", ReplyField::Status),
    ("incomplete_details.reason", ReplyField::Finish),
    ("usage.input_tokens", ReplyField::Input),
    ("usage.input_tokens_details.cached_tokens", ReplyField::Cached),
    ("usage.output_tokens", ReplyField::Output),
    ("usage.output_tokens_details.reasoning_tokens", ReplyField::Reasoning),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
];

struct ResponsesReader {
    identified: bool,
}

#[derive(Default)]
struct ResponsesEvent<'a> {
    kind: Option<&'a str>,
    shows: bool,
    tokens: Option<u32>,
    response: Option<ResponseObject<'a>>,
    fault: Option<ErrorObject<'a>>,
    message: Option<&'a str>,
    code: Option<&'a str>,
}

/// The response object inside an event.
#[derive(Default)]
struct ResponseObject<'a> {
    id: Option<&'a str>,
    model: Option<&'a str>,
    incomplete: bool,
    reason: Option<&'a str>,
    usage: Usage,
    fault: Option<ErrorObject<'a>>,
}

impl<'a> ResponsesEvent<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (mut parts, mut walk) = (Self::default(), JsonWalker::new(data)?);
        walk.object(|key, walk| {
            match key {
                b"type" => parts.kind = walk.text()?,
                b"delta" => parts.shows = walk.shown()?.is_content(),
                b"logprobs" => parts.tokens = walk.length()?.filter(|entries| *entries > 0),
                b"response" if walk.is_object() => parts.response = Some(ResponseObject::read(walk)?),
                b"error" => parts.fault = ErrorObject::read(walk)?,
                b"message" => parts.message = walk.text()?,
                b"code" => parts.code = fault::code(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.end()?;
        Some(parts)
    }
}

impl<'a> ResponseObject<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut response = Self::default();
        walk.object(|key, walk| {
            match key {
                b"id" => response.id = walk.text()?,
                b"model" => response.model = walk.text()?,
                b"status" => response.incomplete = walk.text()? == Some("incomplete"),
                b"incomplete_details" => walk.object(|key, walk| {
                    match key {
                        b"reason" => response.reason = walk.text()?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"usage" => response.usage = usage(walk)?,
                b"error" => response.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        Some(response)
    }
}

fn usage(walk: &mut JsonWalker<'_>) -> Option<Usage> {
    let mut usage = Usage::default();
    let detail = |walk: &mut JsonWalker<'_>, name: &[u8]| {
        let mut found = None;
        walk.object(|key, walk| {
            let number = count(walk)?;
            found = if key == name { number } else { found };
            Some(())
        })?;
        Some(found)
    };
    walk.object(|key, walk| {
        match key {
            b"input_tokens" => usage.input = count(walk)?,
            b"output_tokens" => usage.output = count(walk)?,
            b"input_tokens_details" => usage.cached = detail(walk, b"cached_tokens")?,
            b"output_tokens_details" => usage.reasoning = detail(walk, b"reasoning_tokens")?,
            _ => walk.skip()?,
        }
        Some(())
    })?;
    Some(usage)
}

/// The output kind of delta events with this type; `None` for other types.
fn output_kind(kind: &str) -> Option<OutputKind> {
    let what = kind.strip_prefix("response.")?.strip_suffix(".delta")?;
    let hosted = ["web_search", "file_search", "image_generation", "shell_call_output", "code_interpreter_call_output"];
    if hosted.iter().any(|tool| what.starts_with(tool)) {
        return None;
    }
    Some(if what.starts_with("reasoning") {
        OutputKind::Reasoning
    } else if what.starts_with("refusal") {
        OutputKind::Refusal
    } else if what.contains("audio") {
        OutputKind::Audio
    } else if what.starts_with("output_text") {
        OutputKind::Text
    } else {
        OutputKind::Tool
    })
}

impl ResponsesReader {
    fn identify(&mut self, response: &ResponseObject<'_>, sink: &mut dyn DeltaSink) {
        if let Some(id) = response.id
            && !std::mem::replace(&mut self.identified, true)
        {
            sink.delta(0, Delta::Id(id));
            response.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
        }
    }
}

impl DialectReader for ResponsesReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(parts) = ResponsesEvent::read(event.data) else { return sink.delta(0, Delta::Malformed) };
        let Ok(name) = std::str::from_utf8(event.name) else { return sink.delta(0, Delta::Malformed) };
        let kind = parts.kind.unwrap_or(name);
        if let Some(kind) = output_kind(kind) {
            let tokens = parts.tokens.map(TokenIncrement::listed);
            if parts.shows {
                sink.delta(0, Delta::Output { kind, tokens });
            } else if tokens.is_some() {
                sink.delta(0, Delta::Evidence { tokens });
            }
            return;
        }
        let response = parts.response.unwrap_or_default();
        self.identify(&response, sink);
        if is_report(&response.usage) {
            sink.delta(0, Delta::Usage(response.usage));
        }
        let finish = match kind {
            "response.completed" if !response.incomplete && response.reason.is_none() => Some("completed"),
            "response.completed" | "response.incomplete" => Some(response.reason.unwrap_or("incomplete")),
            "response.cancelled" => Some("cancelled"),
            "response.failed" => {
                response.fault.unwrap_or_default().emit(sink);
                None
            }
            "error" => {
                let plain = ErrorObject { message: parts.message, kind: None, code: parts.code };
                parts.fault.unwrap_or(plain).emit(sink);
                None
            }
            _ => {
                parts.fault.into_iter().for_each(|fault| fault.emit(sink));
                None
            }
        };
        if let Some(raw) = finish {
            sink.delta(0, Delta::Finish(finish_reason(raw).unwrap_or(FinishReason::Other), raw));
            sink.delta(0, Delta::Done);
        }
    }
}

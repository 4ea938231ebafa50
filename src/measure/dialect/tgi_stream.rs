//! Text Generation Inference's own `/generate_stream`, and `/` and `/generate` with `inputs`.
//!
//! Each event has exactly one token; a special one (such as end of text) is a token without text. `generated_text`
//! repeats the whole answer and marks the end. `details` accompany it on request. Errors arrive with status 200.

use super::document_reply::is_report;
use super::fault::ErrorObject;
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, TokenIncrement, USUAL, count,
    finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::usage::{CountSource, Usage};

pub(super) const DIALECT: Dialect = Dialect {
    name: "tgi.stream",
    route: "/generate_stream",
    final_count: "details",
    matches: |path| path.ends_with("/generate_stream"),
    path: |shape, _| shape.stream = Some(true),
    request: REQUEST,
    prompt: &["inputs"],
    reader: |_| Box::new(TgiReader),
    reply: REPLY,
    error_body,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("stream", RequestField::Stream),
    ("parameters.max_new_tokens", RequestField::MaxTokens),
    ("parameters.best_of", RequestField::Choices),
    ("parameters.temperature", RequestField::Temperature),
    ("parameters.top_p", RequestField::TopP),
    ("parameters.frequency_penalty", RequestField::FrequencyPenalty),
    ("parameters.seed", RequestField::Seed),
    ("parameters.top_k", RequestField::TopK),
];

/// `/generate` returns an object, `/` a list of one.
const REPLY: &[(&str, ReplyField)] = &[
    ("details.finish_reason", ReplyField::Finish),
    ("details.generated_tokens", ReplyField::Output),
    ("details.input_length", ReplyField::Input),
    ("[].details.finish_reason", ReplyField::Finish),
    ("[].details.generated_tokens", ReplyField::Output),
    ("[].details.input_length", ReplyField::Input),
    ("error", ReplyField::Error),
    ("error_type", ReplyField::Kind),
];

fn error_body(status: u16, message: &str) -> String {
    let kind = match status {
        429 | 503 => "overloaded",
        400..=499 => "validation",
        _ => "generation",
    };
    serde_json::json!({"error": message, "error_type": kind}).to_string()
}

struct TgiReader;

#[derive(Default)]
struct TgiEvent<'a> {
    /// The token: whether it has text.
    token: Option<bool>,
    ended: bool,
    finish: Option<&'a str>,
    usage: Usage,
    fault: Option<ErrorObject<'a>>,
    error_type: Option<&'a str>,
}

impl<'a> TgiEvent<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (mut parts, mut walk) = (Self::default(), JsonWalker::new(data)?);
        walk.object(|key, walk| {
            match key {
                b"token" if walk.is_object() => {
                    let (mut special, mut text) = (false, false);
                    walk.object(|key, walk| {
                        match key {
                            b"special" => special = walk.raw()? == "true",
                            b"text" => text = walk.shown()?.is_content(),
                            _ => walk.skip()?,
                        }
                        Some(())
                    })?;
                    parts.token = Some(text && !special);
                }
                b"generated_text" => parts.ended = walk.shown()? != FieldState::Null,
                b"details" => walk.object(|key, walk| {
                    match key {
                        b"finish_reason" => parts.finish = walk.text()?,
                        b"generated_tokens" => parts.usage.output = count(walk)?,
                        b"input_length" => parts.usage.input = count(walk)?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"error" => parts.fault = ErrorObject::read(walk)?,
                b"error_type" => parts.error_type = walk.text()?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.end()?;
        Some(parts)
    }
}

impl DialectReader for TgiReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(parts) = TgiEvent::read(event.data) else { return sink.delta(0, Delta::Malformed) };
        if let Some(fault) = parts.fault.or(parts.error_type.map(|_| ErrorObject::default())) {
            return fault.of_kind(parts.error_type).emit(sink);
        }
        let tokens = Some(TokenIncrement { tokens: 1, source: CountSource::Chunks });
        match parts.token {
            Some(true) => sink.delta(0, Delta::Output { kind: OutputKind::Text, tokens }),
            Some(false) => sink.delta(0, Delta::Evidence { tokens }),
            None => {}
        }
        if is_report(&parts.usage) {
            sink.delta(0, Delta::Usage(parts.usage));
        }
        if let Some(raw) = parts.finish
            && let Some(reason) = finish_reason(raw)
        {
            sink.delta(0, Delta::Finish(reason, raw));
        }
        if parts.ended {
            sink.delta(0, Delta::Done);
        }
    }
}

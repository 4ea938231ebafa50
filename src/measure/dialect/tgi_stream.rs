//! Text Generation Inference's own `/generate_stream`, and `/` and `/generate` with `inputs`.
//!
//! Exactly one token in each event: a special one (the end of the text) is a token without text. `generated_text` repeats
//! the whole answer and marks the end; `details` come with it if they were asked for. Errors come under a status of 200.

use super::fault::Fault;
use super::reply::is_report;
use super::{Asked, Counted, Delta, Dialect, Field, OutputKind, Reader, Sink, USUAL, count, finish_reason};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::record::{CountSource, Usage};

pub(super) const DIALECT: Dialect = Dialect {
    name: "tgi.stream",
    route: "/generate_stream",
    final_count: "details",
    matches: |path| path.ends_with("/generate_stream"),
    path: |shape, _| shape.stream = Some(true),
    request: REQUEST,
    prompt: &["inputs"],
    reader: |_| Box::new(Tokens),
    reply: REPLY,
    error_body,
    ..USUAL
};

const REQUEST: &[(&str, Asked)] = &[
    ("stream", Asked::Stream),
    ("parameters.max_new_tokens", Asked::MaxTokens),
    ("parameters.best_of", Asked::Choices),
    ("parameters.temperature", Asked::Temperature),
    ("parameters.top_p", Asked::TopP),
    ("parameters.frequency_penalty", Asked::FrequencyPenalty),
    ("parameters.seed", Asked::Seed),
];

/// `/generate` answers with an object, `/` with a list of one.
const REPLY: &[(&str, Field)] = &[
    ("details.finish_reason", Field::Finish),
    ("details.generated_tokens", Field::Output),
    ("details.input_length", Field::Input),
    ("[].details.finish_reason", Field::Finish),
    ("[].details.generated_tokens", Field::Output),
    ("[].details.input_length", Field::Input),
    ("error", Field::Error),
    ("error_type", Field::Kind),
];

fn error_body(status: u16, message: &str) -> String {
    let kind = match status {
        429 | 503 => "overloaded",
        400..=499 => "validation",
        _ => "generation",
    };
    serde_json::json!({"error": message, "error_type": kind}).to_string()
}

struct Tokens;

/// What matters of one event.
#[derive(Default)]
struct Parts<'a> {
    /// The token: whether it shows text.
    token: Option<bool>,
    ended: bool,
    finish: Option<&'a str>,
    usage: Usage,
    fault: Option<Fault<'a>>,
    error_type: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (mut parts, mut walk) = (Self::default(), Walk::new(data)?);
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
                b"generated_text" => parts.ended = walk.shown()? != Shown::Null,
                b"details" => walk.object(|key, walk| {
                    match key {
                        b"finish_reason" => parts.finish = walk.text()?,
                        b"generated_tokens" => parts.usage.output = count(walk)?,
                        b"input_length" => parts.usage.input = count(walk)?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"error" => parts.fault = Fault::read(walk)?,
                b"error_type" => parts.error_type = walk.text()?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.end()?;
        Some(parts)
    }
}

impl Reader for Tokens {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(parts) = Parts::read(event.data) else { return sink.delta(0, Delta::Malformed) };
        if let Some(fault) = parts.fault.or(parts.error_type.map(|_| Fault::default())) {
            return fault.of_kind(parts.error_type).tell(sink);
        }
        let tokens = Some(Counted { tokens: 1, source: CountSource::Chunks });
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

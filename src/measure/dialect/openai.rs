//! What the OpenAI dialects share: the envelope of an event, usage, errors, and the fields of a request.
//!
//! An event is walked once and only what matters is looked at, so that a server's extra or odd field cannot make it
//! unreadable, and nothing is copied or unescaped.

use std::ops::Range;

use super::skeleton::Skeleton;
use super::{Counted, Counters, Delta, OutputKind, Sink, believed, finish_reason};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::record::{CountSource, Usage};
use crate::measure::scan::Scalar;
use crate::measure::shape::RequestShape;

/// Choices of one event beyond its first; more than anybody asks for, and each takes memory.
const MAX_CHOICES: usize = 128;

/// The envelope of one event.
#[derive(Default)]
struct Chunk<'a> {
    id: Option<&'a str>,
    model: Option<&'a str>,
    first: Option<Choice<'a>>,
    /// Engines send one choice per event; more cost an allocation.
    more: Vec<Choice<'a>>,
    usage: Option<Usage>,
    fault: Option<Fault<'a>>,
    /// OpenAI's random padding: where it stands in the event.
    padding: Option<Range<usize>>,
    /// vLLM, when ids were asked for: the length of the prompt, on the first event.
    prompt: Option<u32>,
}

/// One choice of an event, in terms that chat and completions share.
#[derive(Default)]
pub(super) struct Choice<'a> {
    pub(super) index: u32,
    /// Generated text, and where it stands if it is one string.
    pub(super) output: Option<(OutputKind, Option<Range<usize>>)>,
    /// Proof of a token without text.
    pub(super) evidence: bool,
    pub(super) finish: Option<&'a str>,
    /// Generated ids.
    pub(super) ids: Option<u32>,
    /// Log probabilities, one per token.
    pub(super) logprobs: Option<u32>,
}

impl<'a> Choice<'a> {
    /// Takes a field that the dialects share; anything else is skipped.
    pub(super) fn field(&mut self, key: &[u8], walk: &mut Walk<'a>) -> Option<()> {
        match key {
            b"index" => self.index = walk.number()?.and_then(|index| u32::try_from(index).ok()).unwrap_or(0),
            b"finish_reason" => self.finish = walk.text()?,
            // vLLM says `token_ids`, LMDeploy `output_ids`.
            b"token_ids" | b"output_ids" => self.ids = walk.length()?.or(self.ids),
            // Chat has them under `content` (and `refusal`), completions list the `tokens`.
            b"logprobs" => walk.object(|key, walk| {
                match key {
                    b"content" | b"refusal" | b"tokens" => self.logprobs = self.logprobs.or(walk.length()?),
                    _ => walk.skip()?,
                }
                Some(())
            })?,
            _ => walk.skip()?,
        }
        Some(())
    }

    fn counted(&self) -> Option<Counted> {
        let tokens = self.ids.or(self.logprobs)?;
        Some(Counted { tokens, source: CountSource::Ids })
    }
}

/// Reads one choice of a dialect.
pub(super) type ReadChoice = for<'a> fn(&mut Walk<'a>) -> Option<Choice<'a>>;

#[derive(Clone, Copy, Default)]
struct Fault<'a> {
    message: Option<&'a str>,
    kind: Option<&'a str>,
    code: Option<&'a str>,
}

impl<'a> Chunk<'a> {
    fn read(data: &'a [u8], choice: ReadChoice) -> Option<Self> {
        // The walk compares bytes; that they are text is checked once.
        std::str::from_utf8(data).ok()?;
        let mut chunk = Self::default();
        let mut walk = Walk::new(data);
        walk.object(|key, walk| {
            match key {
                b"id" => chunk.id = walk.text()?,
                b"model" => chunk.model = walk.text()?,
                b"choices" => walk.array(|walk| {
                    let choice = choice(walk)?;
                    match &mut chunk.first {
                        first @ None => *first = Some(choice),
                        Some(_) if chunk.more.len() == MAX_CHOICES => return None,
                        Some(_) => chunk.more.push(choice),
                    }
                    Some(())
                })?,
                b"usage" => chunk.usage = usage(walk)?,
                b"error" => chunk.fault = fault(walk)?,
                b"prompt_token_ids" => chunk.prompt = walk.length()?,
                b"obfuscation" => {
                    let at = walk.position();
                    chunk.padding = match walk.shown()? {
                        Shown::String(inside) => Some(inside),
                        // Empty padding is padding too: between its quotes.
                        Shown::Empty => Some(at + 1..at + 1),
                        Shown::Null | Shown::Other => None,
                    };
                }
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.end()?;
        Some(chunk)
    }
}

/// A usage object, unless it says nothing: some servers put zeros on every event.
fn usage(walk: &mut Walk<'_>) -> Option<Option<Usage>> {
    let mut usage = Usage::default();
    let mut cache_hits = None;
    walk.object(|key, walk| {
        match key {
            b"prompt_tokens" => usage.input = believed(walk.number()?),
            b"completion_tokens" => usage.output = believed(walk.number()?),
            b"prompt_tokens_details" => walk.object(|key, walk| {
                match key {
                    b"cached_tokens" => usage.cached = believed(walk.number()?),
                    _ => walk.skip()?,
                }
                Some(())
            })?,
            b"completion_tokens_details" => walk.object(|key, walk| {
                match key {
                    b"reasoning_tokens" => usage.reasoning = believed(walk.number()?),
                    _ => walk.skip()?,
                }
                Some(())
            })?,
            // SGLang, at top level.
            b"reasoning_tokens" => usage.reasoning = usage.reasoning.or(believed(walk.number()?)),
            // DeepSeek.
            b"prompt_cache_hit_tokens" => cache_hits = believed(walk.number()?),
            _ => walk.skip()?,
        }
        Some(())
    })?;
    usage.cached = usage.cached.or(cache_hits);
    Some(Some(usage).filter(is_report))
}

pub(super) fn is_report(usage: &Usage) -> bool {
    usage.input.unwrap_or(0) > 0 || usage.output.unwrap_or(0) > 0
}

/// An `error` field: an object with a message, or the message itself. `null` is none.
fn fault<'a>(walk: &mut Walk<'a>) -> Option<Option<Fault<'a>>> {
    if !walk.is_object() {
        return Some(match walk.raw()? {
            b"null" => None,
            raw => Some(Fault { message: unquoted(raw), ..Fault::default() }),
        });
    }
    let mut fault = Fault::default();
    walk.object(|key, walk| {
        match key {
            b"message" => fault.message = walk.text()?,
            b"type" => fault.kind = walk.text()?,
            b"code" => fault.code = Some(walk.raw()?).filter(|raw| *raw != b"null").and_then(unquoted),
            _ => walk.skip()?,
        }
        Some(())
    })?;
    Some(Some(fault))
}

fn unquoted(raw: &[u8]) -> Option<&str> {
    let raw = std::str::from_utf8(raw).ok()?;
    Some(raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw))
}

/// The state of one stream.
#[derive(Default)]
pub(super) struct Stream {
    /// Usage was asked for on every event, so the first one already counts from zero.
    continuous: bool,
    /// Cumulative completion tokens that each choice has reported.
    reported: Counters,
    skeleton: Skeleton<(u32, OutputKind)>,
    identified: bool,
}

impl Stream {
    pub(super) fn new(shape: &RequestShape) -> Self {
        Self { continuous: shape.continuous_usage, ..Self::default() }
    }

    /// One event.
    pub(super) fn event(&mut self, event: &Event<'_>, choice: ReadChoice, sink: &mut dyn Sink) {
        match event.name {
            b"" | b"message" | b"error" => {}
            // Side channels (tool dispatch, ids, progress) repeat or announce; they are not tokens.
            _ => return,
        }
        if let Some((choice, kind)) = self.skeleton.meaning_of(event.data) {
            return sink.delta(choice, Delta::Output { kind, tokens: None });
        }
        self.skeleton.forget();
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(chunk) = Chunk::read(event.data, choice) else { return sink.delta(0, Delta::Malformed) };
        self.identify(&chunk, sink);
        if let Some(Fault { message, kind, code }) = chunk.fault {
            sink.delta(0, Delta::Fault { message, kind, code });
        }
        if let Some(prompt) = chunk.prompt {
            sink.delta(0, Delta::Usage(Usage { input: Some(prompt.into()), ..Usage::default() }));
        }
        self.choices(event.data, &chunk, sink);
    }

    fn identify(&mut self, chunk: &Chunk<'_>, sink: &mut dyn Sink) {
        if self.identified {
            return;
        }
        if let Some(id) = chunk.id {
            self.identified = true;
            sink.delta(0, Delta::Id(id));
            if let Some(model) = chunk.model {
                sink.delta(0, Delta::Model(model));
            }
        }
    }

    fn choices(&mut self, data: &[u8], chunk: &Chunk<'_>, sink: &mut dyn Sink) {
        let Some(only) = &chunk.first else {
            if let Some(usage) = chunk.usage {
                sink.delta(0, Delta::Usage(usage));
            }
            return;
        };
        let single = chunk.more.is_empty();
        let total = chunk.usage.and_then(|usage| usage.output).filter(|_| single);
        let (mut finished, mut counter) = (false, self.continuous);
        for choice in std::iter::once(only).chain(&chunk.more) {
            let growth = total.and_then(|total| self.growth(choice.index, total));
            if let (Some(total), Some(_)) = (total, growth) {
                counter = true;
                sink.delta(choice.index, Delta::Total(total));
            }
            let tokens = choice.counted().or(growth);
            if let Some((kind, _)) = choice.output {
                sink.delta(choice.index, Delta::Output { kind, tokens });
            } else if choice.evidence || tokens.is_some_and(|counted| counted.tokens > 0) {
                sink.delta(choice.index, Delta::Evidence { tokens });
            }
            if let Some(raw) = choice.finish
                && let Some(reason) = finish_reason(raw)
            {
                finished = true;
                sink.delta(choice.index, Delta::Finish(reason, raw));
            }
        }
        if let Some(usage) = chunk.usage {
            match (counter || self.reported.len() > 1, finished) {
                // A running counter of one choice is not the total; it does tell the prompt's size.
                (true, _) => sink.delta(0, Delta::Usage(Usage { output: None, reasoning: None, ..usage })),
                (false, true) => sink.delta(0, Delta::Usage(usage)),
                (false, false) => {}
            }
        } else if let (Some((kind, Some(text))), true, None, None) = (&only.output, single, only.finish, &chunk.fault)
            && only.counted().is_none()
        {
            self.skeleton.learn(data, text.clone(), chunk.padding.clone(), (only.index, *kind));
        }
    }

    /// How far the choice's own counter has grown, where usage may be read as a counter at all: if it was asked for
    /// on every event, or if the same choice has reported before. One event with both text and usage proves nothing;
    /// several servers put the final usage there.
    fn growth(&mut self, choice: u32, total: u64) -> Option<Counted> {
        let before = self.reported.set(choice, total).or(self.continuous.then_some(0));
        let tokens = u32::try_from(total.saturating_sub(before?)).unwrap_or(u32::MAX);
        Some(Counted { tokens, source: CountSource::ContinuousUsage })
    }
}

/// The request fields that shape the work.
pub(super) const REQUEST_FIELDS: &[&str] = &[
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stream_options.include_usage",
    "stream_options.continuous_usage_stats",
];

/// Notes one of [`REQUEST_FIELDS`].
pub(super) fn request(shape: &mut RequestShape, path: &str, scalar: Scalar<'_>) {
    match path {
        "model" => shape.model = scalar.to_text(),
        "stream" => shape.stream = scalar.as_bool(),
        // Where both stand the newer name wins, as it does in vLLM.
        "max_completion_tokens" => shape.max_tokens = scalar.as_u64(),
        "max_tokens" => shape.max_tokens = shape.max_tokens.or(scalar.as_u64()),
        "n" => shape.choices = scalar.as_u64(),
        "temperature" => shape.temperature = scalar.as_f64(),
        "top_p" => shape.top_p = scalar.as_f64(),
        "frequency_penalty" => shape.frequency_penalty = scalar.as_f64(),
        "presence_penalty" => shape.presence_penalty = scalar.as_f64(),
        "seed" => shape.seed = scalar.as_u64(),
        "stream_options.include_usage" => shape.include_usage = scalar.as_bool() == Some(true),
        "stream_options.continuous_usage_stats" => shape.continuous_usage = scalar.as_bool() == Some(true),
        _ => {}
    }
}

/// An error reply in OpenAI's shape.
pub(super) fn error_body(status: u16, message: &str) -> String {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string()
}

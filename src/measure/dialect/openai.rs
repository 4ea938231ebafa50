//! What the OpenAI dialects share: the envelope of an event, usage, errors, and the fields of a request.
//!
//! Fields are taken as raw JSON and looked into only where they matter, so that a server's extra or odd field cannot
//! make an event unreadable, and nothing is copied or unescaped.

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::skeleton::Skeleton;
use super::{Counted, Counters, Delta, OutputKind, Sink, finish_reason};
use crate::measure::framing::Event;
use crate::measure::record::{CountSource, Usage};
use crate::measure::scan::Scalar;
use crate::measure::shape::RequestShape;

/// A field as it stands in the event; `null` counts as absent.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// The envelope of one event. `C` is a choice.
#[derive(Deserialize)]
#[serde(bound(deserialize = "C: Deserialize<'de>"))]
pub(super) struct Chunk<'a, C> {
    #[serde(borrow, default)]
    id: Raw<'a>,
    #[serde(borrow, default)]
    model: Raw<'a>,
    #[serde(default = "Choices::none")]
    choices: Choices<C>,
    #[serde(borrow, default)]
    usage: Raw<'a>,
    #[serde(borrow, default)]
    error: Raw<'a>,
    #[serde(borrow, default)]
    obfuscation: Raw<'a>,
    /// vLLM, when ids were asked for: the prompt, on the first event.
    #[serde(borrow, default)]
    prompt_token_ids: Raw<'a>,
}

/// The choices of one event. Engines send one; more cost an allocation.
struct Choices<C> {
    first: Option<C>,
    more: Vec<C>,
}

impl<C> Choices<C> {
    fn none() -> Self {
        Self { first: None, more: Vec::new() }
    }
}

impl<'de, C: Deserialize<'de>> Deserialize<'de> for Choices<C> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<C>(std::marker::PhantomData<C>);
        impl<'de, C: Deserialize<'de>> Visitor<'de> for Each<C> {
            type Value = Choices<C>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of choices")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Choices::none())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut choices = Choices { first: seq.next_element()?, more: Vec::new() };
                while let Some(choice) = seq.next_element()? {
                    choices.more.push(choice);
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_any(Each(std::marker::PhantomData))
    }
}

/// What one choice of an event holds, in terms that chat and completions share.
pub(super) struct ChoiceMeaning<'a> {
    pub(super) index: u32,
    /// Generated text, and where it stands if it is one string.
    pub(super) output: Option<(OutputKind, Raw<'a>)>,
    /// Proof of a token without text.
    pub(super) evidence: bool,
    pub(super) finish: Raw<'a>,
    /// Lists with one entry per token.
    pub(super) ids: [Raw<'a>; 2],
    pub(super) logprobs: Raw<'a>,
}

/// A choice of one of the OpenAI dialects.
pub(super) trait Choice<'a>: Deserialize<'a> {
    fn meaning(&self) -> ChoiceMeaning<'a>;
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
    pub(super) fn event<'a, C: Choice<'a>>(&mut self, event: &Event<'a>, sink: &mut dyn Sink) {
        match event.name {
            b"" | b"message" | b"error" => {}
            // Side channels (tool dispatch, ids, progress) repeat or announce; they are not tokens.
            _ => return,
        }
        if let Some((choice, kind)) = self.skeleton.meaning_of(event.data) {
            return sink.delta(choice, Delta::Output { kind, tokens: None });
        }
        self.skeleton.forget();
        let data = event.data.trim_ascii();
        if data == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(chunk) =
            std::str::from_utf8(data).ok().and_then(|text| serde_json::from_str::<Chunk<'a, C>>(text).ok())
        else {
            return sink.delta(0, Delta::Malformed);
        };
        self.identify(&chunk, sink);
        if let Some(error) = chunk.error {
            fault(error.get(), sink);
        }
        if let Some(Length(prompt)) = chunk.prompt_token_ids.and_then(length) {
            sink.delta(0, Delta::Usage(Usage { input: Some(prompt.into()), ..Usage::default() }));
        }
        self.choices(event.data, &chunk, sink);
    }

    fn identify<C>(&mut self, chunk: &Chunk<'_, C>, sink: &mut dyn Sink) {
        if self.identified {
            return;
        }
        if let Some(id) = string(chunk.id).filter(|id| !id.is_empty()) {
            self.identified = true;
            sink.delta(0, Delta::Id(id));
            if let Some(model) = string(chunk.model) {
                sink.delta(0, Delta::Model(model));
            }
        }
    }

    fn choices<'a, C: Choice<'a>>(&mut self, data: &[u8], chunk: &Chunk<'a, C>, sink: &mut dyn Sink) {
        let usage = chunk.usage.and_then(|raw| reported(raw.get()));
        let Some(only) = &chunk.choices.first else {
            if let Some(usage) = usage {
                sink.delta(0, Delta::Usage(usage));
            }
            return;
        };
        let single = chunk.choices.more.is_empty();
        let total = usage.and_then(|usage| usage.output).filter(|_| single);
        let (mut finished, mut counter) = (false, self.continuous);
        for choice in std::iter::once(only).chain(&chunk.choices.more) {
            let meaning = choice.meaning();
            let growth = total.and_then(|total| self.growth(meaning.index, total));
            if let (Some(total), Some(_)) = (total, growth) {
                counter = true;
                sink.delta(meaning.index, Delta::Total(total));
            }
            let tokens = counted(&meaning).or(growth);
            if let Some((kind, text)) = meaning.output {
                sink.delta(meaning.index, Delta::Output { kind, tokens });
                if let (Some(text), None, None, None, true) = (text, tokens, usage, meaning.finish, single) {
                    let padding = chunk.obfuscation.and_then(|raw| inside(data, raw));
                    if let (Some(text), None) = (inside(data, text), chunk.error) {
                        self.skeleton.learn(data, text, padding, (meaning.index, kind));
                    }
                }
            } else if meaning.evidence || tokens.is_some_and(|counted| counted.tokens > 0) {
                sink.delta(meaning.index, Delta::Evidence { tokens });
            }
            if let Some(raw) = string(meaning.finish)
                && let Some(reason) = finish_reason(raw)
            {
                finished = true;
                sink.delta(meaning.index, Delta::Finish(reason, raw));
            }
        }
        if let Some(usage) = usage {
            match (counter || self.reported.len() > 1, finished) {
                // A running counter of one choice is not the total; it does tell the prompt's size.
                (true, _) => sink.delta(0, Delta::Usage(Usage { output: None, reasoning: None, ..usage })),
                (false, true) => sink.delta(0, Delta::Usage(usage)),
                (false, false) => {}
            }
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

fn counted(meaning: &ChoiceMeaning<'_>) -> Option<Counted> {
    let ids = meaning.ids.into_iter().flatten().find_map(length);
    let length = ids.or_else(|| serde_json::from_str::<Logprobs>(meaning.logprobs?.get()).ok()?.length());
    length.map(|Length(tokens)| Counted { tokens, source: CountSource::Ids })
}

fn length(list: &RawValue) -> Option<Length> {
    serde_json::from_str(list.get()).ok()
}

/// The number of entries of a JSON list.
struct Length(u32);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = Length;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Length, A::Error> {
                let mut entries = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    entries += 1;
                }
                Ok(Length(entries))
            }
        }
        deserializer.deserialize_seq(Count)
    }
}

/// Log probabilities: chat has them under `content` (and `refusal`), completions list the `tokens`.
#[derive(Deserialize)]
struct Logprobs {
    content: Option<Length>,
    refusal: Option<Length>,
    tokens: Option<Length>,
}

impl Logprobs {
    fn length(self) -> Option<Length> {
        self.content.or(self.refusal).or(self.tokens)
    }
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    /// SGLang, at top level.
    reasoning_tokens: Option<u64>,
    /// DeepSeek.
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

/// A usage object, unless it says nothing: some servers put zeros on every event.
fn reported(raw: &str) -> Option<Usage> {
    let wire: WireUsage = serde_json::from_str(raw).ok()?;
    if wire.prompt_tokens.unwrap_or(0) == 0 && wire.completion_tokens.unwrap_or(0) == 0 {
        return None;
    }
    let details = wire.completion_tokens_details.and_then(|details| details.reasoning_tokens);
    Some(Usage {
        input: wire.prompt_tokens,
        cached: wire.prompt_tokens_details.and_then(|details| details.cached_tokens).or(wire.prompt_cache_hit_tokens),
        output: wire.completion_tokens,
        reasoning: details.or(wire.reasoning_tokens),
    })
}

/// The text of a field that is a plain string.
pub(super) fn string(raw: Raw<'_>) -> Option<&str> {
    raw?.get().strip_prefix('"')?.strip_suffix('"')
}

/// Whether a field holds anything: not `null`, `""`, `[]` or `{}`.
pub(super) fn has_content(raw: Raw<'_>) -> bool {
    raw.is_some_and(|raw| !matches!(raw.get(), "null" | "\"\"" | "[]" | "{}"))
}

/// Where a string field lies in `data`, inside its quotes.
fn inside(data: &[u8], raw: &RawValue) -> Option<std::ops::Range<usize>> {
    let text = string(Some(raw))?;
    let start = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
    (start + text.len() <= data.len()).then(|| start..start + text.len())
}

#[derive(Deserialize)]
struct WireError<'a> {
    #[serde(borrow, default)]
    message: Raw<'a>,
    #[serde(borrow, default, rename = "type")]
    kind: Raw<'a>,
    #[serde(borrow, default)]
    code: Raw<'a>,
}

/// An `error` field: an object with a message, or the message itself.
fn fault(raw: &str, sink: &mut dyn Sink) {
    let fault = match serde_json::from_str::<WireError<'_>>(raw) {
        Ok(error) => Delta::Fault { message: string(error.message), kind: string(error.kind), code: code(error.code) },
        Err(_) => {
            Delta::Fault { message: raw.strip_prefix('"').and_then(|r| r.strip_suffix('"')), kind: None, code: None }
        }
    };
    sink.delta(0, fault);
}

fn code(raw: Raw<'_>) -> Option<&str> {
    string(raw).or_else(|| raw.map(RawValue::get))
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

/// A reply in one JSON document.
#[derive(Default)]
pub(super) struct Document {
    usage: Usage,
    failed: bool,
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
}

impl Document {
    pub(super) const FIELDS: &[&str] = &[
        "id",
        "model",
        "object",
        "choices[].finish_reason",
        "usage.prompt_tokens",
        "usage.completion_tokens",
        "usage.prompt_tokens_details.cached_tokens",
        "usage.completion_tokens_details.reasoning_tokens",
        "usage.reasoning_tokens",
        "usage.prompt_cache_hit_tokens",
        "error",
        "error.message",
        "error.type",
        "error.code",
        "message",
        "type",
        "code",
    ];

    pub(super) fn scalar(&mut self, path: &str, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink) {
        let text = || match scalar {
            Scalar::Number(number) => Some(number.to_owned()),
            scalar => scalar.to_text(),
        };
        match path {
            "id" | "model" => {
                if let Some(text) = scalar.to_text() {
                    sink.delta(0, if path == "id" { Delta::Id(&text) } else { Delta::Model(&text) });
                }
            }
            "choices[].finish_reason" => {
                if let Some(raw) = scalar.to_text()
                    && let Some(reason) = finish_reason(&raw)
                {
                    sink.delta(index, Delta::Finish(reason, &raw));
                }
            }
            "usage.prompt_tokens" => self.usage.input = scalar.as_u64(),
            "usage.completion_tokens" => self.usage.output = scalar.as_u64(),
            "usage.prompt_tokens_details.cached_tokens" => self.usage.cached = scalar.as_u64(),
            "usage.prompt_cache_hit_tokens" => self.usage.cached = self.usage.cached.or(scalar.as_u64()),
            "usage.completion_tokens_details.reasoning_tokens" => self.usage.reasoning = scalar.as_u64(),
            "usage.reasoning_tokens" => self.usage.reasoning = self.usage.reasoning.or(scalar.as_u64()),
            "object" => self.failed |= scalar == Scalar::String(b"error"),
            "error" if scalar == Scalar::Null => {}
            "error" => (self.failed, self.message) = (true, text()),
            "error.message" | "message" => {
                self.failed |= path == "error.message";
                self.message = text();
            }
            "error.type" | "type" => self.kind = text(),
            "error.code" | "code" => self.code = text(),
            _ => {}
        }
    }

    pub(super) fn end(&mut self, sink: &mut dyn Sink) {
        if self.usage.input.unwrap_or(0) > 0 || self.usage.output.unwrap_or(0) > 0 {
            sink.delta(0, Delta::Usage(self.usage));
        }
        if self.failed {
            let (message, kind, code) = (self.message.as_deref(), self.kind.as_deref(), self.code.as_deref());
            sink.delta(0, Delta::Fault { message, kind, code });
        }
    }
}

//! llama.cpp's own `/completion`, `/completions` (without `/v1`) and `/infill`.
//!
//! `tokens_predicted` is cumulative and includes the end-of-text token. It jumps after text was held back, so its
//! growth is an event's token count. Prompt progress is not a token. The last event has `stop: true`, usually without
//! text. A request can remove any field of the reply (`response_fields`).
//!
//! A gateway that strips `/v1` makes OpenAI's `/completions` look like this path; the events then decide.

use super::document_reply::PerChoiceCounts;
use super::fault::ErrorObject;
use super::openai::{LLAMACPP_PREFILL, millis};
use super::skeleton::Skeleton;
use super::{
    ChoiceCounters, Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, RequestShape,
    TokenIncrement, USUAL, believed, detect, finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::time::Gap;
use crate::measure::usage::Usage;

const NAME: &str = "llamacpp.completion";

pub(super) const DIALECT: Dialect = Dialect {
    name: NAME,
    route: "/completion",
    matches: |path| ["/completion", "/completions", "/infill"].iter().any(|end| path.ends_with(end)),
    request: REQUEST,
    prompt: &["input_extra", "input_prefix", "prompt", "input_suffix"],
    reader: |shape| detect::unless_told(shape, NAME, Box::new(LlamacppCompletionReader::new(shape))),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("n_predict", RequestField::MaxTokens),
    ("max_tokens", RequestField::MaxTokensElse),
    ("n_cmpl", RequestField::Choices),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("frequency_penalty", RequestField::FrequencyPenalty),
    ("presence_penalty", RequestField::PresencePenalty),
    ("seed", RequestField::Seed),
    ("top_k", RequestField::TopK),
];

/// One answer is an object; several answers are a list.
const REPLY: &[(&str, ReplyField)] = &[
    ("model", ReplyField::Model),
    ("stop_type", ReplyField::Finish),
    ("tokens_evaluated", ReplyField::Input),
    ("timings.cache_n", ReplyField::Cached),
    ("tokens_predicted", ReplyField::Total),
    ("[].model", ReplyField::Model),
    ("[].stop_type", ReplyField::Finish),
    ("[].tokens_evaluated", ReplyField::Input),
    ("[].timings.cache_n", ReplyField::Cached),
    ("[].tokens_predicted", ReplyField::Total),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
];

struct LlamacppCompletionReader {
    predicted: ChoiceCounters,
    shares: PerChoiceCounts,
    skeleton: Skeleton<LlamacppChunk<'static>>,
}

impl LlamacppCompletionReader {
    fn new(shape: &RequestShape) -> Self {
        Self {
            predicted: ChoiceCounters::default(),
            shares: PerChoiceCounts::new(shape),
            skeleton: Skeleton::default(),
        }
    }
}

/// Slots of the skeleton: values that matter and may vary between events.
const INDEX: u8 = 1;
const IDS: u8 = 2;
const PREDICTED: u8 = 3;
const EVALUATED: u8 = 4;
const CACHED: u8 = 5;

#[derive(Clone, Copy, Debug, Default)]
struct LlamacppChunk<'a> {
    index: u32,
    /// Whether the content is non-empty; `None` without the field.
    content: Option<bool>,
    ids: Option<u32>,
    probabilities: Option<u32>,
    stop: bool,
    stop_type: Option<&'a str>,
    model: Option<&'a str>,
    predicted: Option<u64>,
    evaluated: Option<u64>,
    cached: Option<u64>,
    progress: bool,
    prefill: Option<Gap>,
    fault: Option<ErrorObject<'a>>,
}

impl<'a> LlamacppChunk<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut parts = Self::default();
        walk.object(|key, walk| {
            match key {
                b"index" => parts.put(INDEX, walk.number_in(INDEX)?),
                b"content" => {
                    let shown = walk.shown()?;
                    parts.content = (shown != FieldState::Null).then(|| shown.is_content());
                }
                b"tokens" => parts.ids = walk.length_in(IDS)?,
                b"completion_probabilities" => parts.probabilities = walk.length()?,
                b"stop" => parts.stop = walk.raw()? == "true",
                b"stop_type" => parts.stop_type = walk.text()?,
                b"model" => parts.model = walk.text()?,
                b"tokens_predicted" => parts.put(PREDICTED, walk.number_in(PREDICTED)?),
                b"tokens_evaluated" => parts.put(EVALUATED, walk.number_in(EVALUATED)?),
                b"timings" => walk.object(|key, walk| {
                    match key {
                        b"cache_n" => parts.put(CACHED, walk.number_in(CACHED)?),
                        LLAMACPP_PREFILL => parts.prefill = millis(walk)?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"prompt_progress" => parts.progress = walk.shown()?.is_content(),
                b"error" => parts.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.is_at_end().then_some(parts)
    }

    /// Returns the state that later events may share; `None` for the last event.
    fn steady(&self) -> Option<LlamacppChunk<'static>> {
        let &Self { index, content, ids, probabilities, predicted, evaluated, cached, progress, .. } = self;
        let steady = LlamacppChunk {
            index,
            content,
            ids,
            probabilities,
            predicted,
            evaluated,
            cached,
            progress,
            ..LlamacppChunk::default()
        };
        (!self.stop && self.fault.is_none()).then_some(steady)
    }

    /// Applies the value of `slot` in an event that otherwise matches the learned one.
    fn put(&mut self, slot: u8, value: Option<u64>) {
        let count = believed(value);
        match slot {
            INDEX => self.index = count.and_then(|index| u32::try_from(index).ok()).unwrap_or(0),
            IDS => self.ids = value.and_then(|ids| u32::try_from(ids).ok()),
            PREDICTED => self.predicted = count,
            EVALUATED => self.evaluated = count,
            CACHED => self.cached = count,
            _ => {}
        }
    }
}

impl DialectReader for LlamacppCompletionReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if let Some(&parts) = self.skeleton.meaning_of(event, LlamacppChunk::put) {
            return self.emit_chunk(&parts, sink);
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(mut walk) = self.skeleton.walk(event.data) else { return sink.delta(0, Delta::Malformed) };
        let parts = LlamacppChunk::read(&mut walk);
        self.skeleton.parsed(event.data, walk, parts.as_ref().and_then(LlamacppChunk::steady));
        match parts {
            Some(parts) => self.emit_chunk(&parts, sink),
            None => sink.delta(0, Delta::Malformed),
        }
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.skeleton.recognize(bytes, LlamacppChunk::put)
    }
}

impl LlamacppCompletionReader {
    fn emit_chunk(&mut self, parts: &LlamacppChunk<'_>, sink: &mut dyn DeltaSink) {
        if let Some(fault) = parts.fault {
            return fault.emit(sink);
        }
        let choice = parts.index;
        let grown = parts.predicted.map(|total| {
            sink.delta(choice, Delta::Total(total));
            total.saturating_sub(self.predicted.set(choice, total).unwrap_or(0))
        });
        // The last event may repeat all tokens of the answer, so the counter takes precedence over the lists.
        let listed = [parts.ids, parts.probabilities].into_iter().flatten().find(|entries| *entries > 0);
        let tokens = grown.map(TokenIncrement::growth).or(listed.filter(|_| !parts.stop).map(TokenIncrement::listed));
        let shows = parts.content == Some(true);
        let held_back = parts.content.is_some() && tokens.is_none() && !parts.stop && !parts.progress;
        if shows {
            sink.delta(choice, Delta::Output { kind: OutputKind::Text, tokens });
        } else if held_back || tokens.is_some_and(|counted| counted.tokens > 0) {
            sink.delta(choice, Delta::Evidence { tokens });
        }
        let input = parts.evaluated.filter(|input| *input > 0);
        if input.is_some() && (parts.stop || !self.shares.know_prompt(choice)) {
            let own = Usage { input, cached: parts.cached, ..Usage::default() };
            sink.delta(0, Delta::Usage(self.shares.add(choice, own)));
        }
        if parts.stop {
            parts.prefill.into_iter().for_each(|prefill| sink.delta(choice, Delta::Prefill(prefill)));
            parts.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
            match parts.stop_type.and_then(|raw| Some((finish_reason(raw)?, raw))) {
                Some((reason, raw)) => sink.delta(choice, Delta::Finish(reason, raw)),
                None => sink.delta(choice, Delta::Done),
            }
        }
    }
}

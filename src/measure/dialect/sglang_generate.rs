//! SGLang's own `/generate`, which Dynamo serves too. LMDeploy's requests differ
//! ([`lmdeploy_generate`](super::lmdeploy_generate)).
//!
//! `completion_tokens` is cumulative. Text and ids are cumulative too, or increments
//! (`--incremental-streaming-output`, Dynamo, LMDeploy). They are cumulative if there are as many ids as tokens so
//! far, and increments if there are fewer. The text alone does not decide, and the first event is the same in both
//! modes.
//!
//! An event may add tokens without text, and the server may skip outputs. `index` separates several prompts or
//! several answers. A server without a tokenizer (`--skip-tokenizer-init`) sends no text: the ids are then the
//! answer.

use super::document_reply::PerChoiceCounts;
use super::fault::ErrorObject;
use super::skeleton::Skeleton;
use super::{
    ChoiceCounters, Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, RequestShape,
    TokenIncrement, USUAL, believed, finish_reason,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::JsonWalker;
use crate::measure::usage::Usage;

pub(super) const DIALECT: Dialect = Dialect {
    name: "sglang.generate",
    route: "/generate",
    request: REQUEST,
    prompt: &["text", "input_ids", "image_data", "audio_data", "video_data"],
    stored_keys: &["session_params"],
    reader: |shape| Box::new(SglangGenerateReader::new(shape)),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("sampling_params.max_new_tokens", RequestField::MaxTokens),
    ("sampling_params.n", RequestField::Choices),
    ("sampling_params.temperature", RequestField::Temperature),
    ("sampling_params.top_p", RequestField::TopP),
    ("sampling_params.frequency_penalty", RequestField::FrequencyPenalty),
    ("sampling_params.presence_penalty", RequestField::PresencePenalty),
    ("sampling_params.top_k", RequestField::TopK),
];

/// One prompt gets an object, several get a list.
pub(super) const REPLY: &[(&str, ReplyField)] = &[
    ("meta_info.id", ReplyField::Id),
    ("meta_info.finish_reason", ReplyField::Finish),
    ("meta_info.finish_reason.type", ReplyField::Finish),
    ("meta_info.prompt_tokens", ReplyField::Input),
    ("meta_info.cached_tokens", ReplyField::Cached),
    ("meta_info.completion_tokens", ReplyField::Total),
    ("meta_info.reasoning_tokens", ReplyField::Reasoning),
    ("[].meta_info.finish_reason", ReplyField::Finish),
    ("[].meta_info.finish_reason.type", ReplyField::Finish),
    ("[].meta_info.prompt_tokens", ReplyField::Input),
    ("[].meta_info.cached_tokens", ReplyField::Cached),
    ("[].meta_info.reasoning_tokens", ReplyField::Reasoning),
    ("[].meta_info.completion_tokens", ReplyField::Total),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
];

pub(super) struct SglangGenerateReader {
    /// Whether text and ids are increments; `None` until an event decides.
    increments: Option<bool>,
    tokens: ChoiceCounters,
    text: ChoiceCounters,
    ids: ChoiceCounters,
    shares: PerChoiceCounts,
    skeleton: Skeleton<SglangChunk<'static>>,
    identified: bool,
}

impl SglangGenerateReader {
    pub(super) fn new(shape: &RequestShape) -> Self {
        let counters = ChoiceCounters::default;
        let (tokens, text, ids) = (counters(), counters(), counters());
        let (shares, skeleton) = (PerChoiceCounts::new(shape), Skeleton::default());
        Self { increments: None, tokens, text, ids, shares, skeleton, identified: false }
    }

    /// For streams whose text and ids are always increments.
    pub(super) fn of_increments(shape: &RequestShape) -> Self {
        Self { increments: Some(true), ..Self::new(shape) }
    }
}

/// Slots of the skeleton: values that matter and may vary between events.
const INDEX: u8 = 1;
const TEXT: u8 = 2;
const IDS: u8 = 3;
const PROMPT: u8 = 4;
const TOKENS: u8 = 5;
const CACHED: u8 = 6;
const REASONING: u8 = 7;

#[derive(Clone, Copy, Debug, Default)]
struct SglangChunk<'a> {
    index: u32,
    /// Bytes of the text, escapes included; `None` from a server without a tokenizer, which sends no text.
    text: Option<u64>,
    ids: Option<u32>,
    id: Option<&'a str>,
    finish: Option<&'a str>,
    prompt: Option<u64>,
    tokens: Option<u64>,
    cached: Option<u64>,
    reasoning: Option<u64>,
    fault: Option<ErrorObject<'a>>,
}

impl<'a> SglangChunk<'a> {
    fn read(walk: &mut JsonWalker<'a>) -> Option<Self> {
        let mut parts = Self::default();
        walk.object(|key, walk| {
            match key {
                b"index" => parts.put(INDEX, walk.number_in(INDEX)?),
                b"text" => parts.text = walk.text_length_in(TEXT)?,
                b"output_ids" => parts.ids = walk.length_in(IDS)?,
                b"meta_info" => parts.meta_info(walk)?,
                b"error" => parts.fault = ErrorObject::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.is_at_end().then_some(parts)
    }

    /// Returns the state that later events may share; `None` if the event ends a choice or the stream.
    fn steady(&self) -> Option<SglangChunk<'static>> {
        let &Self { index, text, ids, id: _, finish, prompt, tokens, cached, reasoning, fault } = self;
        let parts =
            SglangChunk { index, text, ids, id: None, finish: None, prompt, tokens, cached, reasoning, fault: None };
        (finish.is_none() && fault.is_none()).then_some(parts)
    }

    /// Applies the value of `slot` in an event that otherwise matches the learned one.
    fn put(&mut self, slot: u8, value: Option<u64>) {
        let count = believed(value);
        match slot {
            INDEX => self.index = count.and_then(|index| u32::try_from(index).ok()).unwrap_or(0),
            TEXT => self.text = value,
            IDS => self.ids = value.and_then(|ids| u32::try_from(ids).ok()),
            PROMPT => self.prompt = count,
            TOKENS => self.tokens = count,
            CACHED => self.cached = count,
            REASONING => self.reasoning = count,
            _ => {}
        }
    }

    fn meta_info(&mut self, walk: &mut JsonWalker<'a>) -> Option<()> {
        walk.object(|key, walk| {
            match key {
                b"id" => self.id = walk.text()?,
                b"finish_reason" if walk.is_object() => walk.object(|key, walk| {
                    match key {
                        b"type" => self.finish = walk.text()?,
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"finish_reason" => self.finish = walk.text()?,
                b"prompt_tokens" => self.put(PROMPT, walk.number_in(PROMPT)?),
                b"completion_tokens" => self.put(TOKENS, walk.number_in(TOKENS)?),
                b"cached_tokens" => self.put(CACHED, walk.number_in(CACHED)?),
                b"reasoning_tokens" => self.put(REASONING, walk.number_in(REASONING)?),
                _ => walk.skip()?,
            }
            Some(())
        })
    }
}

impl SglangGenerateReader {
    /// The token count of an event, and whether it has text (or ids, from a server without text).
    fn growth(&mut self, parts: &SglangChunk<'_>) -> (Option<TokenIncrement>, bool) {
        let (before, listed) = (self.tokens.get(parts.index), parts.ids.map(u64::from));
        if let (None, Some(total), Some(listed)) = (self.increments, parts.tokens, listed) {
            self.increments = match listed {
                listed if listed < total => Some(true),
                _ if before > 0 => Some(false),
                _ => None,
            };
        }
        let increments = self.increments == Some(true);
        let grown = parts.tokens.map(|total| {
            self.tokens.set(parts.index, total);
            TokenIncrement::growth(total.saturating_sub(before))
        });
        let listed = listed.map(|listed| {
            let before = self.ids.set(parts.index, listed).filter(|_| !increments).unwrap_or(0);
            TokenIncrement::listed(u32::try_from(listed.saturating_sub(before)).unwrap_or(u32::MAX))
        });
        let shows = match parts.text {
            Some(text) if increments => text > 0,
            Some(text) => text > self.text.set(parts.index, text).unwrap_or(0),
            None => listed.is_some_and(|counted| counted.tokens > 0),
        };
        (grown.or(listed), shows)
    }
}

impl DialectReader for SglangGenerateReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if let Some(&parts) = self.skeleton.meaning_of(event, SglangChunk::put) {
            return self.emit_chunk(&parts, sink);
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(mut walk) = self.skeleton.walk(event.data) else { return sink.delta(0, Delta::Malformed) };
        let parts = SglangChunk::read(&mut walk);
        self.skeleton.parsed(event.data, walk, parts.as_ref().and_then(SglangChunk::steady));
        match parts {
            Some(parts) => self.emit_chunk(&parts, sink),
            None => sink.delta(0, Delta::Malformed),
        }
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.skeleton.recognize(bytes, SglangChunk::put)
    }
}

impl SglangGenerateReader {
    fn emit_chunk(&mut self, parts: &SglangChunk<'_>, sink: &mut dyn DeltaSink) {
        if let Some(fault) = parts.fault {
            return fault.emit(sink);
        }
        if let Some(id) = parts.id
            && !std::mem::replace(&mut self.identified, true)
        {
            sink.delta(0, Delta::Id(id));
        }
        let (tokens, shows) = self.growth(parts);
        if let Some(total) = parts.tokens {
            sink.delta(parts.index, Delta::Total(total));
        }
        if shows {
            sink.delta(parts.index, Delta::Output { kind: OutputKind::Text, tokens });
        } else if tokens.is_some_and(|counted| counted.tokens > 0) {
            sink.delta(parts.index, Delta::Evidence { tokens });
        }
        // The output count is a running counter.
        let own = Usage { input: parts.prompt, cached: parts.cached, reasoning: parts.reasoning, ..Usage::default() };
        let usage = self.shares.add(parts.index, own);
        if usage.input.unwrap_or(0) > 0 {
            sink.delta(0, Delta::Usage(usage));
        }
        if let Some(raw) = parts.finish
            && let Some(reason) = finish_reason(raw)
        {
            sink.delta(parts.index, Delta::Finish(reason, raw));
        }
    }
}

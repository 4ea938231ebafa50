//! Common parts of the OpenAI dialects: the event envelope, usage, errors and request fields.
//!
//! Each event is walked once and only the relevant fields are read. An extra or odd field cannot make an event
//! unreadable, and nothing is copied or unescaped.

use super::document_reply::PerChoiceCounts;
use super::fault::ErrorObject;
use super::openai_usage::{UsageCounts, usage};
use super::skeleton::Skeleton;
use super::{
    ChoiceCounters, Delta, DeltaSink, OutputKind, ReplyField, RequestField, RequestShape, TokenIncrement,
    finish_reason, segment_of,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::JsonWalker;
use crate::measure::time::Gap;
use crate::measure::usage::Usage;

/// Choices per event beyond the first. Real requests stay far below this limit, and each choice takes memory.
const MAX_CHOICES: usize = 128;
/// Longest prefill that is believed.
const MAX_PREFILL_MILLIS: f64 = 3_600_000.0;

#[derive(Default)]
struct OpenAiChunk<'a> {
    id: Option<&'a str>,
    model: Option<&'a str>,
    first: Option<OpenAiChoice<'a>>,
    /// Engines send one choice per event; further choices allocate.
    more: Vec<OpenAiChoice<'a>>,
    usage: Option<UsageCounts>,
    prefill: Option<Gap>,
    fault: Option<ErrorObject<'a>>,
    error_type: Option<&'a str>,
    /// Prompt length on the first event, sent by vLLM if the request asks for ids.
    prompt: Option<u32>,
}

/// One choice of an event, in the terms common to chat and completions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenAiChoice<'a> {
    pub(super) index: u32,
    pub(super) output: Option<OutputKind>,
    /// Proof of a token without text.
    pub(super) evidence: bool,
    pub(super) finish: Option<&'a str>,
    /// Number of generated ids.
    pub(super) ids: Option<u32>,
    /// Length of the log-probability list, which has one entry per token.
    pub(super) logprobs: Option<u32>,
    /// Prompt length; completions report it per choice.
    prompt: Option<u32>,
}

impl<'a> OpenAiChoice<'a> {
    /// Takes a field common to the dialects; skips any other.
    pub(super) fn field(&mut self, key: &[u8], walk: &mut JsonWalker<'a>) -> Option<()> {
        match key {
            b"index" => self.index = index(walk.number_in(INDEX)?),
            b"finish_reason" => self.finish = walk.text()?,
            // vLLM uses `token_ids`, LMDeploy `output_ids`.
            b"token_ids" | b"output_ids" if walk.is_array() => self.ids = walk.length_in(IDS)?,
            b"prompt_token_ids" if walk.is_array() => self.prompt = walk.length()?,
            // Chat nests them under `content` and `refusal`; completions have a list `tokens`.
            b"logprobs" if walk.is_object() => walk.object(|key, walk| {
                match key {
                    b"content" | b"refusal" | b"tokens" if walk.is_array() => {
                        self.logprobs = self.logprobs.or(walk.length()?.filter(|entries| *entries > 0));
                    }
                    _ => walk.skip()?,
                }
                Some(())
            })?,
            _ => walk.skip()?,
        }
        Some(())
    }

    /// True if the effect of a steady choice is certain: with an empty list of ids, other fields decide.
    fn is_sure(&self) -> bool {
        self.ids != Some(0)
    }

    /// Token count from the ids, else from the growth of the running counter, else from the log probabilities.
    fn counted(&self, growth: Option<TokenIncrement>) -> Option<TokenIncrement> {
        self.ids.map(TokenIncrement::listed).or(growth).or(self.logprobs.map(TokenIncrement::listed))
    }
}

/// Reads one choice in a dialect's format.
pub(super) type ReadChoice = for<'a> fn(&mut JsonWalker<'a>) -> Option<OpenAiChoice<'a>>;

impl<'a> OpenAiChunk<'a> {
    fn read(walk: &mut JsonWalker<'a>, choice: ReadChoice) -> Option<Self> {
        let mut chunk = Self::default();
        walk.object(|key, walk| {
            match key {
                // vLLM's token API uses `request_id`.
                b"id" | b"request_id" => chunk.id = walk.text()?,
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
                b"usage" if walk.is_object() => chunk.usage = Some(usage(walk)?),
                // vLLM's begins when the request is scheduled.
                b"metrics" if walk.is_object() => chunk.prefill = prefill(walk, b"time_to_first_token_ms")?,
                b"timings" if walk.is_object() => chunk.prefill = prefill(walk, LLAMACPP_PREFILL)?,
                b"error" => chunk.fault = ErrorObject::read(walk)?,
                b"error_type" => chunk.error_type = walk.text()?,
                b"prompt_token_ids" if walk.is_array() => chunk.prompt = walk.length()?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.is_at_end().then_some(chunk)
    }

    /// Returns the state that later events may share, if this event has one token-bearing choice and no once-only
    /// fields.
    fn steady(&self) -> Option<SteadyChunk> {
        let only = self.first.as_ref().filter(|_| self.more.is_empty())?;
        let &OpenAiChoice { index, output, evidence, finish, ids, logprobs, prompt } = only;
        let comes_once = finish.is_some() || self.fault.is_some() || prompt.or(self.prompt).is_some();
        let choice = OpenAiChoice { index, output, evidence, finish: None, ids, logprobs, prompt: None };
        let steady = SteadyChunk { choice, usage: self.usage };
        Some(steady).filter(|steady| !comes_once && (output.is_some() || evidence) && steady.choice.is_sure())
    }
}

/// The relevant fields of an event with one token-bearing choice, without the once-only fields of a stream.
#[derive(Clone, Copy, Debug)]
struct SteadyChunk {
    choice: OpenAiChoice<'static>,
    usage: Option<UsageCounts>,
}

impl SteadyChunk {
    /// Applies the value of `slot` in an event that otherwise matches the learned one.
    fn put(&mut self, slot: u8, value: Option<u64>) {
        match slot {
            INDEX => self.choice.index = index(value),
            IDS => self.choice.ids = value.and_then(|ids| u32::try_from(ids).ok()),
            count => self.usage.iter_mut().for_each(|usage| usage.set(count, value)),
        }
    }
}

/// A choice index; 0 if the value is not one.
fn index(number: Option<u64>) -> u32 {
    number.and_then(|index| u32::try_from(index).ok()).unwrap_or(0)
}

/// Slots of the skeleton: values that matter and may vary between events, in addition to those of [`UsageCounts`].
const INDEX: u8 = 1;
const IDS: u8 = 2;

pub(super) struct OpenAiStream {
    /// Usage is a running counter from zero: the request asked for continuous usage, or a choice has reported twice.
    continuous: bool,
    /// Cumulative completion tokens per choice.
    reported: ChoiceCounters,
    finished: Vec<u32>,
    shares: PerChoiceCounts,
    /// The log probabilities may cover the echoed prompt, so they are not counted.
    echoes: bool,
    skeleton: Skeleton<SteadyChunk>,
    identified: bool,
}

impl OpenAiStream {
    pub(super) fn new(shape: &RequestShape) -> Self {
        Self {
            continuous: shape.continuous_usage,
            reported: ChoiceCounters::default(),
            finished: Vec::new(),
            shares: PerChoiceCounts::new(shape),
            echoes: false,
            skeleton: Skeleton::default(),
            identified: false,
        }
    }

    /// For completions, where an echoed prompt arrives with the first tokens.
    pub(super) fn with_prompt(shape: &RequestShape) -> Self {
        Self { echoes: shape.echo, ..Self::new(shape) }
    }

    pub(super) fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.skeleton.recognize(bytes, SteadyChunk::put)
    }

    pub(super) fn event(&mut self, event: &Event<'_>, choice: ReadChoice, sink: &mut dyn DeltaSink) {
        match event.name {
            b"" | b"message" | b"error" => {}
            // Side channels (tool dispatch, ids, progress) repeat or announce content; they contain no tokens.
            _ => return,
        }
        let is_error = event.name == b"error";
        if !is_error
            && let Some(&SteadyChunk { choice, usage }) = self.skeleton.meaning_of(event, SteadyChunk::put)
            && choice.is_sure()
        {
            return match choice {
                OpenAiChoice { index, output: Some(kind), ids: None, logprobs: None, .. } if usage.is_none() => {
                    sink.delta(index, Delta::Output { kind, tokens: None });
                }
                choice => self.choices((&choice, &[]), usage.and_then(UsageCounts::report), sink),
            };
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(mut walk) = self.skeleton.walk(event.data) else { return sink.delta(0, Delta::Malformed) };
        let mut chunk = OpenAiChunk::read(&mut walk, choice);
        if let Some(chunk) = chunk.as_mut().filter(|_| self.echoes) {
            chunk.first.iter_mut().chain(&mut chunk.more).for_each(|choice| choice.logprobs = None);
        }
        let steady = chunk.as_ref().filter(|_| !is_error).and_then(OpenAiChunk::steady);
        self.skeleton.parsed(event.data, walk, steady);
        let Some(mut chunk) = chunk else { return sink.delta(0, Delta::Malformed) };
        self.identify(&chunk, sink);
        let named = || is_error.then(|| ErrorObject::named(event.data));
        if let Some(fault) = chunk.fault.or_else(named) {
            fault.of_kind(chunk.error_type).emit(sink);
            // Empty text beside an error is not a token.
            chunk.first.iter_mut().chain(&mut chunk.more).for_each(|choice| choice.evidence = false);
        }
        self.prompt(&chunk, sink);
        // On request llama.cpp repeats it with each token.
        let is_last = chunk.first.as_ref().is_none_or(|choice| choice.finish.is_some());
        chunk.prefill.filter(|_| is_last).into_iter().for_each(|prefill| sink.delta(0, Delta::Prefill(prefill)));
        let usage = chunk.usage.and_then(UsageCounts::report);
        match (&chunk.first, usage) {
            (Some(first), usage) => self.choices((first, &chunk.more), usage, sink),
            (None, Some(usage)) => sink.delta(0, Delta::Usage(usage)),
            (None, None) => {}
        }
    }

    fn identify(&mut self, chunk: &OpenAiChunk<'_>, sink: &mut dyn DeltaSink) {
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

    /// Reports the prompt length from the prompt's ids.
    fn prompt(&mut self, chunk: &OpenAiChunk<'_>, sink: &mut dyn DeltaSink) {
        let of_choices = chunk.first.iter().chain(&chunk.more).map(|choice| (choice.index, choice.prompt));
        for (choice, length) in of_choices.chain([(0, chunk.prompt)]) {
            if let Some(length) = length {
                let own = Usage { input: Some(length.into()), ..Usage::default() };
                sink.delta(0, Delta::Usage(self.shares.add(choice, own)));
            }
        }
    }

    /// Takes the choices of an event, and its usage.
    fn choices(
        &mut self,
        (first, more): (&OpenAiChoice<'_>, &[OpenAiChoice<'_>]),
        usage: Option<Usage>,
        sink: &mut dyn DeltaSink,
    ) {
        let single = more.is_empty();
        let total = usage.and_then(|usage| usage.output).filter(|_| single);
        let (mut finished, mut all_over) = (false, true);
        for choice in std::iter::once(first).chain(more) {
            let over = self.finished.contains(&choice.index);
            let growth = total.filter(|_| !over).and_then(|total| self.growth(choice.index, total));
            if let (Some(total), Some(_)) = (total, growth) {
                self.continuous = true;
                sink.delta(choice.index, Delta::Total(total));
            }
            all_over &= over;
            let tokens = choice.counted(growth);
            if let Some(kind) = choice.output {
                sink.delta(choice.index, Delta::Output { kind, tokens });
            } else if choice.evidence || tokens.is_some_and(|counted| counted.tokens > 0) {
                sink.delta(choice.index, Delta::Evidence { tokens });
            }
            if let Some(raw) = choice.finish
                && let Some(reason) = finish_reason(raw)
            {
                finished = true;
                if !over && self.finished.len() < MAX_CHOICES {
                    self.finished.push(choice.index);
                }
                sink.delta(choice.index, Delta::Finish(reason, raw));
            }
        }
        if let Some(usage) = usage {
            // Usage beside a choice covers that choice; usage after the last choice's end covers the whole reply.
            let usage = if single && !all_over { self.shares.add(first.index, usage) } else { usage };
            match (!all_over && self.continuous, finished || all_over) {
                // A running counter is not the total, but it does contain the prompt length.
                (true, _) => sink.delta(0, Delta::Usage(Usage { output: None, reasoning: None, ..usage })),
                (false, true) => sink.delta(0, Delta::Usage(usage)),
                (false, false) => {}
            }
        }
    }

    /// Growth of the choice's own counter. Usage counts as a running counter only if the request asked for it on
    /// every event, or if this choice has reported before. A single event with both text and usage proves nothing,
    /// because several servers put the final usage there.
    fn growth(&mut self, choice: u32, total: u64) -> Option<TokenIncrement> {
        let before = self.reported.set(choice, total).or(self.continuous.then_some(0));
        Some(TokenIncrement::growth(total.saturating_sub(before?)))
    }
}

/// Key of llama.cpp's prefill in its `timings`.
pub(super) const LLAMACPP_PREFILL: &[u8] = b"prompt_ms";

/// Takes an object, and reads its `key` as milliseconds.
fn prefill(walk: &mut JsonWalker<'_>, key: &[u8]) -> Option<Option<Gap>> {
    let mut prefill = None;
    walk.object(|name, walk| {
        match name == key {
            true => prefill = millis(walk)?,
            false => walk.skip()?,
        }
        Some(())
    })?;
    Some(prefill)
}

/// Takes any value. Reads a number of milliseconds above 0 and up to an hour; `None` inside for anything else.
pub(super) fn millis(walk: &mut JsonWalker<'_>) -> Option<Option<Gap>> {
    let millis = walk.raw()?.parse().ok().filter(|millis: &f64| *millis > 0.0 && *millis <= MAX_PREFILL_MILLIS);
    Some(millis.map(|millis| Gap::from_nanos((millis * 1e6) as u64)))
}

/// Azure's deployment name is the model.
pub(super) fn path(shape: &mut RequestShape, path: &str) {
    shape.model = segment_of(path, "/deployments/", '/');
}

/// Request fields that affect the work.
pub(super) const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    // If both are present the newer name wins, as in vLLM.
    ("max_completion_tokens", RequestField::MaxTokens),
    ("max_tokens", RequestField::MaxTokensElse),
    ("n", RequestField::Choices),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("frequency_penalty", RequestField::FrequencyPenalty),
    ("presence_penalty", RequestField::PresencePenalty),
    ("seed", RequestField::Seed),
    ("top_k", RequestField::TopK),
    ("reasoning_effort", RequestField::ReasoningLevel),
    ("response_format.type", RequestField::OutputType),
    ("stream_options.include_usage", RequestField::IncludeUsage),
    ("stream_options.continuous_usage_stats", RequestField::ContinuousUsage),
    ("echo", RequestField::Echo),
];

/// Fields of a reply in one JSON document.
pub(super) const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("choices[].finish_reason", ReplyField::Finish),
    ("usage.prompt_tokens", ReplyField::Input),
    ("usage.completion_tokens", ReplyField::Output),
    ("usage.prompt_tokens_details.cached_tokens", ReplyField::Cached),
    ("usage.prompt_cache_hit_tokens", ReplyField::Cached),
    ("usage.prompt_tokens_details.created_cache_tokens", ReplyField::CacheWrite),
    ("usage.completion_tokens_details.reasoning_tokens", ReplyField::Reasoning),
    ("usage.reasoning_tokens", ReplyField::Reasoning),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
    // TGI's error class.
    ("error_type", ReplyField::Kind),
    // Older vLLM releases put the error itself at the top level.
    ("object", ReplyField::Mark),
    ("message", ReplyField::Message),
    ("type", ReplyField::Kind),
    ("code", ReplyField::Code),
];

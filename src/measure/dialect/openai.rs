//! What the OpenAI dialects share: the envelope of an event, usage, errors, and the fields of a request.
//!
//! An event is walked once and only what matters is looked at, so that a server's extra or odd field cannot make it
//! unreadable, and nothing is copied or unescaped.

use std::ops::Range;

use super::fault::Fault;
use super::reply::{Shares, is_report};
use super::skeleton::Skeleton;
use super::{Asked, Counted, Counters, Delta, Field, OutputKind, Sink, believed, finish_reason, segment_of};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::record::Usage;
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
    error_type: Option<&'a str>,
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
    /// The length of its prompt: completions have it here.
    prompt: Option<u32>,
}

impl<'a> Choice<'a> {
    /// Takes a field that the dialects share; anything else is skipped.
    pub(super) fn field(&mut self, key: &[u8], walk: &mut Walk<'a>) -> Option<()> {
        match key {
            b"index" => self.index = walk.number()?.and_then(|index| u32::try_from(index).ok()).unwrap_or(0),
            b"finish_reason" => self.finish = walk.text()?,
            // vLLM says `token_ids`, LMDeploy `output_ids`.
            b"token_ids" | b"output_ids" if walk.is_array() => self.ids = walk.length()?,
            b"prompt_token_ids" if walk.is_array() => self.prompt = walk.length()?,
            // Chat has them under `content` (and `refusal`), completions list the `tokens`.
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

    /// Its tokens: by its ids, else by how far the running counter has grown, else by the log probabilities.
    fn counted(&self, growth: Option<Counted>) -> Option<Counted> {
        self.ids.map(Counted::listed).or(growth).or(self.logprobs.map(Counted::listed))
    }
}

/// Reads one choice of a dialect.
pub(super) type ReadChoice = for<'a> fn(&mut Walk<'a>) -> Option<Choice<'a>>;

impl<'a> Chunk<'a> {
    fn read(data: &'a [u8], choice: ReadChoice) -> Option<Self> {
        let mut chunk = Self::default();
        let mut walk = Walk::new(data)?;
        walk.object(|key, walk| {
            match key {
                // vLLM's token API says `request_id`.
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
                b"usage" if walk.is_object() => chunk.usage = usage(walk)?,
                b"error" => chunk.fault = Fault::read(walk)?,
                b"error_type" => chunk.error_type = walk.text()?,
                b"prompt_token_ids" if walk.is_array() => chunk.prompt = walk.length()?,
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
                    b"cached_tokens" => usage.cached = believed(walk.number()?).or(usage.cached),
                    _ => walk.skip()?,
                }
                Some(())
            })?,
            b"completion_tokens_details" => walk.object(|key, walk| {
                match key {
                    b"reasoning_tokens" => usage.reasoning = believed(walk.number()?).or(usage.reasoning),
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

/// The state of one stream.
pub(super) struct Stream {
    /// Usage stands on every event, because it was asked for or as a choice has shown: it is a counter, from zero.
    continuous: bool,
    /// Cumulative completion tokens that each choice has reported.
    reported: Counters,
    /// Choices that are finished.
    finished: Vec<u32>,
    shares: Shares,
    /// The log probabilities may be the prompt's, and count nothing.
    echoes: bool,
    skeleton: Skeleton<(u32, OutputKind)>,
    identified: bool,
}

impl Stream {
    pub(super) fn new(shape: &RequestShape) -> Self {
        Self {
            continuous: shape.continuous_usage,
            reported: Counters::default(),
            finished: Vec::new(),
            shares: Shares::new(shape),
            echoes: false,
            skeleton: Skeleton::default(),
            identified: false,
        }
    }

    /// The same where what was asked to be echoed comes with the first tokens: of completions.
    pub(super) fn with_prompt(shape: &RequestShape) -> Self {
        Self { echoes: shape.echo, ..Self::new(shape) }
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
        let Some(mut chunk) = Chunk::read(event.data, choice) else { return sink.delta(0, Delta::Malformed) };
        if self.echoes {
            chunk.first.iter_mut().chain(&mut chunk.more).for_each(|choice| choice.logprobs = None);
        }
        self.identify(&chunk, sink);
        let named = || (event.name == b"error").then(|| Fault::named(event.data));
        if let Some(fault) = chunk.fault.or_else(named) {
            fault.of_kind(chunk.error_type).tell(sink);
        }
        self.prompt(&chunk, sink);
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

    /// What the ids of the prompts tell.
    fn prompt(&mut self, chunk: &Chunk<'_>, sink: &mut dyn Sink) {
        let of_choices = chunk.first.iter().chain(&chunk.more).map(|choice| (choice.index, choice.prompt));
        for (choice, length) in of_choices.chain([(0, chunk.prompt)]) {
            if let Some(length) = length {
                let own = Usage { input: Some(length.into()), ..Usage::default() };
                sink.delta(0, Delta::Usage(self.shares.add(choice, own)));
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
        let (mut finished, mut all_over) = (false, true);
        for choice in std::iter::once(only).chain(&chunk.more) {
            let over = self.finished.contains(&choice.index);
            let growth = total.filter(|_| !over).and_then(|total| self.growth(choice.index, total));
            if let (Some(total), Some(_)) = (total, growth) {
                self.continuous = true;
                sink.delta(choice.index, Delta::Total(total));
            }
            all_over &= over;
            let tokens = choice.counted(growth);
            if let Some((kind, _)) = choice.output {
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
        if let Some(usage) = chunk.usage {
            // Beside a choice stand its own counts, and after its end those of the whole reply.
            let usage = if single && !all_over { self.shares.add(only.index, usage) } else { usage };
            match (!all_over && self.continuous, finished || all_over) {
                // A running counter is not the total; it does tell the prompt's size.
                (true, _) => sink.delta(0, Delta::Usage(Usage { output: None, reasoning: None, ..usage })),
                (false, true) => sink.delta(0, Delta::Usage(usage)),
                (false, false) => {}
            }
        } else if let (Some((kind, Some(text))), true, None, None) = (&only.output, single, only.finish, &chunk.fault)
            && only.counted(None).is_none()
        {
            self.skeleton.learn(data, text.clone(), chunk.padding.clone(), (only.index, *kind));
        }
    }

    /// How far the choice's own counter has grown, where usage may be read as a counter at all: if it was asked for
    /// on every event, or if the same choice has reported before. One event with both text and usage proves nothing;
    /// several servers put the final usage there.
    fn growth(&mut self, choice: u32, total: u64) -> Option<Counted> {
        let before = self.reported.set(choice, total).or(self.continuous.then_some(0));
        Some(Counted::growth(total.saturating_sub(before?)))
    }
}

/// Azure's deployment is its model.
pub(super) fn path(shape: &mut RequestShape, path: &str) {
    shape.model = segment_of(path, "/deployments/", '/');
}

/// The request fields that shape the work.
pub(super) const REQUEST: &[(&str, Asked)] = &[
    ("model", Asked::Model),
    ("stream", Asked::Stream),
    // Where both stand the newer name wins, as it does in vLLM.
    ("max_completion_tokens", Asked::MaxTokens),
    ("max_tokens", Asked::MaxTokensElse),
    ("n", Asked::Choices),
    ("temperature", Asked::Temperature),
    ("top_p", Asked::TopP),
    ("frequency_penalty", Asked::FrequencyPenalty),
    ("presence_penalty", Asked::PresencePenalty),
    ("seed", Asked::Seed),
    ("stream_options.include_usage", Asked::IncludeUsage),
    ("stream_options.continuous_usage_stats", Asked::ContinuousUsage),
    ("echo", Asked::Echo),
];

/// A reply in one JSON document.
pub(super) const REPLY: &[(&str, Field)] = &[
    ("id", Field::Id),
    ("model", Field::Model),
    ("choices[].finish_reason", Field::Finish),
    ("usage.prompt_tokens", Field::Input),
    ("usage.completion_tokens", Field::Output),
    ("usage.prompt_tokens_details.cached_tokens", Field::Cached),
    ("usage.prompt_cache_hit_tokens", Field::Cached),
    ("usage.completion_tokens_details.reasoning_tokens", Field::Reasoning),
    ("usage.reasoning_tokens", Field::Reasoning),
    ("error", Field::Error),
    ("error.message", Field::Error),
    ("error.type", Field::ErrorKind),
    ("error.code", Field::ErrorCode),
    // TGI.
    ("error_type", Field::Kind),
    // Older releases of vLLM put the error itself in the reply.
    ("object", Field::Mark),
    ("message", Field::Message),
    ("type", Field::Kind),
    ("code", Field::Code),
];

//! llama.cpp's own `/completion`, `/completions` (without `/v1`) and `/infill`.
//!
//! `tokens_predicted` is cumulative and counts the end of the text too; it jumps where text was held back, so that its
//! growth is the tokens of an event. Progress of the prompt is no token. The last event says `stop: true`, usually
//! without text. A request can remove any field of the reply (`response_fields`).
//!
//! A gateway that takes `/v1` off the path makes OpenAI's `/completions` look like this one: then the events tell.

use super::fault::Fault;
use super::reply::Shares;
use super::skeleton::Skeleton;
use super::{
    Asked, Counted, Counters, Delta, Dialect, Field, OutputKind, Reader, Sink, USUAL, believed, finish_reason,
    recognize,
};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::record::Usage;
use crate::measure::shape::RequestShape;

const NAME: &str = "llamacpp.completion";

pub(super) const DIALECT: Dialect = Dialect {
    name: NAME,
    route: "/completion",
    matches: |path| ["/completion", "/completions", "/infill"].iter().any(|end| path.ends_with(end)),
    request: REQUEST,
    prompt: &["input_extra", "input_prefix", "prompt", "input_suffix"],
    reader: |shape| recognize::unless_told(shape, NAME, Box::new(Completion::new(shape))),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, Asked)] = &[
    ("model", Asked::Model),
    ("stream", Asked::Stream),
    ("n_predict", Asked::MaxTokens),
    ("max_tokens", Asked::MaxTokensElse),
    ("n_cmpl", Asked::Choices),
    ("temperature", Asked::Temperature),
    ("top_p", Asked::TopP),
    ("frequency_penalty", Asked::FrequencyPenalty),
    ("presence_penalty", Asked::PresencePenalty),
    ("seed", Asked::Seed),
];

/// One answer is an object, several are a list.
const REPLY: &[(&str, Field)] = &[
    ("model", Field::Model),
    ("stop_type", Field::Finish),
    ("tokens_evaluated", Field::Input),
    ("timings.cache_n", Field::Cached),
    ("tokens_predicted", Field::Total),
    ("[].model", Field::Model),
    ("[].stop_type", Field::Finish),
    ("[].tokens_evaluated", Field::Input),
    ("[].timings.cache_n", Field::Cached),
    ("[].tokens_predicted", Field::Total),
    ("error", Field::Error),
    ("error.message", Field::Error),
    ("error.type", Field::ErrorKind),
    ("error.code", Field::ErrorCode),
];

struct Completion {
    predicted: Counters,
    shares: Shares,
    skeleton: Skeleton<Parts<'static>>,
}

impl Completion {
    fn new(shape: &RequestShape) -> Self {
        Self { predicted: Counters::default(), shares: Shares::new(shape), skeleton: Skeleton::default() }
    }
}

/// The values of an event that mean something and may vary: slots of its skeleton.
const INDEX: u8 = 1;
const IDS: u8 = 2;
const PREDICTED: u8 = 3;
const EVALUATED: u8 = 4;
const CACHED: u8 = 5;

/// What matters of one event.
#[derive(Clone, Copy, Debug, Default)]
struct Parts<'a> {
    index: u32,
    /// Whether its content shows something, if it has one.
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
    fault: Option<Fault<'a>>,
}

impl<'a> Parts<'a> {
    fn read(walk: &mut Walk<'a>) -> Option<Self> {
        let mut parts = Self::default();
        walk.object(|key, walk| {
            match key {
                b"index" => parts.put(INDEX, walk.number_in(INDEX)?),
                b"content" => {
                    let shown = walk.shown()?;
                    parts.content = (shown != Shown::Null).then(|| shown.is_content());
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
                        _ => walk.skip()?,
                    }
                    Some(())
                })?,
                b"prompt_progress" => parts.progress = walk.shown()?.is_content(),
                b"error" => parts.fault = Fault::read(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        walk.is_at_end().then_some(parts)
    }

    /// What the next events may share of it, unless it is the last.
    fn steady(&self) -> Option<Parts<'static>> {
        let &Self { index, content, ids, probabilities, predicted, evaluated, cached, progress, .. } = self;
        let steady =
            Parts { index, content, ids, probabilities, predicted, evaluated, cached, progress, ..Parts::default() };
        (!self.stop && self.fault.is_none()).then_some(steady)
    }

    /// An event that differs from this one in the value of `slot`.
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

impl Reader for Completion {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        if let Some(&parts) = self.skeleton.meaning_of(event.data, Parts::put) {
            return self.tell(&parts, sink);
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        let Some(mut walk) = self.skeleton.walk(event.data) else { return sink.delta(0, Delta::Malformed) };
        let parts = Parts::read(&mut walk);
        self.skeleton.parsed(event.data, walk, parts.as_ref().and_then(Parts::steady));
        match parts {
            Some(parts) => self.tell(&parts, sink),
            None => sink.delta(0, Delta::Malformed),
        }
    }
}

impl Completion {
    fn tell(&mut self, parts: &Parts<'_>, sink: &mut dyn Sink) {
        if let Some(fault) = parts.fault {
            return fault.tell(sink);
        }
        let choice = parts.index;
        let grown = parts.predicted.map(|total| {
            sink.delta(choice, Delta::Total(total));
            total.saturating_sub(self.predicted.set(choice, total).unwrap_or(0))
        });
        // The last event may list all tokens of the answer again: the counter goes before the lists.
        let listed = [parts.ids, parts.probabilities].into_iter().flatten().find(|entries| *entries > 0);
        let tokens = grown.map(Counted::growth).or(listed.filter(|_| !parts.stop).map(Counted::listed));
        let shows = parts.content == Some(true);
        let held_back = parts.content.is_some() && tokens.is_none() && !parts.stop && !parts.progress;
        if shows {
            sink.delta(choice, Delta::Output { kind: OutputKind::Text, tokens });
        } else if held_back || tokens.is_some_and(|counted| counted.tokens > 0) {
            sink.delta(choice, Delta::Evidence { tokens });
        }
        let input = parts.evaluated.filter(|input| *input > 0);
        if input.is_some() && (parts.stop || !self.shares.know_prompt(choice)) {
            let own = Usage { input, cached: parts.cached, output: None, reasoning: None };
            sink.delta(0, Delta::Usage(self.shares.add(choice, own)));
        }
        if parts.stop {
            parts.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
            match parts.stop_type.and_then(|raw| Some((finish_reason(raw)?, raw))) {
                Some((reason, raw)) => sink.delta(choice, Delta::Finish(reason, raw)),
                None => sink.delta(choice, Delta::Done),
            }
        }
    }
}

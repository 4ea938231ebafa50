//! vLLM's `/inference/v1/generate`: token ids in, token ids out. Dynamo serves it too.
//!
//! The envelope is that of OpenAI's completions. The ids of each event are increments, and exact; where no text was asked
//! for they are the answer.

use super::openai::{Choice, Stream};
use super::{Asked, Dialect, Field, OutputKind, Reader, Sink, USUAL};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm.generate",
    route: "/inference/v1/generate",
    matches: |path| path.ends_with("/inference/v1/generate"),
    request: REQUEST,
    prompt: &["token_ids"],
    reader: |shape| Box::new(Generate(Stream::new(shape))),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, Asked)] = &[
    ("model", Asked::Model),
    ("stream", Asked::Stream),
    ("sampling_params.max_tokens", Asked::MaxTokens),
    ("sampling_params.n", Asked::Choices),
    ("sampling_params.temperature", Asked::Temperature),
    ("sampling_params.top_p", Asked::TopP),
    ("sampling_params.frequency_penalty", Asked::FrequencyPenalty),
    ("sampling_params.presence_penalty", Asked::PresencePenalty),
    ("sampling_params.seed", Asked::Seed),
    ("stream_options.include_usage", Asked::IncludeUsage),
    ("stream_options.continuous_usage_stats", Asked::ContinuousUsage),
];

/// Without a usage the ids count.
const REPLY: &[(&str, Field)] = &[
    ("request_id", Field::Id),
    ("model", Field::Model),
    ("choices[].finish_reason", Field::Finish),
    ("choices[].token_ids[]", Field::Token),
    ("usage.prompt_tokens", Field::Input),
    ("usage.completion_tokens", Field::Output),
    ("usage.prompt_tokens_details.cached_tokens", Field::Cached),
    ("usage.completion_tokens_details.reasoning_tokens", Field::Reasoning),
    ("error", Field::Error),
    ("error.message", Field::Error),
    ("error.type", Field::ErrorKind),
    ("error.code", Field::ErrorCode),
];

struct Generate(Stream);

impl Reader for Generate {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        self.0.event(event, choice, sink);
    }
}

fn choice<'a>(walk: &mut Walk<'a>) -> Option<Choice<'a>> {
    let (mut choice, mut text) = (Choice::default(), Shown::Null);
    walk.object(|key, walk| match key {
        b"text" => {
            text = walk.shown()?;
            Some(())
        }
        _ => choice.field(key, walk),
    })?;
    let has_ids = choice.ids.is_some_and(|ids| ids > 0);
    choice.output = match text {
        Shown::String(_) => Some(OutputKind::Text),
        Shown::Null if has_ids => Some(OutputKind::Text),
        Shown::Null | Shown::Empty | Shown::Other => None,
    };
    choice.evidence = has_ids;
    Some(choice)
}

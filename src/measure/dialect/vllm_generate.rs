//! vLLM's `/inference/v1/generate`: token ids in, token ids out. Dynamo serves it too.
//!
//! The envelope is that of OpenAI's completions. The ids of each event are increments and exact; without text they
//! are the answer.

use super::openai::{OpenAiChoice, OpenAiStream};
use super::{DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, USUAL};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};

pub(super) const DIALECT: Dialect = Dialect {
    name: "vllm.generate",
    route: "/inference/v1/generate",
    matches: |path| path.ends_with("/inference/v1/generate"),
    request: REQUEST,
    prompt: &["token_ids"],
    reader: |shape| Box::new(VllmGenerateReader(OpenAiStream::new(shape))),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("sampling_params.max_tokens", RequestField::MaxTokens),
    ("sampling_params.n", RequestField::Choices),
    ("sampling_params.temperature", RequestField::Temperature),
    ("sampling_params.top_p", RequestField::TopP),
    ("sampling_params.frequency_penalty", RequestField::FrequencyPenalty),
    ("sampling_params.presence_penalty", RequestField::PresencePenalty),
    ("sampling_params.seed", RequestField::Seed),
    ("sampling_params.top_k", RequestField::TopK),
    ("stream_options.include_usage", RequestField::IncludeUsage),
    ("stream_options.continuous_usage_stats", RequestField::ContinuousUsage),
];

/// Without a usage, the ids are counted.
const REPLY: &[(&str, ReplyField)] = &[
    ("request_id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("choices[].finish_reason", ReplyField::Finish),
    ("choices[].token_ids[]", ReplyField::Token),
    ("usage.prompt_tokens", ReplyField::Input),
    ("usage.completion_tokens", ReplyField::Output),
    ("usage.prompt_tokens_details.cached_tokens", ReplyField::Cached),
    ("usage.completion_tokens_details.reasoning_tokens", ReplyField::Reasoning),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
];

struct VllmGenerateReader(OpenAiStream);

impl DialectReader for VllmGenerateReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        self.0.event(event, choice, sink);
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.0.recognize(bytes)
    }
}

fn choice<'a>(walk: &mut JsonWalker<'a>) -> Option<OpenAiChoice<'a>> {
    let (mut choice, mut text) = (OpenAiChoice::default(), FieldState::Null);
    walk.object(|key, walk| match key {
        b"text" => {
            text = walk.shown()?;
            Some(())
        }
        _ => choice.field(key, walk),
    })?;
    let has_ids = choice.ids.is_some_and(|ids| ids > 0);
    choice.output = match text {
        FieldState::String(_) => Some(OutputKind::Text),
        FieldState::Null if has_ids => Some(OutputKind::Text),
        FieldState::Null | FieldState::Empty | FieldState::Other => None,
    };
    choice.evidence = has_ids;
    Some(choice)
}

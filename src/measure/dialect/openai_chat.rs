//! `POST …/chat/completions`, as defined by OpenAI and served by vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM,
//! LMDeploy, Ollama, Dynamo, mistral.rs, transformers, Azure, DeepSeek and OpenRouter.
//!
//! A role proves nothing, because some servers send it on every event and others with the first text. Only emptiness
//! decides. Generated text is a non-empty `content`, `reasoning`, `reasoning_content`, tool name or arguments,
//! `refusal` or `audio`. An empty `content` without a role is a token whose text is held back.

use super::openai::{self, OpenAiChoice, OpenAiStream};
use super::{DeltaSink, Dialect, DialectReader, OutputKind, USUAL};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::text_collector::TextFields;

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.chat",
    operation: "chat",
    route: "/v1/chat/completions",
    matches: |path| path.ends_with("/chat/completions"),
    path: openai::path,
    request: openai::REQUEST,
    prompt: &["tools", "functions", "messages"],
    reader: |shape| Box::new(ChatReader(OpenAiStream::new(shape))),
    reply: openai::REPLY,
    text: Some(&TextFields {
        choice: "choices[].index",
        text: &[
            &["choices[].delta.content"],
            &["choices[].delta.reasoning", "choices[].delta.reasoning_content"],
            &["choices[].delta.refusal"],
            &["choices[].delta.tool_calls[].function.name"],
            &["choices[].delta.tool_calls[].function.arguments"],
            &["choices[].delta.tool_calls[].custom.name"],
            &["choices[].delta.tool_calls[].custom.input"],
            &["choices[].delta.function_call.name"],
            &["choices[].delta.function_call.arguments"],
        ],
        whole: &[
            &["choices[].message.content"],
            &["choices[].message.reasoning", "choices[].message.reasoning_content"],
        ],
    }),
    ..USUAL
};

struct ChatReader(OpenAiStream);

impl DialectReader for ChatReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        self.0.event(event, choice, sink);
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.0.recognize(bytes)
    }
}

fn choice<'a>(walk: &mut JsonWalker<'a>) -> Option<OpenAiChoice<'a>> {
    let mut choice = OpenAiChoice::default();
    walk.object(|key, walk| match key {
        b"delta" if walk.is_object() => delta(&mut choice, walk),
        _ => choice.field(key, walk),
    })?;
    Some(choice)
}

/// Takes the delta of a choice.
pub(super) fn delta(choice: &mut OpenAiChoice<'_>, walk: &mut JsonWalker<'_>) -> Option<()> {
    let delta = ChatDelta::read(walk)?;
    choice.evidence = delta.holds_back();
    choice.output = delta.output();
    Some(())
}

/// Content fields of one delta.
#[derive(Default)]
struct ChatDelta {
    role: bool,
    content: Option<FieldState>,
    reasoning: Option<FieldState>,
    refusal: Option<FieldState>,
    tool: bool,
    audio: bool,
}

impl ChatDelta {
    fn read(walk: &mut JsonWalker<'_>) -> Option<Self> {
        let mut delta = Self::default();
        walk.object(|key, walk| {
            match key {
                b"role" => delta.role = walk.raw()? != "null",
                b"content" => delta.content = some(walk.shown()?),
                // vLLM and Ollama use `reasoning`, most others `reasoning_content`. Some send both and leave one
                // empty.
                b"reasoning" | b"reasoning_content" => {
                    let shown = walk.shown()?;
                    if shown.is_content() || delta.reasoning.is_none() {
                        delta.reasoning = some(shown);
                    }
                }
                b"refusal" => delta.refusal = some(walk.shown()?),
                b"tool_calls" if walk.is_array() => walk.array(|walk| {
                    delta.tool |= tool_call(walk)?;
                    Some(())
                })?,
                b"function_call" => delta.tool |= any_content(walk, &[b"name", b"arguments"])?,
                b"audio" => delta.audio |= any_content(walk, &[b"data", b"transcript"])?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        Some(delta)
    }

    /// True if this is an empty content without a role: a token whose text is held back.
    fn holds_back(&self) -> bool {
        !self.role && self.content.is_some()
    }

    /// The output kind of the delta. Output takes precedence over reasoning in an event that has both.
    fn output(&self) -> Option<OutputKind> {
        let shows = |shown: &Option<FieldState>| shown.as_ref().is_some_and(FieldState::is_content);
        if shows(&self.content) {
            Some(OutputKind::Text)
        } else if self.tool {
            Some(OutputKind::Tool)
        } else if shows(&self.refusal) {
            Some(OutputKind::Refusal)
        } else if self.audio {
            Some(OutputKind::Audio)
        } else {
            shows(&self.reasoning).then_some(OutputKind::Reasoning)
        }
    }
}

fn some(shown: FieldState) -> Option<FieldState> {
    (shown != FieldState::Null).then_some(shown)
}

/// Whether a tool call has a name or arguments. Custom tools have `input` instead of arguments.
fn tool_call(walk: &mut JsonWalker<'_>) -> Option<bool> {
    let mut shows = false;
    walk.object(|key, walk| {
        match key {
            b"function" => shows |= any_content(walk, &[b"name", b"arguments"])?,
            b"custom" => shows |= any_content(walk, &[b"name", b"input"])?,
            _ => walk.skip()?,
        }
        Some(())
    })?;
    Some(shows)
}

fn any_content(walk: &mut JsonWalker<'_>, keys: &[&[u8]]) -> Option<bool> {
    let mut any = false;
    walk.object(|key, walk| {
        let shown = walk.shown()?;
        any |= keys.contains(&key) && shown.is_content();
        Some(())
    })?;
    Some(any)
}

//! `POST …/chat/completions`, as OpenAI defined it and as vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM, LMDeploy, Ollama,
//! Dynamo, mistral.rs, transformers, Azure, DeepSeek and OpenRouter speak it.
//!
//! A role proves nothing: some servers send it on every event, some with the first text. Only emptiness decides.
//! Generated text is a non-empty `content`, `reasoning`, `reasoning_content`, tool name or arguments, `refusal` or
//! `audio`; an empty `content` without a role is a token whose text is held back.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::openai::{self, Choice, ChoiceMeaning, Document, Raw, Stream, has_content};
use super::{Dialect, OutputKind, Reader, Sink};
use crate::measure::framing::Event;
use crate::measure::scan::Scalar;

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.chat",
    operation: "chat",
    route: "/v1/chat/completions",
    matches: |path| path.ends_with("/chat/completions"),
    reader: |shape| Box::new(Chat { stream: Stream::new(shape), document: Document::default() }),
    request_fields: openai::REQUEST_FIELDS,
    request: openai::request,
    error_body: openai::error_body,
};

struct Chat {
    stream: Stream,
    document: Document,
}

impl Reader for Chat {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        self.stream.event::<ChatChoice<'_>>(event, sink);
    }

    fn wants(&self, path: &str) -> bool {
        Document::FIELDS.contains(&path)
    }

    fn scalar(&mut self, path: &str, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink) {
        self.document.scalar(path, index, scalar, sink);
    }

    fn document_end(&mut self, sink: &mut dyn Sink) {
        self.document.end(sink);
    }
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, default)]
    delta: Option<ChatDelta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Raw<'a>,
    #[serde(borrow, default)]
    logprobs: Raw<'a>,
    /// vLLM.
    #[serde(borrow, default)]
    token_ids: Raw<'a>,
    /// LMDeploy.
    #[serde(borrow, default)]
    output_ids: Raw<'a>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow, default)]
    role: Raw<'a>,
    #[serde(borrow, default)]
    content: Raw<'a>,
    #[serde(borrow, default)]
    reasoning: Raw<'a>,
    #[serde(borrow, default)]
    reasoning_content: Raw<'a>,
    #[serde(borrow, default)]
    refusal: Raw<'a>,
    #[serde(borrow, default)]
    tool_calls: Raw<'a>,
    #[serde(borrow, default)]
    function_call: Raw<'a>,
    #[serde(borrow, default)]
    audio: Raw<'a>,
}

impl<'a> Choice<'a> for ChatChoice<'a> {
    fn meaning(&self) -> ChoiceMeaning<'a> {
        let delta = self.delta.as_ref();
        ChoiceMeaning {
            index: self.index,
            output: delta.and_then(ChatDelta::output),
            evidence: delta.is_some_and(|delta| delta.role.is_none() && delta.content.is_some()),
            finish: self.finish_reason,
            ids: [self.token_ids, self.output_ids],
            logprobs: self.logprobs,
        }
    }
}

impl<'a> ChatDelta<'a> {
    /// What kind of text the delta shows, and the text where it is one string. Output wins over reasoning when an
    /// event has both.
    fn output(&self) -> Option<(OutputKind, Raw<'a>)> {
        if has_content(self.content) {
            let alone = !has_content(self.reasoning) && !has_content(self.reasoning_content);
            Some((OutputKind::Text, self.content.filter(|_| alone)))
        } else if self.calls_tool() {
            Some((OutputKind::Tool, None))
        } else if has_content(self.refusal) {
            Some((OutputKind::Refusal, self.refusal))
        } else if self.audio.is_some_and(|raw| shows::<Audio<'_>>(raw.get())) {
            Some((OutputKind::Audio, None))
        } else {
            let reasoning = [self.reasoning, self.reasoning_content].into_iter().find(|raw| has_content(*raw))?;
            Some((OutputKind::Reasoning, reasoning))
        }
    }

    fn calls_tool(&self) -> bool {
        self.tool_calls.is_some_and(|raw| shows::<AnyOf<ToolCall<'_>>>(raw.get()))
            || self.function_call.is_some_and(|raw| shows::<Function<'_>>(raw.get()))
    }
}

/// Something that may hold generated text in one of several fields.
trait Shows {
    fn shows(&self) -> bool;
}

fn shows<'a, T: Shows + Deserialize<'a>>(raw: &'a str) -> bool {
    serde_json::from_str::<T>(raw).is_ok_and(|part| part.shows())
}

/// A list of which any entry may show text; read without keeping the entries.
struct AnyOf<T>(bool, PhantomData<T>);

impl<T> Shows for AnyOf<T> {
    fn shows(&self) -> bool {
        self.0
    }
}

impl<'de, T: Shows + Deserialize<'de>> Deserialize<'de> for AnyOf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Shows + Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = bool;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
                let mut any = false;
                while let Some(entry) = seq.next_element::<T>()? {
                    any |= entry.shows();
                }
                Ok(any)
            }
        }
        deserializer.deserialize_seq(Each::<T>(PhantomData)).map(|any| Self(any, PhantomData))
    }
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
    #[serde(borrow, default)]
    custom: Option<Function<'a>>,
}

impl Shows for ToolCall<'_> {
    fn shows(&self) -> bool {
        [&self.function, &self.custom].into_iter().flatten().any(Shows::shows)
    }
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Raw<'a>,
    /// A custom tool has `input` instead.
    #[serde(borrow, default, alias = "input")]
    arguments: Raw<'a>,
}

impl Shows for Function<'_> {
    fn shows(&self) -> bool {
        has_content(self.name) || has_content(self.arguments)
    }
}

#[derive(Deserialize)]
struct Audio<'a> {
    #[serde(borrow, default)]
    data: Raw<'a>,
    #[serde(borrow, default)]
    transcript: Raw<'a>,
}

impl Shows for Audio<'_> {
    fn shows(&self) -> bool {
        has_content(self.data) || has_content(self.transcript)
    }
}

//! Dialects: what an event of a server's stream means.
//!
//! **Adding a dialect is one file, one row of [`TABLE`] and its vectors under `tests/data/vectors`:** nothing else is
//! touched, and a test holds the three together. A dialect knows the names of its request's and reply's JSON fields
//! (they stand nowhere else) and says what each event means in the vocabulary of [`Delta`]; it does not time, count or
//! decide.
//!
//! # Which dialect a request speaks
//! 1. What the configuration says of its path: [`Routes`] (`routes`, `--route '/custom/*=openai.chat'`).
//! 2. The end of its path, since prefixes such as `/openai` are common: [`for_path`].
//! 3. Where several servers share a path (`/generate`, `/`), the keys of the request's body: [`Shared`].
//! 4. For a path that is still unknown, and for `/completions` that may have lost its `/v1`, the first decisive event of
//!    a reply that is a stream (`recognize.rs`).
//!
//! Only POST and PUT ask for generation. A request without a dialect is plain HTTP: forwarded, and measured by its first
//! byte, its duration and its bytes. WebSockets are such: their bytes are counted and not read.
//!
//! Whether the reply is a stream, and of which framing, its content type says.
//!
//! # The dialects
//!
//! | name | path ends with | the end of a stream | tokens of one event |
//! |---|---|---|---|
//! | `openai.chat` | `/chat/completions` | every choice's `finish_reason`, or `[DONE]` | ids, log probabilities, continuous usage |
//! | `openai.completions` | `/v1/completions`, `/openai/…/completions` | the same | the same |
//! | `openai.responses` | `/responses` | a terminal event | log probabilities |
//! | `openai.embeddings` | `/embeddings` | no stream: input only | |
//! | `rerank` | `/rerank` | no stream: input only | |
//! | `anthropic.messages` | `/v1/messages` | `message_stop` | unknown |
//! | `tgi.stream` | `/generate_stream`; `/` and `/generate` with `inputs` | `generated_text` | one |
//! | `sglang.generate` | `/generate` with `sampling_params` | `finish_reason`, or `[DONE]` | growth of `completion_tokens` |
//! | `lmdeploy.generate` | `/generate` with `prompt` or `max_tokens` | the same | the same |
//! | `llamacpp.completion` | `/completion`, `/completions` without `/v1`, `/infill` | `stop: true` | growth of `tokens_predicted` |
//! | `ollama.chat`, `ollama.generate` | `/api/chat`, `/api/generate` | the `done` line | log probabilities |
//! | `vllm.generate` | `/inference/v1/generate` | as `openai.completions` | ids |
//! | `triton.generate` | `/v2/models/…/generate_stream`, `…/generate` | the body's end | `num_output_tokens` |
//! | `triton.grpc` | `/inference.GRPCInferenceService/ModelStreamInfer` | the stream's end | unknown |
//! | `gemini` | `:streamGenerateContent`, `:generateContent` | `finishReason` | growth of `usageMetadata` |
//! | `bedrock.converse` | `/model/…/converse-stream`, `…/converse` | `messageStop` | unknown |
//! | `bedrock.invoke` | `/model/…/invoke-with-response-stream`, `…/invoke` | the vendor's | the vendor's |
//!
//! The file is past 400 lines, for it is the table: what every dialect has to say, and the row of each.

mod ambiguous_path;
mod anthropic_messages;
mod bedrock_converse;
mod bedrock_invoke;
pub(super) mod detect;
mod document_reply;
pub mod event_fields;
mod fault;
mod gemini;
pub mod health;
pub mod inject_usage;
mod llamacpp_completion;
mod lmdeploy_generate;
mod ollama;
mod ollama_chat;
mod ollama_generate;
mod openai;
mod openai_chat;
mod openai_completions;
mod openai_embeddings;
mod openai_responses;
mod openai_usage;
pub mod prompt;
mod protobuf;
mod request;
mod rerank;
mod route;
mod sglang_generate;
mod skeleton;
pub mod strip_usage;
mod tgi_stream;
mod triton_generate;
mod triton_grpc;
mod vllm_generate;

use std::sync::Arc;

pub use ambiguous_path::AmbiguousPath;
pub(super) use ambiguous_path::{field, leads};
pub(super) use document_reply::Document;
pub use document_reply::ReplyField;
pub use request::RequestField;
pub use route::{Route, Routes};

use super::framing::Event;
use super::json_walker::JsonWalker;
use super::record::{CountSource, FinishReason, Usage};
use super::shape::RequestShape;
use super::string_cache::shared;
use super::text_collector::TextFields;

/// One row of the table.
#[derive(Debug)]
pub struct Dialect {
    /// The dialect's name.
    pub name: &'static str,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The route it is counted under.
    pub route: &'static str,
    /// The content type of its streams.
    pub content_type: &'static str,
    /// What the server calls its final count of output tokens, where `inspect` says who counted.
    pub final_count: &'static str,
    /// Whether a request path (without query) speaks it.
    matches: fn(path: &str) -> bool,
    /// Notes what the path tells of a request: its model, that a stream is asked for.
    pub(super) path: fn(&mut RequestShape, path: &str),
    /// Where the fields of a request's JSON body stand that shape the work.
    pub(super) request: &'static [(&'static str, RequestField)],
    /// The keys of a request's JSON body that make its prompt: tools, system, what was said, in this order.
    prompt: &'static [&'static str],
    /// The keys that name what the server has kept and puts in front of that.
    kept: &'static [&'static str],
    /// Notes what one message of a request's body tells, where that body is gRPC.
    pub(super) message: Option<fn(&mut RequestShape, &[u8])>,
    /// A reader for one stream.
    pub(super) reader: fn(&RequestShape) -> Box<dyn DialectReader>,
    /// Where things stand in a reply that is one JSON document.
    pub(super) reply: &'static [(&'static str, ReplyField)],
    /// The end of the body is the end of the stream, and nothing else marks it.
    pub(super) ends_with_body: bool,
    /// Its streams may be one JSON array, and errors in its event streams bare JSON.
    pub(super) loose_json: bool,
    /// Where its events have generated text, for a tokenizer to count; `None` where they are not JSON, or count
    /// themselves.
    pub(super) text: Option<&'static TextFields>,
    /// The body of an error reply of ours, in the dialect's own shape: (status, message) to JSON.
    pub error_body: fn(u16, &str) -> String,
}

/// What most dialects have in common; a row says what is different.
const USUAL: Dialect = Dialect {
    name: "",
    operation: "text_completion",
    route: "",
    content_type: "text/event-stream",
    final_count: "usage",
    matches: |_| false,
    path: |_, _| (),
    request: &[],
    prompt: &["prompt"],
    kept: &[],
    message: None,
    reader: |_| Box::new(NoopReader),
    reply: &[],
    ends_with_body: false,
    loose_json: false,
    text: None,
    error_body: fault::error_body,
};

impl Dialect {
    /// Whether its requests have this field.
    pub fn requests(&self, field: &str) -> bool {
        ambiguous_path::field(self.request, field.as_bytes()).is_some()
    }
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Dialect {}

/// Every dialect. The first row that matches a path wins.
pub static TABLE: &[Dialect] = &[
    openai_chat::DIALECT,
    openai_completions::DIALECT,
    openai_responses::DIALECT,
    openai_embeddings::DIALECT,
    anthropic_messages::DIALECT,
    triton_generate::DIALECT,
    triton_grpc::DIALECT,
    tgi_stream::DIALECT,
    vllm_generate::DIALECT,
    ollama_chat::DIALECT,
    ollama_generate::DIALECT,
    llamacpp_completion::DIALECT,
    gemini::DIALECT,
    bedrock_converse::DIALECT,
    bedrock_invoke::DIALECT,
    rerank::DIALECT,
    // Told from others by what is asked, or by the reply: see `Shared`.
    sglang_generate::DIALECT,
    lmdeploy_generate::DIALECT,
];

/// The dialect of a request path, without its query.
pub fn for_path(path: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| (dialect.matches)(path))
}

/// The dialect of that name.
pub fn named(name: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| dialect.name == name)
}

/// What one server event means to us. An event may mean several things.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delta<'a> {
    /// Generated text that a user could see, or generated ids where there is no text.
    Output {
        /// What kind of text.
        kind: OutputKind,
        /// How many tokens, where the event tells.
        tokens: Option<TokenIncrement>,
    },
    /// Proof that a token exists, without text.
    Evidence {
        /// How many tokens, where the event tells.
        tokens: Option<TokenIncrement>,
    },
    /// The event is known to hold no token.
    NoToken,
    /// All tokens of the choice so far, by the server's running counter.
    Total(u64),
    /// The server's counts. All-zero reports never get here.
    Usage(Usage),
    /// The choice is finished, in the server's own word.
    Finish(FinishReason, &'a str),
    /// The server reports an error.
    Fault {
        /// Its message, to be shown by `inspect` and kept nowhere: the inside of a JSON string, escapes and all.
        message: Option<&'a str>,
        /// Its class, in the same form.
        kind: Option<&'a str>,
        /// Its code, a JSON value: a number, or a string in its quotes.
        code: Option<&'a str>,
    },
    /// The id of the reply.
    Id(&'a str),
    /// The model that the reply names.
    Model(&'a str),
    /// The path did not tell the dialect; this event does.
    Dialect(&'static Dialect),
    /// The dialect's terminal event.
    Done,
    /// It could not be understood.
    Malformed,
}

/// What kind of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Content of the answer.
    Text,
    /// Reasoning shown before it.
    Reasoning,
    /// A tool's name or arguments.
    Tool,
    /// A refusal.
    Refusal,
    /// Audio or its transcript.
    Audio,
}

/// A finish reason in the server's word, in the one vocabulary. Empty means not finished.
pub fn finish_reason(raw: &str) -> Option<FinishReason> {
    Some(match raw {
        "" => return None,
        "stop" | "end_turn" | "stop_sequence" | "eos_token" | "STOP" | "eos" | "word" | "completed" | "COMPLETE"
        | "FINISHED" | "STOP_CRITERIA_MET" => FinishReason::Stop,
        "length"
        | "max_tokens"
        | "MAX_TOKENS"
        | "model_context_window_exceeded"
        | "limit"
        | "max_output_tokens"
        | "LENGTH" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::Tool,
        "content_filter"
        | "refusal"
        | "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "guardrail_intervened"
        | "content_filtered"
        | "CONTENT_FILTERED"
        | "ERROR_TOXIC" => FinishReason::Filter,
        "abort" | "cancelled" => FinishReason::Abort,
        "error" | "ERROR" => FinishReason::Error,
        _ => FinishReason::Other,
    })
}

/// Tokens of one event, and where that number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenIncrement {
    /// The tokens.
    pub tokens: u32,
    /// [`CountSource::ContinuousUsage`], [`CountSource::Ids`], or [`CountSource::Chunks`] where the dialect has one token
    /// in each event.
    pub source: CountSource,
}

impl TokenIncrement {
    /// So many more by a running counter.
    fn growth(tokens: u64) -> Self {
        Self { tokens: u32::try_from(tokens).unwrap_or(u32::MAX), source: CountSource::ContinuousUsage }
    }

    /// So many entries of a list.
    fn listed(tokens: u32) -> Self {
        Self { tokens, source: CountSource::Ids }
    }
}

/// A count of tokens as a server wrote it. What nobody can have generated is no count: believed once, it would stand
/// in every sum for good.
pub(super) fn believed(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count < 1 << 32)
}

/// Takes any value; a [`believed`] count, and `None` inside for anything else.
fn count(walk: &mut JsonWalker<'_>) -> Option<Option<u64>> {
    walk.number().map(believed)
}

/// A running count for each choice, the first [`Counters::MOST`] of them.
#[derive(Debug, Default)]
pub(super) struct ChoiceCounters(Vec<(u32, u64)>);

impl ChoiceCounters {
    const MAX_CHOICES: usize = 128;

    /// Sets a choice's count; returns the one before.
    pub(super) fn set(&mut self, choice: u32, count: u64) -> Option<u64> {
        if let Some((_, before)) = self.0.iter_mut().find(|(index, _)| *index == choice) {
            return Some(std::mem::replace(before, count));
        }
        if self.0.len() < Self::MAX_CHOICES {
            self.0.push((choice, count));
        }
        None
    }

    /// A choice's count; 0 before it has one.
    pub(super) fn get(&self, choice: u32) -> u64 {
        self.0.iter().find(|(index, _)| *index == choice).map_or(0, |(_, count)| *count)
    }

    /// All counts together.
    pub(super) fn sum(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// Takes what an event means. `choice` is 0 where the dialect has no choices.
pub trait DeltaSink {
    /// One meaning of the event in hand.
    fn delta(&mut self, choice: u32, delta: Delta<'_>);
}

/// Reads the reply of one request.
pub trait DialectReader: Send {
    /// One event of a stream.
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink);

    /// Whether an event that the body's end cut short counts as whole.
    fn is_whole(&self, data: &[u8]) -> bool {
        data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
    }
}

/// Reads the streams of dialects that have none.
struct NoopReader;

impl DialectReader for NoopReader {
    fn event(&mut self, _: &Event<'_>, _: &mut dyn DeltaSink) {}
}

/// The text of a path's segment behind `before` (and in front of `after`, if it is there), its escapes undone.
fn segment_of(path: &str, before: &str, after: char) -> Option<Arc<str>> {
    // A path is short: a searcher costs more to make than this.
    let at = path.as_bytes().windows(before.len()).rposition(|here| here == before.as_bytes())?;
    let segment = path.get(at + before.len()..)?.split(['/', after]).next().filter(|segment| !segment.is_empty())?;
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        let escape = || {
            let hex = |byte: u8| char::from(byte).to_digit(16);
            let mut ahead = rest.clone();
            u8::try_from(hex(ahead.next()?)? * 16 + hex(ahead.next()?)?).ok()
        };
        match escape().filter(|_| byte == b'%') {
            Some(escaped) => {
                bytes.push(escaped);
                rest.by_ref().take(2).for_each(drop);
            }
            None => bytes.push(byte),
        }
    }
    bytes.truncate(MAX_MODEL);
    Some(shared(&String::from_utf8_lossy(&bytes)))
}

/// Longest model taken from a path, in bytes.
const MAX_MODEL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_path_chooses_the_dialect() {
        let table = [
            ("openai.chat", "/v1/chat/completions /openai/deployments/d1/chat/completions /api/chat/completions"),
            ("openai.completions", "/v1/completions /serve/v1/completions /openai/deployments/d1/completions"),
            ("openai.responses", "/v1/responses /openai/v1/responses"),
            ("openai.embeddings", "/v1/embeddings /openai/deployments/d1/embeddings /embeddings"),
            ("anthropic.messages", "/v1/messages /anthropic/v1/messages"),
            ("tgi.stream", "/generate_stream /tgi/generate_stream"),
            ("triton.generate", "/v2/models/m/generate_stream /v2/models/m/versions/1/generate /v2/models/m/generate"),
            ("triton.grpc", "/inference.GRPCInferenceService/ModelStreamInfer"),
            ("vllm.generate", "/inference/v1/generate"),
            ("llamacpp.completion", "/completion /completions /infill"),
            ("ollama.chat", "/api/chat"),
            ("ollama.generate", "/api/generate"),
            ("gemini", "/v1beta/models/g:streamGenerateContent /v1/models/g:generateContent"),
            ("bedrock.converse", "/model/m/converse-stream /model/m/converse"),
            ("bedrock.invoke", "/model/m/invoke-with-response-stream /model/m/invoke"),
            ("rerank", "/rerank /v1/rerank /v2/rerank"),
        ];
        for (name, paths) in table {
            for path in paths.split(' ') {
                assert_eq!(for_path(path).map(|dialect| dialect.name), Some(name), "{path}");
            }
        }
        let plain = "/ /generate /v1/models /v1/chat/completions/render /v1/chat/completions/batch /health /metrics \
                     /tokenize /v1/messages/count_tokens /v1/responses/r1 /v1/realtime /v2/models/m/infer /score";
        for path in plain.split(' ') {
            assert_eq!(for_path(path).map(|dialect| dialect.name), None, "{path}");
        }
    }

    #[test]
    fn a_name_in_a_path_ends_with_its_segment_and_loses_its_escapes() {
        assert_eq!(segment_of("/v2/models/m%3A1/versions/2/generate", "/models/", ':').as_deref(), Some("m:1"));
        assert_eq!(segment_of("/v1/models/a%zz%4:streamIt", "/models/", ':').as_deref(), Some("a%zz%4"));
        assert_eq!(segment_of("/models/%ff%", "/models/", ':').as_deref(), Some("\u{fffd}%"));
        assert_eq!(segment_of("/models//x", "/models/", ':'), None);
    }
}

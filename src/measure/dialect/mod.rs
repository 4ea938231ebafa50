//! Dialects: the meaning of each event in a server's stream.
//!
//! **A new dialect needs one file, one row of [`TABLE`] and its vectors under `tests/data/vectors`.** A test keeps
//! the three together. A dialect knows the JSON field names of its requests and replies; no other file does. It
//! reports each event's meaning as [`Delta`]s; it does not time, count or decide.
//!
//! # Dialect selection
//! 1. A configured route for the path: [`Routes`] (`routes`, `--route '/custom/*=openai.chat'`).
//! 2. The end of the path, because prefixes such as `/openai` are common: [`for_path`].
//! 3. The keys of the request body, where several servers share a path (`/generate`, `/`): [`AmbiguousPath`].
//! 4. The first decisive event of a streamed reply, for an unknown path and for `/completions` that may have lost its
//!    `/v1` (`detect.rs`).
//!
//! Only POST and PUT request generation. A request without a dialect is plain HTTP: the proxy forwards it and
//! measures first byte, duration and bytes. WebSockets are plain HTTP: their bytes are counted and not read.
//!
//! The content type of the reply decides whether it is a stream, and with which framing.
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

mod ambiguous_path;
mod anthropic_messages;
mod bedrock_converse;
mod bedrock_invoke;
mod counters;
mod delta;
pub(super) mod detect;
mod document_reply;
pub mod event_fields;
mod fault;
mod finish_reason;
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
mod request_shape;
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

pub(super) use ambiguous_path::{field, leads};
use counters::count;
pub(super) use counters::{ChoiceCounters, believed};
pub use delta::{Delta, DeltaSink, OutputKind, TokenIncrement};
pub(super) use document_reply::ReplyDocument;
pub use document_reply::ReplyField;
pub use finish_reason::finish_reason;
pub use request::RequestField;
pub use request_shape::RequestShape;
pub use route::{Route, Routes};

use super::framing::Event;
use super::string_cache::shared;
use super::text_collector::TextFields;

/// The interface of one dialect; a row of [`TABLE`].
#[derive(Debug)]
pub struct Dialect {
    /// Name, as used in configuration and traces.
    pub name: &'static str,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The route label of its metrics.
    pub route: &'static str,
    /// Content type of its streams.
    pub content_type: &'static str,
    /// The server's name for its final count of output tokens; `inspect` shows it as the source.
    pub final_count: &'static str,
    /// True if a request path (without query) has this dialect.
    matches: fn(path: &str) -> bool,
    /// Reads the request properties that the path carries: the model, or that the reply is a stream.
    pub(super) path: fn(&mut RequestShape, path: &str),
    /// JSON paths of the request fields that affect the work.
    pub(super) request: &'static [(&'static str, RequestField)],
    /// Top-level keys of the request body that form its prompt, in this order: tools, system, messages.
    prompt: &'static [&'static str],
    /// Keys that name content stored on the server, which the server prepends to the prompt.
    stored_keys: &'static [&'static str],
    /// Reads one message of a gRPC request body; `None` for other bodies.
    pub(super) message: Option<fn(&mut RequestShape, &[u8])>,
    /// Creates the reader of one reply stream.
    pub(super) reader: fn(&RequestShape) -> Box<dyn DialectReader>,
    /// JSON paths in a reply that is one JSON document.
    pub(super) reply: &'static [(&'static str, ReplyField)],
    /// Only the end of the body marks the end of the stream.
    pub(super) ends_with_body: bool,
    /// Streams may be one JSON array, and errors in event streams may be bare JSON.
    pub(super) loose_json: bool,
    /// Paths of generated text in its events, for a local tokenizer. `None` if the events are not JSON or carry exact
    /// counts.
    pub(super) text: Option<&'static TextFields>,
    /// Builds the JSON body of the proxy's error replies from status and message, in the dialect's format.
    pub error_body: fn(u16, &str) -> String,
}

/// Defaults for the rows of the table.
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
    stored_keys: &[],
    message: None,
    reader: |_| Box::new(NoopReader),
    reply: &[],
    ends_with_body: false,
    loose_json: false,
    text: None,
    error_body: fault::error_body,
};

impl Dialect {
    /// True if requests of this dialect have the field.
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

/// All dialects. The first row that matches a path wins.
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
    // These share paths; the request keys or the reply decide (`AmbiguousPath`).
    sglang_generate::DIALECT,
    lmdeploy_generate::DIALECT,
];

/// A path that several dialects share.
#[derive(Debug)]
pub struct AmbiguousPath {
    matches: fn(path: &str) -> bool,
    /// Top-level keys of the body and the dialect that each identifies. The first key that occurs decides.
    keys: &'static [(&'static str, &'static Dialect)],
}

impl PartialEq for AmbiguousPath {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Returns the dialect of a request path (without query).
pub fn for_path(path: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| (dialect.matches)(path))
}

/// Returns the dialect with this name.
pub fn named(name: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| dialect.name == name)
}

/// Reads the reply of one request.
pub trait DialectReader: Send {
    /// Reads one event of a stream.
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink);

    /// Length of the payload at the start of `bytes`, as in [`EventReader`](super::framing::EventReader).
    fn recognize(&mut self, _bytes: &[u8]) -> Option<usize> {
        None
    }

    /// True if an event that lacks its end marker at the end of the body is nevertheless complete.
    fn is_whole(&self, data: &[u8]) -> bool {
        data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
    }
}

/// The reader for dialects without streams.
struct NoopReader;

impl DialectReader for NoopReader {
    fn event(&mut self, _: &Event<'_>, _: &mut dyn DeltaSink) {}
}

/// The unescaped path segment after `before`, up to `after` if that character occurs.
fn segment_of(path: &str, before: &str, after: char) -> Option<Arc<str>> {
    // Paths are short: building a substring searcher costs more than this scan.
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

/// Longest model name taken from a path, in bytes.
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

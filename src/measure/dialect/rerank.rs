//! `POST …/rerank`, as defined by Jina and Cohere and served by vLLM, SGLang, llama.cpp and TEI. No stream and no
//! output tokens; the usage has the input tokens.

use super::{Dialect, ReplyField, RequestField, USUAL};

pub(super) const DIALECT: Dialect = Dialect {
    name: "rerank",
    operation: "rerank",
    route: "/rerank",
    matches: |path| path.ends_with("/rerank"),
    request: &[("model", RequestField::Model)],
    prompt: &["query", "documents", "texts"],
    reply: REPLY,
    ..USUAL
};

const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("usage.prompt_tokens", ReplyField::Input),
    ("usage.total_tokens", ReplyField::InputElse),
    ("meta.tokens.input_tokens", ReplyField::InputElse),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
    ("object", ReplyField::Mark),
    ("message", ReplyField::Message),
];

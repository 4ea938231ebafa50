//! `POST …/rerank`, as Jina and Cohere defined it and as vLLM, SGLang, llama.cpp and TEI serve it: no stream and no output
//! tokens; the usage says what went in.

use super::{Asked, Dialect, Field, USUAL};

pub(super) const DIALECT: Dialect = Dialect {
    name: "rerank",
    operation: "rerank",
    route: "/rerank",
    matches: |path| path.ends_with("/rerank"),
    request: &[("model", Asked::Model)],
    prompt: &["query", "documents", "texts"],
    reply: REPLY,
    ..USUAL
};

const REPLY: &[(&str, Field)] = &[
    ("id", Field::Id),
    ("model", Field::Model),
    ("usage.prompt_tokens", Field::Input),
    ("usage.total_tokens", Field::InputElse),
    ("meta.tokens.input_tokens", Field::InputElse),
    ("error", Field::Error),
    ("error.message", Field::Error),
    ("error.type", Field::ErrorKind),
    ("error.code", Field::ErrorCode),
    ("object", Field::Mark),
    ("message", Field::Message),
];

//! `POST …/embeddings`: no stream and no output tokens; the usage says what went in.

use super::{Asked, Dialect, Field, USUAL, openai};

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.embeddings",
    operation: "embeddings",
    route: "/v1/embeddings",
    matches: |path| path.ends_with("/embeddings"),
    path: openai::path,
    request: &[("model", Asked::Model)],
    prompt: &["input"],
    reply: REPLY,
    ..USUAL
};

const REPLY: &[(&str, Field)] = &[
    ("id", Field::Id),
    ("model", Field::Model),
    ("usage.prompt_tokens", Field::Input),
    ("usage.total_tokens", Field::InputElse),
    ("usage.prompt_tokens_details.cached_tokens", Field::Cached),
    ("usage.completion_tokens", Field::Output),
    ("error", Field::Error),
    ("error.message", Field::Error),
    ("error.type", Field::ErrorKind),
    ("error.code", Field::ErrorCode),
    ("object", Field::Mark),
    ("message", Field::Message),
];

//! `POST …/embeddings`: no stream and no output tokens; the usage has the input tokens.

use super::{Dialect, ReplyField, RequestField, USUAL, openai};

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.embeddings",
    operation: "embeddings",
    route: "/v1/embeddings",
    matches: |path| path.ends_with("/embeddings"),
    path: openai::path,
    request: &[("model", RequestField::Model)],
    prompt: &["input"],
    reply: REPLY,
    ..USUAL
};

const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("usage.prompt_tokens", ReplyField::Input),
    ("usage.total_tokens", ReplyField::InputElse),
    ("usage.prompt_tokens_details.cached_tokens", ReplyField::Cached),
    ("usage.completion_tokens", ReplyField::Output),
    ("error", ReplyField::Error),
    ("error.message", ReplyField::Error),
    ("error.type", ReplyField::ErrorKind),
    ("error.code", ReplyField::ErrorCode),
    ("object", ReplyField::Mark),
    ("message", ReplyField::Message),
];

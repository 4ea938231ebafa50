//! LMDeploy's own `/generate`. The request has `max_tokens` at the top level. The reply matches SGLang's
//! ([`sglang_generate`](super::sglang_generate)), but text and ids are always increments.

use super::sglang_generate::{REPLY, SglangGenerateReader};
use super::{Dialect, RequestField, USUAL};

pub(super) const DIALECT: Dialect = Dialect {
    name: "lmdeploy.generate",
    route: "/generate",
    request: REQUEST,
    prompt: &["prompt", "input_ids"],
    reader: |shape| Box::new(SglangGenerateReader::of_increments(shape)),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("max_tokens", RequestField::MaxTokens),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("top_k", RequestField::TopK),
];

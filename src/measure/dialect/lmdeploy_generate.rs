//! LMDeploy's own `/generate`: the reply of SGLang's ([`sglang_generate`](super::sglang_generate)), in which text and ids
//! are always increments, to a request that has `max_tokens` at its top.

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
];

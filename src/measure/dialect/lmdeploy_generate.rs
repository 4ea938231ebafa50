//! LMDeploy's own `/generate`: the reply of SGLang's ([`sglang_generate`](super::sglang_generate)), in which text and ids
//! are always increments, to a request that has `max_tokens` at its top.

use super::sglang_generate::{Generate, REPLY};
use super::{Asked, Dialect, USUAL};

pub(super) const DIALECT: Dialect = Dialect {
    name: "lmdeploy.generate",
    route: "/generate",
    request: REQUEST,
    prompt: &["prompt", "input_ids"],
    reader: |shape| Box::new(Generate::of_increments(shape)),
    reply: REPLY,
    ..USUAL
};

const REQUEST: &[(&str, Asked)] = &[
    ("model", Asked::Model),
    ("stream", Asked::Stream),
    ("max_tokens", Asked::MaxTokens),
    ("temperature", Asked::Temperature),
    ("top_p", Asked::TopP),
];

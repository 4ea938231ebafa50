//! Ollama's `/api/generate`, read by [`ollama`](super::ollama).

use super::{Dialect, USUAL, ollama};
use crate::measure::text_collector::TextFields;

pub(super) const DIALECT: Dialect = Dialect {
    name: "ollama.generate",
    operation: "text_completion",
    route: "/api/generate",
    content_type: ollama::CONTENT_TYPE,
    final_count: ollama::FINAL_COUNT,
    matches: |path| path.ends_with("/api/generate"),
    path: ollama::path,
    request: ollama::REQUEST,
    prompt: &["context", "system", "prompt", "images"],
    reader: |_| Box::new(ollama::OllamaReader::default()),
    reply: ollama::REPLY,
    error_body: ollama::error_body,
    text: Some(&TextFields {
        choice: "",
        text: &[&["response"], &["thinking"]],
        whole: &[&["response"], &["thinking"]],
    }),
    ..USUAL
};

//! Ollama's `/api/chat`, read by [`ollama`](super::ollama).

use super::{Dialect, USUAL, ollama};
use crate::measure::text_collector::TextFields;

pub(super) const DIALECT: Dialect = Dialect {
    name: "ollama.chat",
    operation: "chat",
    route: "/api/chat",
    content_type: ollama::CONTENT_TYPE,
    final_count: ollama::FINAL_COUNT,
    matches: |path| path.ends_with("/api/chat"),
    path: ollama::path,
    request: ollama::REQUEST,
    prompt: &["tools", "messages"],
    reader: |_| Box::new(ollama::OllamaReader::default()),
    reply: ollama::REPLY,
    error_body: ollama::error_body,
    text: Some(&TextFields {
        choice: "",
        text: &[&["message.content"], &["message.thinking"]],
        whole: &[&["message.content"], &["message.thinking"]],
    }),
    ..USUAL
};

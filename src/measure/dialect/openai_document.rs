//! A reply of the OpenAI dialects in one JSON document: usage, finish reasons, and the shapes of their errors.

use super::openai::is_report;
use super::{Delta, Sink, believed, finish_reason};
use crate::measure::record::Usage;
use crate::measure::scan::Scalar;

/// A reply in one JSON document.
#[derive(Default)]
pub(super) struct Document {
    usage: Usage,
    failed: bool,
    message: Option<String>,
    kind: Option<String>,
    code: Option<String>,
}

impl Document {
    pub(super) const FIELDS: &[&str] = &[
        "id",
        "model",
        "object",
        "choices[].finish_reason",
        "usage.prompt_tokens",
        "usage.completion_tokens",
        "usage.prompt_tokens_details.cached_tokens",
        "usage.completion_tokens_details.reasoning_tokens",
        "usage.reasoning_tokens",
        "usage.prompt_cache_hit_tokens",
        "error",
        "error.message",
        "error.type",
        "error.code",
        "message",
        "type",
        "code",
    ];

    pub(super) fn scalar(&mut self, path: &str, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink) {
        let text = || match scalar {
            Scalar::Number(number) => Some(number.to_owned()),
            scalar => scalar.to_text(),
        };
        let count = || believed(scalar.as_u64());
        match path {
            "id" | "model" => {
                if let Some(text) = scalar.to_text() {
                    sink.delta(0, if path == "id" { Delta::Id(&text) } else { Delta::Model(&text) });
                }
            }
            "choices[].finish_reason" => {
                if let Some(raw) = scalar.to_text()
                    && let Some(reason) = finish_reason(&raw)
                {
                    sink.delta(index, Delta::Finish(reason, &raw));
                }
            }
            "usage.prompt_tokens" => self.usage.input = count(),
            "usage.completion_tokens" => self.usage.output = count(),
            "usage.prompt_tokens_details.cached_tokens" => self.usage.cached = count(),
            "usage.prompt_cache_hit_tokens" => self.usage.cached = self.usage.cached.or(count()),
            "usage.completion_tokens_details.reasoning_tokens" => self.usage.reasoning = count(),
            "usage.reasoning_tokens" => self.usage.reasoning = self.usage.reasoning.or(count()),
            "object" => self.failed |= scalar == Scalar::String(b"error"),
            "error" if scalar == Scalar::Null => {}
            "error" => (self.failed, self.message) = (true, text()),
            "error.message" | "message" => {
                self.failed |= path == "error.message";
                self.message = text();
            }
            "error.type" | "type" => self.kind = text(),
            "error.code" | "code" => self.code = text(),
            _ => {}
        }
    }

    pub(super) fn end(&self, sink: &mut dyn Sink) {
        if is_report(&self.usage) {
            sink.delta(0, Delta::Usage(self.usage));
        }
        if self.failed {
            let (message, kind, code) = (self.message.as_deref(), self.kind.as_deref(), self.code.as_deref());
            sink.delta(0, Delta::Fault { message, kind, code });
        }
    }
}

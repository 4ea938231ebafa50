//! Errors, as servers put them into replies, and as we do.

use super::{Delta, Sink};
use crate::measure::json::Walk;

/// An error inside an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fault<'a> {
    pub(super) message: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    pub(super) code: Option<&'a str>,
}

impl<'a> Fault<'a> {
    /// An `error` field: an object with a message, or the message itself. `null` is none.
    pub(super) fn read(walk: &mut Walk<'a>) -> Option<Option<Self>> {
        if !walk.is_object() {
            return Some(match walk.raw()? {
                b"null" => None,
                raw => Some(Self { message: unquoted(raw), ..Self::default() }),
            });
        }
        let (mut fault, mut status) = (Self::default(), None);
        walk.object(|key, walk| {
            match key {
                b"message" => fault.message = walk.text()?,
                b"type" => fault.kind = walk.text()?,
                // Gemini's class.
                b"status" => status = walk.text()?,
                b"code" => fault.code = code(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        fault.kind = fault.kind.or(status);
        Some(Some(fault))
    }

    pub(super) fn tell(self, sink: &mut dyn Sink) {
        let Self { message, kind, code } = self;
        sink.delta(0, Delta::Fault { message, kind, code });
    }
}

/// An error's code: a number, a string without its quotes, or none.
pub(super) fn code<'a>(walk: &mut Walk<'a>) -> Option<Option<&'a str>> {
    Some(Some(walk.raw()?).filter(|raw| *raw != b"null").and_then(unquoted))
}

fn unquoted(raw: &[u8]) -> Option<&str> {
    let raw = std::str::from_utf8(raw).ok()?;
    Some(raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw))
}

/// An error reply in OpenAI's shape.
pub(super) fn error_body(status: u16, message: &str) -> String {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string()
}

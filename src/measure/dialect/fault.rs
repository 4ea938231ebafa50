//! Error objects in server replies, and error replies of the proxy.

use super::{Delta, DeltaSink};
use crate::measure::json_walker::JsonWalker;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorObject<'a> {
    pub(super) message: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    pub(super) code: Option<&'a str>,
}

impl<'a> ErrorObject<'a> {
    /// Takes an `error` field: an object with a message, or the message itself. `null` means no error.
    pub(super) fn read(walk: &mut JsonWalker<'a>) -> Option<Option<Self>> {
        if !walk.is_object() {
            return Some(match walk.raw()? {
                "null" => None,
                raw => Some(Self { message: Some(text(raw)), ..Self::default() }),
            });
        }
        let (mut fault, mut status) = (Self::default(), None);
        walk.object(|key, walk| {
            match key {
                b"message" => fault.message = walk.text()?,
                b"type" => fault.kind = walk.text()?,
                // Gemini's error class.
                b"status" => status = walk.text()?,
                b"code" => fault.code = code(walk)?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        fault.kind = fault.kind.or(status);
        Some(Some(fault))
    }

    /// Reads an event whose name marks it as an error: the error is at the top level or in its `error` field.
    pub(super) fn named(data: &'a [u8]) -> Self {
        JsonWalker::new(data).and_then(|mut walk| Self::read(&mut walk)).flatten().unwrap_or_default()
    }

    /// Sets the class to `kind` if the error has none: TGI puts `error_type` beside the message.
    pub(super) fn of_kind(self, kind: Option<&'a str>) -> Self {
        Self { kind: self.kind.or(kind), ..self }
    }

    pub(super) fn emit(self, sink: &mut dyn DeltaSink) {
        let Self { message, kind, code } = self;
        sink.delta(0, Delta::Fault { message, kind, code });
    }
}

/// Reports an error whose message is plain text, not JSON.
pub(super) fn tell_plain(message: Option<&str>, kind: Option<&str>, sink: &mut dyn DeltaSink) {
    let quoted = message.map(|message| serde_json::Value::from(message).to_string());
    ErrorObject { message: quoted.as_deref().map(text), kind, code: None }.emit(sink);
}

/// Takes an error code: a number, a quoted string, or `null`.
pub(super) fn code<'a>(walk: &mut JsonWalker<'a>) -> Option<Option<&'a str>> {
    Some(Some(walk.raw()?).filter(|raw| *raw != "null"))
}

/// Strips the quotes of a string; returns anything else unchanged.
fn text(raw: &str) -> &str {
    raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw)
}

/// Error reply of the proxy in OpenAI's format.
pub(super) fn error_body(status: u16, message: &str) -> String {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string()
}

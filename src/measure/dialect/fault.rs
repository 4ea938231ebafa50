//! Errors, as servers put them into replies, and as we do.

use super::{Delta, DeltaSink};
use crate::measure::json_walker::JsonWalker;

/// An error inside an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ErrorObject<'a> {
    pub(super) message: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    pub(super) code: Option<&'a str>,
}

impl<'a> ErrorObject<'a> {
    /// An `error` field: an object with a message, or the message itself. `null` is none.
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

    /// An event that is an error by its name: what its data says, at its top or in its `error`.
    pub(super) fn named(data: &'a [u8]) -> Self {
        JsonWalker::new(data).and_then(|mut walk| Self::read(&mut walk)).flatten().unwrap_or_default()
    }

    /// The same, its class being `kind` if it has none itself: TGI has it beside the message, as `error_type`.
    pub(super) fn of_kind(self, kind: Option<&'a str>) -> Self {
        Self { kind: self.kind.or(kind), ..self }
    }

    pub(super) fn emit(self, sink: &mut dyn DeltaSink) {
        let Self { message, kind, code } = self;
        sink.delta(0, Delta::Fault { message, kind, code });
    }
}

/// Tells an error whose message is text and no JSON.
pub(super) fn tell_plain(message: Option<&str>, kind: Option<&str>, sink: &mut dyn DeltaSink) {
    let quoted = message.map(|message| serde_json::Value::from(message).to_string());
    ErrorObject { message: quoted.as_deref().map(text), kind, code: None }.emit(sink);
}

/// An error's code: a number, a string in its quotes, or none.
pub(super) fn code<'a>(walk: &mut JsonWalker<'a>) -> Option<Option<&'a str>> {
    Some(Some(walk.raw()?).filter(|raw| *raw != "null"))
}

/// The inside of a string; anything else as it stands.
fn text(raw: &str) -> &str {
    raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw)
}

/// An error reply in OpenAI's shape.
pub(super) fn error_body(status: u16, message: &str) -> String {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string()
}

//! Detects the dialect from the shape of events, for paths that do not identify it.
//!
//! Events that fit several dialects (Azure's first has an empty `object`) are skipped until one decides. Nothing is
//! counted before that. A stream without a decisive event is plain HTTP.

use super::{Delta, DeltaSink, Dialect, DialectReader, RequestShape, named};
use crate::measure::framing::Event;
use crate::measure::json_walker::JsonWalker;

/// Events to inspect before the stream is treated as plain HTTP.
const MAX_DETECTION_EVENTS: u32 = 64;

/// Returns a reader that detects the dialect.
pub(in crate::measure) fn reader(shape: &RequestShape) -> Box<dyn DialectReader> {
    Box::new(UndetectedReader { shape: shape.clone(), looked_at: 0, usual: None, reader: None })
}

/// Returns a reader for a path that usually has the dialect `usual`; a decisive event can switch it.
pub(super) fn unless_told(
    shape: &RequestShape,
    usual: &'static str,
    reader: Box<dyn DialectReader>,
) -> Box<dyn DialectReader> {
    Box::new(UndetectedReader { shape: shape.clone(), looked_at: 0, usual: Some(usual), reader: Some(reader) })
}

struct UndetectedReader {
    shape: RequestShape,
    /// Events inspected; [`MAX_DETECTION_EVENTS`] after one has decided.
    looked_at: u32,
    usual: Option<&'static str>,
    reader: Option<Box<dyn DialectReader>>,
}

impl DialectReader for UndetectedReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if self.looked_at < MAX_DETECTION_EVENTS {
            self.looked_at += 1;
            if let Some(dialect) = by_shape(event) {
                self.looked_at = MAX_DETECTION_EVENTS;
                if self.usual != Some(dialect.name) {
                    sink.delta(0, Delta::Dialect(dialect));
                    self.reader = Some((dialect.reader)(&self.shape));
                }
            }
        }
        if let Some(reader) = &mut self.reader {
            reader.event(event, sink);
        }
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.reader.as_mut().filter(|_| self.looked_at == MAX_DETECTION_EVENTS)?.recognize(bytes)
    }
}

/// Returns the dialect of an event if its shape is decisive.
fn by_shape(event: &Event<'_>) -> Option<&'static Dialect> {
    let name = match event.name {
        b"messageStart" | b"contentBlockStart" | b"contentBlockDelta" => Some("bedrock.converse"),
        b"chunk" => Some("bedrock.invoke"),
        _ => None,
    };
    name.or_else(|| by_keys(event.data)).and_then(named)
}

fn by_keys(data: &[u8]) -> Option<&'static str> {
    let (mut name, mut ollama, mut done) = (None, None, false);
    let mut walk = JsonWalker::new(data)?;
    walk.object(|key, walk| {
        let found = match key {
            b"object" => match walk.text()? {
                Some("text_completion") => Some("openai.completions"),
                Some(object) if object.ends_with(".chunk") => Some("openai.chat"),
                _ => None,
            },
            b"type" => match walk.text()? {
                Some("message_start") => Some("anthropic.messages"),
                Some(kind) if kind.starts_with("response.") => Some("openai.responses"),
                _ => None,
            },
            b"token" if walk.is_object() => skipped(walk, "tgi.stream")?,
            b"meta_info" if walk.is_object() => skipped(walk, "sglang.generate")?,
            b"tokens_predicted" => skipped(walk, "llamacpp.completion")?,
            b"text_output" => skipped(walk, "triton.generate")?,
            b"candidates" => skipped(walk, "gemini")?,
            b"output_mode" => skipped(walk, "vllm.generate")?,
            b"done" => {
                done = matches!(walk.raw()?, "true" | "false");
                None
            }
            b"message" => {
                ollama = skipped(walk, "ollama.chat")?;
                None
            }
            b"response" => {
                ollama = ollama.or(skipped(walk, "ollama.generate")?);
                None
            }
            _ => {
                walk.skip()?;
                None
            }
        };
        name = name.or(found);
        Some(())
    })?;
    name.or(ollama.filter(|_| done))
}

fn skipped(walk: &mut JsonWalker<'_>, name: &'static str) -> Option<Option<&'static str>> {
    walk.skip()?;
    Some(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::framing::PayloadKind;

    #[test]
    fn the_shape_of_an_event_tells_its_dialect() {
        for (data, name) in [
            (r#"{"id":"1","object":"chat.completion.chunk","choices":[]}"#, Some("openai.chat")),
            (r#"{"object":"text_completion","choices":[]}"#, Some("openai.completions")),
            (r#"{"type":"response.created","response":{}}"#, Some("openai.responses")),
            (r#"{"type":"message_start","message":{}}"#, Some("anthropic.messages")),
            (r#"{"index":1,"token":{"id":1}}"#, Some("tgi.stream")),
            (r#"{"text":"a","meta_info":{}}"#, Some("sglang.generate")),
            (r#"{"content":"a","tokens_predicted":1}"#, Some("llamacpp.completion")),
            (r#"{"done":false,"message":{"role":"assistant"}}"#, Some("ollama.chat")),
            (r#"{"response":"a","done":false}"#, Some("ollama.generate")),
            (r#"{"model_name":"m","text_output":"a"}"#, Some("triton.generate")),
            (r#"{"candidates":[]}"#, Some("gemini")),
            (r#"{"request_id":"1","output_mode":"tokens","choices":[]}"#, Some("vllm.generate")),
            (r#"{"object":"","choices":[],"prompt_filter_results":[]}"#, None),
            (r#"{"type":"ping"}"#, None),
            (r#"{"done":"soon","message":"a"}"#, None),
            (r#"{"token":"secret"}"#, None),
            ("[1]", None),
            ("{", None),
        ] {
            let event = Event { name: b"", data: data.as_bytes(), mark: PayloadKind::Plain };
            assert_eq!(by_shape(&event).map(|dialect| dialect.name), name, "{data}");
        }
    }
}

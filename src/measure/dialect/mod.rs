//! Dialects: what an event of a server's stream means.
//!
//! A dialect is one file, one row of [`TABLE`] and its vectors under `tests/data/vectors`: adding one touches nothing
//! else. It knows the names of its request's and reply's JSON fields (they stand nowhere else) and says what each event
//! means in the vocabulary of [`Delta`]; it does not time, count or decide.
//!
//! The path chooses the dialect ([`for_path`]), by its end: prefixes such as `/openai` are common. The response decides
//! whether it is a stream. An unknown path is plain HTTP.

pub mod ask_usage;
pub mod hide_usage;
mod openai;
mod openai_chat;
mod openai_completions;
mod openai_document;
mod skeleton;

use super::framing::Event;
use super::record::{CountSource, FinishReason, Usage};
use super::scan::Scalar;
use super::shape::RequestShape;

/// One row of the table.
#[derive(Debug)]
pub struct Dialect {
    /// The dialect's name.
    pub name: &'static str,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The route it is counted under.
    pub route: &'static str,
    /// Whether a request path (without query) speaks it.
    matches: fn(path: &str) -> bool,
    /// A reader for one reply.
    pub(super) reader: fn(&RequestShape) -> Box<dyn Reader>,
    /// The request fields that shape the work, by path.
    pub(super) request_fields: &'static [&'static str],
    /// Notes one of them.
    pub(super) request: fn(&mut RequestShape, &str, Scalar<'_>),
    /// The body of an error reply of ours, in the dialect's own shape: (status, message) to JSON.
    pub error_body: fn(u16, &str) -> String,
}

impl Dialect {
    /// Whether its requests have this field.
    pub fn asks(&self, field: &str) -> bool {
        self.request_fields.contains(&field)
    }
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every dialect. The first row that matches a path wins.
pub static TABLE: &[Dialect] = &[openai_chat::DIALECT, openai_completions::DIALECT];

/// The dialect of a request path, without its query.
pub fn for_path(path: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| (dialect.matches)(path))
}

/// The dialect of that name.
pub fn named(name: &str) -> Option<&'static Dialect> {
    TABLE.iter().find(|dialect| dialect.name == name)
}

/// What one server event means to us. An event may mean several things.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delta<'a> {
    /// Generated text that a user could see, or generated ids where there is no text.
    Output {
        /// What kind of text.
        kind: OutputKind,
        /// How many tokens, where the event tells.
        tokens: Option<Counted>,
    },
    /// Proof that a token exists, without text.
    Evidence {
        /// How many tokens, where the event tells.
        tokens: Option<Counted>,
    },
    /// All tokens of the choice so far, by the server's running counter.
    Total(u64),
    /// The server's counts. All-zero reports never get here.
    Usage(Usage),
    /// The choice is finished, in the server's own word.
    Finish(FinishReason, &'a str),
    /// The server reports an error.
    Fault {
        /// Its message: text, to be shown by `inspect` and kept nowhere.
        message: Option<&'a str>,
        /// Its class.
        kind: Option<&'a str>,
        /// Its code as written (a number, or a string without quotes).
        code: Option<&'a str>,
    },
    /// The id of the reply.
    Id(&'a str),
    /// The model that the reply names.
    Model(&'a str),
    /// The dialect's terminal event.
    Done,
    /// It could not be understood.
    Malformed,
}

/// What kind of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Content of the answer.
    Text,
    /// Reasoning shown before it.
    Reasoning,
    /// A tool's name or arguments.
    Tool,
    /// A refusal.
    Refusal,
    /// Audio or its transcript.
    Audio,
}

/// A finish reason in the server's word, in the one vocabulary. Empty means not finished.
pub(super) fn finish_reason(raw: &str) -> Option<FinishReason> {
    Some(match raw {
        "" => return None,
        "stop" | "end_turn" | "stop_sequence" | "eos_token" | "STOP" | "eos" | "word" | "completed" => {
            FinishReason::Stop
        }
        "length" | "max_tokens" | "MAX_TOKENS" | "model_context_window_exceeded" | "limit" | "max_output_tokens" => {
            FinishReason::Length
        }
        "tool_calls" | "function_call" | "tool_use" => FinishReason::Tool,
        "content_filter"
        | "refusal"
        | "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "guardrail_intervened" => FinishReason::Filter,
        "abort" | "cancelled" => FinishReason::Abort,
        "error" => FinishReason::Error,
        _ => FinishReason::Other,
    })
}

/// Tokens of one event, and where that number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The tokens.
    pub tokens: u32,
    /// [`CountSource::ContinuousUsage`] or [`CountSource::Ids`].
    pub source: CountSource,
}

/// A count of tokens as a server wrote it. What nobody can have generated is no count: believed once, it would stand
/// in every sum for good.
pub(super) fn believed(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count < 1 << 32)
}

/// A running count for each choice, the first [`Counters::MOST`] of them.
#[derive(Debug, Default)]
pub(super) struct Counters(Vec<(u32, u64)>);

impl Counters {
    const MOST: usize = 128;

    /// Sets a choice's count; returns the one before.
    pub(super) fn set(&mut self, choice: u32, count: u64) -> Option<u64> {
        if let Some((_, before)) = self.0.iter_mut().find(|(index, _)| *index == choice) {
            return Some(std::mem::replace(before, count));
        }
        if self.0.len() < Self::MOST {
            self.0.push((choice, count));
        }
        None
    }

    /// How many choices have a count.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All counts together.
    pub(super) fn sum(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// Takes what an event means. `choice` is 0 where the dialect has no choices.
pub trait Sink {
    /// One meaning of the event in hand.
    fn delta(&mut self, choice: u32, delta: Delta<'_>);
}

/// Reads the reply of one request.
pub trait Reader: Send {
    /// One event of a stream.
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink);

    /// Whether an event that the body's end cut short counts as whole.
    fn is_whole(&self, data: &[u8]) -> bool {
        data.trim_ascii() == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
    }

    /// Whether a scalar of a reply in one JSON document matters.
    fn wants(&self, path: &str) -> bool;

    /// One such scalar; `index` is the element of the outermost array.
    fn scalar(&mut self, path: &str, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink);

    /// The document has ended.
    fn document_end(&mut self, sink: &mut dyn Sink);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_path_chooses_the_dialect() {
        let name = |path| for_path(path).map(|dialect| dialect.name);
        for path in ["/v1/chat/completions", "/openai/deployments/d1/chat/completions", "/api/chat/completions"] {
            assert_eq!(name(path), Some("openai.chat"), "{path}");
        }
        assert_eq!(name("/v1/completions"), Some("openai.completions"));
        assert_eq!(name("/openai/deployments/d1/completions"), Some("openai.completions"));
        for path in ["/", "/v1/models", "/v1/chat/completions/render", "/health", "/metrics"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}

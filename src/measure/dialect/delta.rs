//! Effects of an event on a stream's statistics.

use super::Dialect;
use crate::measure::time::Gap;
use crate::measure::usage::{CountSource, FinishReason, Usage};

/// One meaning of a server event. An event may have several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delta<'a> {
    /// Generated text that a user could see, or generated ids if the server sends no text.
    Output {
        /// The kind of text.
        kind: OutputKind,
        /// Token count, if the event carries one.
        tokens: Option<TokenIncrement>,
    },
    /// Proof of a token without text.
    Evidence {
        /// Token count, if the event carries one.
        tokens: Option<TokenIncrement>,
    },
    /// The event certainly contains no token.
    NoToken,
    /// Tokens of the choice so far, from the server's running counter.
    Total(u64),
    /// The server's counts, never all-zero.
    Usage(Usage),
    /// Time from the start of the prefill to the first token, by the engine's own clock.
    Prefill(Gap),
    /// The choice is finished; the text is the server's own reason.
    Finish(FinishReason, &'a str),
    /// The server reports an error.
    Fault {
        /// Message, as the inside of a JSON string with its escapes. Only `inspect` shows it; it is never stored.
        message: Option<&'a str>,
        /// Error class, escaped like the message.
        kind: Option<&'a str>,
        /// Error code as a JSON value: a number, or a quoted string.
        code: Option<&'a str>,
    },
    /// Id of the reply.
    Id(&'a str),
    /// The model that the reply names.
    Model(&'a str),
    /// The dialect, detected from this event because the path did not identify it.
    Dialect(&'static Dialect),
    /// The terminal event of the dialect.
    Done,
    /// The event is unreadable.
    Malformed,
}

/// Kind of generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Content of the answer.
    Text,
    /// Reasoning before the answer.
    Reasoning,
    /// A tool's name or arguments.
    Tool,
    /// A refusal.
    Refusal,
    /// Audio or its transcript.
    Audio,
}

/// Tokens of one event, with the source of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenIncrement {
    /// Token count.
    pub tokens: u32,
    /// [`CountSource::ContinuousUsage`] or [`CountSource::Ids`]; [`CountSource::Chunks`] if the dialect has one token
    /// per event.
    pub source: CountSource,
}

impl TokenIncrement {
    /// From the growth of a running counter.
    pub(super) fn growth(tokens: u64) -> Self {
        Self { tokens: u32::try_from(tokens).unwrap_or(u32::MAX), source: CountSource::ContinuousUsage }
    }

    /// From the length of a list.
    pub(super) fn listed(tokens: u32) -> Self {
        Self { tokens, source: CountSource::Ids }
    }
}

/// Receives the meanings of events. `choice` is 0 if the dialect has no choices.
pub trait DeltaSink {
    /// Receives one meaning of the current event.
    fn delta(&mut self, choice: u32, delta: Delta<'_>);
}

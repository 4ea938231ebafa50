//! A reply's own report: token counts and their sources, finish reasons, errors.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Stamp;

/// Number of output tokens and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// Token count.
    pub tokens: u64,
    /// Source of the count.
    pub source: CountSource,
}

/// Source of a token count, best first. A stream that ends early keeps its best count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// The server's final usage report.
    Usage,
    /// A cumulative counter within the stream.
    ContinuousUsage,
    /// Lists with one entry per token: generated ids, else log probabilities.
    Ids,
    /// A local tokenizer.
    Tokenizer,
    /// Events that prove a token: an estimate, usually a lower bound.
    Chunks,
}

impl CountSource {
    /// All sources, best first.
    pub const ALL: [Self; 5] = [Self::Usage, Self::ContinuousUsage, Self::Ids, Self::Tokenizer, Self::Chunks];

    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::ContinuousUsage => "continuous_usage",
            Self::Ids => "ids",
            Self::Tokenizer => "tokenizer",
            Self::Chunks => "chunks",
        }
    }
}

/// Token counts as reported by the server. `None` does not mean zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, those from and to a cache included.
    pub input: Option<u64>,
    /// Prompt tokens from a cache.
    pub cached: Option<u64>,
    /// Prompt tokens written to a cache.
    pub cache_write: Option<u64>,
    /// Generated tokens, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens.
    pub reasoning: Option<u64>,
}

/// Why generation stopped, in one vocabulary for all dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A natural end or a stop string.
    Stop,
    /// The token limit.
    Length,
    /// A tool call.
    Tool,
    /// A content filter or refusal.
    Filter,
    /// Aborted at the server.
    Abort,
    /// An engine error.
    Error,
    /// Anything else.
    Other,
}

impl FinishReason {
    /// Displayed name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Tool => "tool",
            Self::Filter => "filter",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Other => "other",
        }
    }
}

/// Outcome of one choice of a reply (several if `n` > 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The choice's index.
    pub index: u32,
    /// Arrival of its first token event.
    pub first: Option<Stamp>,
    /// Arrival of its last token event.
    pub last: Option<Stamp>,
    /// Number of token events.
    pub token_events: u32,
    /// Finish reason, and the server's own word for it, cut at 32 bytes.
    pub finish: Option<(FinishReason, Cow<'static, str>)>,
}

/// An error that the server reported inside the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Index of the event that contained it, from 0.
    pub event: u64,
    /// The server's error class, if it looks like an identifier (letters, digits, `_ - .`); cut at 64 bytes.
    pub kind: Option<Box<str>>,
}

//! The record of one request, passed from the measuring threads to the reporting ones.
//!
//! A record contains times, counts and names. It has no field for text, so no prompt or reply text can enter it or
//! anything derived from it.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::bounded_vec::SmallList;
use super::failure::FailureOrigin;
use super::shape::RequestShape;
use super::slo::Slos;
use super::time::{Gap, Stamp};
use super::timeline::TokenEvent;
pub use super::unread_reason::UnreadReason;

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
    /// Prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens from a cache.
    pub cached: Option<u64>,
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

/// How the byte stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The upstream body ended according to its framing.
    Complete,
    /// The client disconnected first.
    DownstreamGone,
    /// The upstream was unreachable, or closed or reset the connection before the end of the body.
    UpstreamFailed,
    /// A time limit of the proxy ended it, or the process stopped.
    TimedOut,
}

impl Ending {
    /// Written name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::DownstreamGone => "downstream_gone",
            Self::UpstreamFailed => "upstream_failed",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Outcome of a request, decided by [`Outcome::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client received a complete answer.
    Success,
    /// The upstream stopped before the reply was finished.
    Truncated,
    /// The client disconnected before the reply was finished.
    Cancelled,
    /// Rejected with a 4xx status.
    Refused,
    /// A 5xx status, an error within the stream, or no response.
    Failed,
}

impl Outcome {
    /// Decides the outcome. `status` is `None` without a response head. `declared` means that the reply marked its
    /// own end: a finish reason for every choice, or the dialect's terminal event. `finished` is also true for a
    /// reply without such marks whose framing ended cleanly.
    ///
    /// A client that closes after that mark has its complete answer. OpenAI's client closes at `[DONE]` without
    /// waiting for the end of the body; others close at the finish reason.
    pub fn decide(ending: Ending, status: Option<u16>, fault: bool, finished: bool, declared: bool) -> Self {
        match (ending, status) {
            (Ending::DownstreamGone, Some(200..=299)) if declared && !fault => Self::Success,
            (Ending::DownstreamGone, _) => Self::Cancelled,
            (Ending::TimedOut, _) | (_, None | Some(500..)) => Self::Failed,
            (_, Some(400..=499)) => Self::Refused,
            _ if fault => Self::Failed,
            (Ending::UpstreamFailed, _) => Self::Truncated,
            (Ending::Complete, _) if finished => Self::Success,
            (Ending::Complete, _) => Self::Truncated,
        }
    }

    /// Exported name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Truncated => "truncated",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Source of the response's stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StampSource {
    /// The kernel's receive timestamp: the arrival of the bytes.
    Kernel,
    /// The clock after the read, which includes the task's scheduling delay.
    #[default]
    Read,
}

/// Limits on the trust in a record's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Unreadable events of a known dialect.
    pub malformed_events: u32,
    /// Reason why reading of the reply stopped before the end of the body.
    pub unread: Option<UnreadReason>,
    /// Reason why reading of the request stopped; the shape covers only the bytes before.
    pub request_unread: Option<UnreadReason>,
    /// Gaps dropped because the timeline was full.
    pub lost_gaps: u32,
    /// How long the client accepted no bytes; meanwhile the proxy reads the upstream late.
    pub write_blocked: Gap,
}

/// Stamps of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTimes {
    /// Planned send time in a replay.
    pub intended: Option<Stamp>,
    /// First byte of the request head at the proxy (`t_in`).
    pub received: Stamp,
    /// Last byte of the request written upstream (`t_up`).
    pub sent: Option<Stamp>,
    /// Arrival of the response head.
    pub head: Option<Stamp>,
    /// First byte of the response body.
    pub first_byte: Option<Stamp>,
    /// First proof that a token exists.
    pub first_evidence: Option<Stamp>,
    /// First reasoning text.
    pub first_reasoning: Option<Stamp>,
    /// First generated text of any kind.
    pub first_token: Option<Stamp>,
    /// First generated text that is not reasoning.
    pub first_output: Option<Stamp>,
    /// Last generated text.
    pub last_token: Option<Stamp>,
    /// End of the response.
    pub ended: Stamp,
}

/// All measurements of one finished request.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Shape of the request.
    pub shape: Arc<RequestShape>,
    /// SLOs in force when the request began.
    pub slos: Arc<Slos>,
    /// Stamps.
    pub times: RecordTimes,
    /// Response status; `None` without a response head.
    pub status: Option<u16>,
    /// The component at fault if the proxy sent a local reply. `None` if the server replied, or there was no reply.
    pub local_reply: Option<FailureOrigin>,
    /// How the byte stream ended.
    pub ending: Ending,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// Whether the response was a stream of events.
    pub streamed: bool,
    /// Events, with or without payload.
    pub events: u64,
    /// Comment lines (keep-alives).
    pub comments: u64,
    /// Events with generated text.
    pub token_events: u64,
    /// Events that prove a token.
    pub evidence_events: u64,
    /// Output tokens; `None` without any source.
    pub output_tokens: Option<TokenCount>,
    /// Tokens of the first token event, if known.
    pub first_event_tokens: Option<u32>,
    /// The server's own counts.
    pub usage: Usage,
    /// One entry per choice.
    pub choices: SmallVec<[Choice; 1]>,
    /// The server's error within the stream.
    pub fault: Option<Fault>,
    /// Id of the reply, cut at 64 bytes.
    pub response_id: Option<Box<str>>,
    /// The model that the reply names, cut at 256 bytes.
    pub response_model: Option<Arc<str>>,
    /// Gaps not yet drained as progress.
    pub gaps: Box<[TokenEvent]>,
    /// Stalls (gaps above the threshold) not yet drained as progress.
    pub stalls: u32,
    /// Output tokens already reported as progress.
    pub tokens_reported: u64,
    /// Longest gap between token events.
    pub longest_gap: Option<Gap>,
    /// All gaps of the stream.
    pub gap_count: u64,
    /// Gaps above each inter-token limit, in the order of [`Slos::gap_limits`].
    pub gaps_over: Box<[u64]>,
    /// Delays between the arrival of response bytes and their forwarding, in nanoseconds, in order of arrival.
    pub chunk_overheads: SmallList<u32>,
    /// Delay between reading and writing the last request byte.
    pub request_overhead: Option<Gap>,
    /// Delay between the arrival of the response head and its forwarding.
    pub head_overhead: Option<Gap>,
    /// Body bytes sent upstream.
    pub request_bytes: u64,
    /// Body bytes sent to the client.
    pub response_bytes: u64,
    /// Source of the response's stamps.
    pub stamps: StampSource,
    /// Limits on the trust in these numbers.
    pub quality: Quality,
}

impl RequestRecord {
    /// Time to first token: from the first byte of the request to the first generated text. `None` without text.
    pub fn ttft(&self) -> Option<Gap> {
        self.times.first_token.map(|first| first.since(self.times.received))
    }

    /// Time to first token from the last request byte written upstream; closest to the engine's own measurement.
    pub fn ttft_upstream(&self) -> Option<Gap> {
        Some(self.times.first_token?.since(self.times.sent?))
    }

    /// Time to the first proof of a token.
    pub fn ttft_evidence(&self) -> Option<Gap> {
        self.times.first_evidence.map(|first| first.since(self.times.received))
    }

    /// Time to the first output that is not reasoning.
    pub fn ttfo(&self) -> Option<Gap> {
        self.times.first_output.map(|first| first.since(self.times.received))
    }

    /// Time per output token, as defined by [`tpot`].
    pub fn tpot(&self) -> Option<Gap> {
        let decode = self.times.last_token?.since(self.times.first_token?);
        tpot(decode, self.token_events, self.output_tokens?.tokens, self.first_event_tokens)
    }

    /// From the first byte of the request to the end of the response.
    pub fn duration(&self) -> Gap {
        self.times.ended.since(self.times.received)
    }
}

/// Time per output token, which is also the mean inter-token latency:
/// (last − first token event) / (output tokens − tokens of the first event, 1 if unknown).
///
/// `None` with fewer than two tokens or token events, and if the first event had all tokens.
pub fn tpot(decode: Gap, token_events: u64, tokens: u64, first_event_tokens: Option<u32>) -> Option<Gap> {
    let rest = tokens.checked_sub(u64::from(first_event_tokens.unwrap_or(1).max(1)))?;
    (tokens >= 2 && rest > 0 && token_events >= 2).then(|| decode.divided_by(rest))
}

/// Later turns of live sessions, by the source of the assistant's earlier answers in their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterTurns {
    /// Turns with the server's own answers.
    #[serde(alias = "real")]
    pub verbatim: u64,
    /// Turns with filler words, because the answer was missing or too large, or the trace repeats other text.
    #[serde(alias = "made")]
    pub synthesized: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_follows_the_table() {
        use Ending::*;
        use Outcome::*;
        let decide = Outcome::decide;
        assert_eq!(decide(Complete, Some(200), false, true, true), Success);
        assert_eq!(decide(Complete, Some(200), false, true, false), Success);
        assert_eq!(decide(Complete, Some(200), false, false, false), Truncated);
        assert_eq!(decide(Complete, Some(200), true, true, true), Failed);
        assert_eq!(decide(Complete, Some(404), true, true, false), Refused);
        assert_eq!(decide(Complete, Some(503), true, true, false), Failed);
        assert_eq!(decide(UpstreamFailed, Some(200), false, false, false), Truncated);
        assert_eq!(decide(UpstreamFailed, None, false, false, false), Failed);
        assert_eq!(decide(DownstreamGone, Some(200), false, true, false), Cancelled);
        assert_eq!(decide(DownstreamGone, Some(200), false, true, true), Success);
        assert_eq!(decide(DownstreamGone, Some(200), true, true, true), Cancelled);
        assert_eq!(decide(DownstreamGone, None, false, false, false), Cancelled);
        assert_eq!(decide(TimedOut, None, false, false, false), Failed);
    }
}

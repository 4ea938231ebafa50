//! What one request came to: the record that crosses from the half that acts to the half that reports.
//!
//! A record holds times, counts and names. It has no place for text: what a person or a model said cannot get into
//! it, and so not into anything made from it.

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

/// A number of output tokens, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// The tokens.
    pub tokens: u64,
    /// Where the number comes from.
    pub source: CountSource,
}

/// Where a token count comes from, best first (a stream that dies early keeps the best it had).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CountSource {
    /// The server's final usage report.
    Usage,
    /// A cumulative counter that the server sent along the stream.
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

    /// The name under which the source is exported.
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

/// Token counts as the server reported them. Absent is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub input: Option<u64>,
    /// Prompt tokens that came from a cache.
    pub cached: Option<u64>,
    /// Generated tokens, reasoning included.
    pub output: Option<u64>,
    /// Generated tokens that were reasoning.
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
    /// The name under which the reason is shown.
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

/// What became of one choice of a reply (`n` > 1 makes several).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The choice's index.
    pub index: u32,
    /// Arrival of its first and last token event.
    pub first: Option<Stamp>,
    /// Arrival of its last token event.
    pub last: Option<Stamp>,
    /// How many token events it had.
    pub token_events: u32,
    /// Its finish reason and the server's own word for it, cut at 32 bytes.
    pub finish: Option<(FinishReason, Cow<'static, str>)>,
}

/// An error that the server reported inside the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The event that carried it, counted from 0.
    pub event: u64,
    /// The server's machine-readable class, if it looked like one (letters, digits, `_ - .`; cut at 64 bytes).
    pub kind: Option<Box<str>>,
}

/// How the bytes stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The upstream body ended as its framing says.
    Complete,
    /// The client left first.
    DownstreamGone,
    /// The upstream could not be reached, closed or reset before the body's end.
    UpstreamFailed,
    /// A time limit of ours ended it, or the process stopped.
    TimedOut,
}

impl Ending {
    /// The name under which the ending is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::DownstreamGone => "downstream_gone",
            Self::UpstreamFailed => "upstream_failed",
            Self::TimedOut => "timed_out",
        }
    }
}

/// What that means for the request. Decided once, in [`Outcome::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A whole answer.
    Success,
    /// The upstream stopped without saying that it was finished.
    Truncated,
    /// The client left before the reply was finished.
    Cancelled,
    /// Turned away with a 4xx.
    Refused,
    /// A 5xx, an error inside the stream, or no answer.
    Failed,
}

impl Outcome {
    /// The rule. `status` is `None` when no response head arrived. `declared` means that the reply itself said that it was
    /// finished: every choice had a finish reason, or the dialect's terminal event came. `finished` also holds where a
    /// reply has no such mark and its framing ended cleanly.
    ///
    /// A client that closes after that mark has its whole answer. Many clients do: OpenAI's closes at `[DONE]` and does
    /// not wait for the end of the body, and others close at the finish reason.
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

    /// The name under which the outcome is exported.
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

/// Where the stamps of the response come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StampSource {
    /// The kernel's receive timestamp: when the bytes arrived.
    Kernel,
    /// The clock after the read: when a task got round to them.
    #[default]
    Read,
}

/// How far the numbers of a record can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Events of a known dialect that made no sense.
    pub malformed_events: u32,
    /// Why reading of the reply stopped before its body did.
    pub unread: Option<UnreadReason>,
    /// The same of the request: what is known of it is what came before.
    pub request_unread: Option<UnreadReason>,
    /// Gaps that found the timeline full and were not kept.
    pub lost_gaps: u32,
    /// How long the client would not take bytes: while it is blocked the upstream is read late.
    pub write_blocked: Gap,
}

/// The points of one request on the monotonic line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTimes {
    /// When it should have been sent, in a replay.
    pub intended: Option<Stamp>,
    /// First byte of the request head at the proxy (`t_in`).
    pub received: Stamp,
    /// Last byte of the request written upstream (`t_up`).
    pub sent: Option<Stamp>,
    /// The response head.
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
    /// The end.
    pub ended: Stamp,
}

/// Everything known about one finished request.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// What was asked.
    pub shape: Arc<RequestShape>,
    /// The objectives that were in force when it began.
    pub slos: Arc<Slos>,
    /// When things happened.
    pub times: RecordTimes,
    /// Response status; `None` if no head arrived.
    pub status: Option<u16>,
    /// Set if the proxy made the response itself: whose fault that was. `None` if the server answered, or nobody did.
    pub local_reply: Option<FailureOrigin>,
    /// How the bytes stopped.
    pub ending: Ending,
    /// What that means.
    pub outcome: Outcome,
    /// Whether the answer came as a stream of events.
    pub streamed: bool,
    /// Events dispatched, payload or not.
    pub events: u64,
    /// Comment lines (keep-alives).
    pub comments: u64,
    /// Events with generated text.
    pub token_events: u64,
    /// Events that prove a token.
    pub evidence_events: u64,
    /// Output tokens; `None` where nothing tells.
    pub output_tokens: Option<TokenCount>,
    /// Tokens of the first token event, where known.
    pub first_event_tokens: Option<u32>,
    /// The server's own counts.
    pub usage: Usage,
    /// One entry per choice seen.
    pub choices: SmallVec<[Choice; 1]>,
    /// The server's in-stream error.
    pub fault: Option<Fault>,
    /// Id of the reply, cut at 64 bytes.
    pub response_id: Option<Box<str>>,
    /// The model that the reply names, cut at 256 bytes.
    pub response_model: Option<Arc<str>>,
    /// Gaps that were not yet handed out as progress.
    pub gaps: Box<[TokenEvent]>,
    /// Gaps above the stall threshold that were not yet handed out.
    pub stalls: u32,
    /// Output tokens already handed out as progress.
    pub tokens_reported: u64,
    /// Longest gap between token events.
    pub longest_gap: Option<Gap>,
    /// All gaps of the stream, and for each inter-token limit of the SLOs how many exceed it.
    pub gap_count: u64,
    /// See [`RequestRecord::gap_count`]; in the order of [`Slos::gap_limits`].
    pub gaps_over: Box<[u64]>,
    /// Delays between the arrival of response bytes and their hand-over to the client, the last ones first come.
    pub chunk_overheads: SmallList<u32>,
    /// Between the last request byte read and the last one written upstream.
    pub request_overhead: Option<Gap>,
    /// Between the arrival of the response head and its hand-over to the client.
    pub head_overhead: Option<Gap>,
    /// Body bytes to the upstream.
    pub request_bytes: u64,
    /// Body bytes to the client.
    pub response_bytes: u64,
    /// Where the response's stamps come from.
    pub stamps: StampSource,
    /// How far to trust all this.
    pub quality: Quality,
}

impl RequestRecord {
    /// Time to first token: first generated text, from the first byte of the request. Absent without one.
    pub fn ttft(&self) -> Option<Gap> {
        self.times.first_token.map(|first| first.since(self.times.received))
    }

    /// Time to first token from the last request byte written upstream: nearest to the engine's own clock.
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

    /// Time per output token: see [`tpot`].
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
/// Absent with fewer than two tokens, and where the count is only an estimate of one event.
pub fn tpot(decode: Gap, token_events: u64, tokens: u64, first_event_tokens: Option<u32>) -> Option<Gap> {
    let rest = tokens.checked_sub(u64::from(first_event_tokens.unwrap_or(1).max(1)))?;
    (tokens >= 2 && rest > 0 && token_events >= 2).then(|| decode.divided_by(rest))
}

/// Later turns of live sessions, by what their prompts say of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterTurns {
    /// The server's own answers.
    pub real: u64,
    /// Words, because there was no answer or no room for it, or the trace repeats something else.
    pub made: u64,
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

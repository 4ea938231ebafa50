//! The record of one request, passed from the measuring threads to the reporting ones.
//!
//! A record contains times, counts and names. It has no field for text, so no prompt or reply text can enter it or
//! anything derived from it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::bounded_vec::SmallList;
use super::failure::FailureOrigin;
pub use super::outcome::{Ending, Outcome};
use super::shape::RequestShape;
use super::slo::Slos;
use super::time::{Gap, Stamp};
use super::timeline::TokenEvent;
pub use super::unread_reason::UnreadReason;
pub use super::usage::{Choice, CountSource, Fault, FinishReason, TokenCount, Usage};

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
    /// True if the response was a stream of events.
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
    /// Time from the start of the prefill to the first token, as the engine reports it. What is left of the TTFT is its
    /// queue, its front end and the network.
    pub engine_prefill: Option<Gap>,
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

    /// Time to the first chunk of a stream, as the GenAI conventions call it. A chunk is an event with generated text;
    /// a role alone is none, because it shows no work of the engine.
    pub fn time_to_first_chunk(&self) -> Option<Gap> {
        self.ttft().filter(|_| self.streamed)
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

    /// The origin of the failure; `None` if the request did not fail.
    ///
    /// A local reply has its own origin. Otherwise the status takes precedence over the ending: a client that
    /// disconnects during a 503 did not cause the failure.
    pub fn failure_origin(&self) -> Option<FailureOrigin> {
        match (self.outcome, self.ending, self.status) {
            _ if self.local_reply.is_some() => self.local_reply,
            (Outcome::Success, ..) => None,
            (_, _, Some(500..)) => Some(FailureOrigin::Upstream),
            (_, _, Some(400..=499)) | (_, Ending::DownstreamGone, _) => Some(FailureOrigin::Client),
            (_, Ending::TimedOut, _) => Some(FailureOrigin::Proxy),
            (_, Ending::UpstreamFailed | Ending::Complete, _) => Some(FailureOrigin::Upstream),
        }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LaterTurns {
    /// Turns with the server's own answers.
    #[serde(alias = "real")]
    pub verbatim: u64,
    /// Turns with filler words, because the answer was missing or too large, or the trace repeats other text.
    #[serde(alias = "made")]
    pub synthesized: u64,
}

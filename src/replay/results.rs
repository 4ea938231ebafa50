//! What became of each request, as a row of the result.

use super::request_template::max_output_tokens;
use super::schedule::ScheduledRequest;
use crate::capture::row::{PromptShape, RequestParams, RequestTargets, TraceEntry, TransferStats};
use crate::capture::row_builder::response_fields;
use crate::measure::prefix_cache::mix;
use crate::measure::record::{CountSource, RequestRecord};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// Why a request got no whole answer, where the status does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureReason {
    /// No connection could be made.
    Connect,
    /// None could be made in time.
    ConnectTimeout,
    /// The server closed before the reply's end.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The reply is not HTTP/1.1.
    Malformed,
    /// It took longer than a request may.
    Timeout,
    /// The server says within the reply that it failed.
    ErrorEvent,
    /// The run was stopped.
    Stopped,
}

impl FailureReason {
    /// The name under which it is counted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Malformed => "malformed",
            Self::Timeout => "timeout",
            Self::ErrorEvent => "error_event",
            Self::Stopped => "stopped",
        }
    }
}

/// One request that was due, and its end.
#[derive(Debug)]
pub struct CompletedRequest {
    /// What was planned.
    pub scheduled: ScheduledRequest,
    /// When it was due.
    pub planned: Stamp,
    /// A lack of slots held it back.
    pub held_back: bool,
    /// Requests in flight when it was sent, itself left out.
    pub in_flight: u32,
    /// Which target.
    pub target: usize,
    /// What it was to be; its prompt was made to have so many tokens.
    pub wanted: RequestTargets,
    /// From the end of the answer before it in its session, where there was one.
    pub think: Option<Gap>,
    /// What the observer says. Its `received` is the moment of the first byte sent.
    pub record: RequestRecord,
    /// Every gap between token events.
    pub gaps: Vec<TokenEvent>,
    /// Gaps that were not kept.
    pub lost_gaps: u64,
    /// How long a connection was made for it; nothing where one was there.
    pub connect_time: Gap,
    /// Reads that brought the reply's body.
    pub reads: u32,
    /// Why there is no whole answer.
    pub failure_reason: Option<FailureReason>,
    /// Of a later turn of a live session: whether the real answers were in its prompt.
    pub verbatim_history: Option<bool>,
}

impl CompletedRequest {
    /// How much later than planned it was sent.
    pub fn lag(&self) -> Gap {
        self.record.times.received.since(self.planned)
    }

    /// Time to first token, from the planned moment: what a user would have felt.
    pub fn ttft_from_planned(&self) -> Option<Gap> {
        self.record.times.first_token.map(|first| first.since(self.planned))
    }

    /// From the planned moment to the end.
    pub fn duration_from_planned(&self) -> Gap {
        self.record.times.ended.since(self.planned)
    }

    /// The ids of its blocks. Another pass over the trace has other texts, and so other ids.
    fn blocks(&self) -> Vec<u64> {
        let (pass, ids) = (u64::from(self.scheduled.pass), self.scheduled.entry.prompt.blocks.iter());
        ids.map(|id| if pass > 0 { mix(*id, pass) } else { *id }).collect()
    }

    /// The row of the result. `begin` is time zero.
    pub fn row(&self, begin: Stamp, upstream: &str) -> TraceEntry {
        let (record, times) = (&self.record, &self.record.times);
        let after = |at: Stamp| at.since(times.received).as_nanos();
        let asked = &self.scheduled.entry;
        let usage = record.usage;
        TraceEntry {
            at: times.received.since(begin).as_nanos(),
            planned: Some(self.planned.since(begin).as_nanos()),
            model: asked.model.clone(),
            stream: record.shape.stream,
            params: RequestParams { max_tokens: max_output_tokens(asked), ..asked.params.clone() },
            prompt: PromptShape {
                bytes: None,
                tokens: usage.input.or(self.wanted.input_tokens),
                source: usage.input.map(|_| CountSource::Usage),
                cached: usage.cached,
                blocks: self.blocks(),
                parts: Vec::new(),
            },
            session: asked.session.clone(),
            turn: asked.turn,
            think: self.think.map(Gap::as_nanos),
            in_flight: Some(self.in_flight),
            wanted: self.wanted.clone(),
            transfer: Some(Box::new(TransferStats {
                connecting: Some(self.connect_time.as_nanos()),
                head: times.head.map(after),
                first_byte: times.first_byte.map(after),
                sent: Some(record.request_bytes),
                received: times.head.map(|_| record.response_bytes),
                reads: times.head.map(|_| self.reads),
            })),
            upstream: Some(upstream.to_owned()),
            ..response_fields(record, &self.gaps, self.lost_gaps, after)
        }
    }
}

//! The result of each request, and its row.

use crate::measure::record::{CountSource, RequestRecord};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;
use crate::replay::plan::schedule::ScheduledRequest;
use crate::replay::request::template::max_output_tokens;
use crate::stats::hash::combine;
use crate::trace_file::response_fields::response_fields;
use crate::trace_file::row::{PromptShape, RequestParams, RequestTargets, Timing, TraceEntry, TransferStats};

/// Why a request has no complete response, if the status does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureReason {
    /// The connection failed.
    Connect,
    /// The connection timed out.
    ConnectTimeout,
    /// The server closed the connection before the response's end.
    Closed,
    /// The server reset the connection.
    Reset,
    /// The response is not HTTP/1.1.
    Malformed,
    /// The request timed out.
    Timeout,
    /// The stream contains an error event.
    ErrorEvent,
    /// The run was stopped.
    Stopped,
}

impl FailureReason {
    /// The key in the result's error counts.
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

/// A request that has ended.
#[derive(Debug)]
pub struct CompletedRequest {
    /// The planned request.
    pub scheduled: ScheduledRequest,
    /// Planned send time.
    pub planned: Stamp,
    /// A lack of slots delayed it.
    pub held_back: bool,
    /// Other requests in flight when it was sent.
    pub in_flight: u32,
    /// Index of the target.
    pub target: usize,
    /// The planned values; its prompt was generated for this many tokens.
    pub planned_values: RequestTargets,
    /// Time since the end of the session's previous response, if any.
    pub think: Option<Gap>,
    /// The observer's record. Its `received` is the time of the first byte sent.
    pub record: RequestRecord,
    /// Every gap between token events.
    pub gaps: Vec<TokenEvent>,
    /// Gaps dropped beyond the limit.
    pub lost_gaps: u64,
    /// Time spent on a new connection; zero if an idle one was used.
    pub connect_time: Gap,
    /// Reads that returned body bytes.
    pub reads: u32,
    /// Why the response is incomplete.
    pub failure_reason: Option<FailureReason>,
    /// For later turns of live sessions: whether the prompt held the real responses.
    pub verbatim_history: Option<bool>,
}

impl CompletedRequest {
    /// Actual minus planned send time.
    pub fn lag(&self) -> Gap {
        self.record.times.received.since(self.planned)
    }

    /// The prompt's block ids. Later passes over the trace use other texts, and so other ids.
    fn blocks(&self) -> Vec<u64> {
        let (pass, ids) = (u64::from(self.scheduled.pass), self.scheduled.entry.prompt.blocks.iter());
        ids.map(|id| if pass > 0 { combine(*id, pass) } else { *id }).collect()
    }

    /// The result's row without its gaps. `begin` is time zero.
    pub fn row(&self, begin: Stamp, upstream: &str) -> TraceEntry {
        let (record, times) = (&self.record, &self.record.times);
        let after = |at: Stamp| at.since(times.received).as_nanos();
        let entry = &self.scheduled.entry;
        let usage = record.usage;
        let response = response_fields(record, after);
        TraceEntry {
            at: times.received.since(begin).as_nanos(),
            planned: Some(self.planned.since(begin).as_nanos()),
            model: entry.model.clone(),
            stream: record.shape.stream,
            params: RequestParams { max_tokens: max_output_tokens(entry), ..entry.params.clone() },
            prompt: PromptShape {
                bytes: None,
                tokens: usage.input.or(self.planned_values.input_tokens),
                source: usage.input.map(|_| CountSource::Usage),
                cached: usage.cached,
                blocks: self.blocks(),
                parts: Vec::new(),
            },
            session: entry.session.clone(),
            turn: entry.turn,
            parent: entry.parent.clone(),
            think: self.think.map(Gap::as_nanos),
            in_flight: Some(self.in_flight),
            wanted: self.planned_values.clone(),
            transfer: Some(Box::new(TransferStats {
                connecting: Some(self.connect_time.as_nanos()),
                head: times.head.map(after),
                first_byte: times.first_byte.map(after),
                sent: Some(record.request_bytes),
                received: times.head.map(|_| record.response_bytes),
                reads: times.head.map(|_| self.reads),
            })),
            upstream: Some(upstream.to_owned()),
            slo: entry.slo.clone(),
            timing: Timing { lost_gaps: (self.lost_gaps > 0).then_some(self.lost_gaps), ..response.timing },
            ..response
        }
    }
}

//! A simulated response, and its row of the trace file.

use std::sync::Arc;

use super::traffic::TwinRequest;
use crate::measure::record::{CountSource, Ending, FinishReason, Outcome};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;
use crate::trace_file::row::{PromptShape, RequestParams, RequestTargets, Timing, TraceEntry};

/// Route and dialect of rows that state none, so that SLOs apply to them.
const DEFAULT_ROUTE: (&str, &str) = ("/v1/chat/completions", "openai.chat");

/// How a simulated request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinOutcome {
    /// The response is complete.
    Complete,
    /// The client left, as in the traffic.
    Aborted,
    /// The replica failed.
    ReplicaLost,
    /// The request does not fit into the KV cache.
    TooLong,
    /// The gateway's admission limit.
    NotAdmitted,
    /// No replica takes requests, or none serves the model.
    NoReplica,
    /// [`MAX_QUEUED_REQUESTS`](super::fleet::MAX_QUEUED_REQUESTS) others wait.
    Overloaded,
}

/// A simulated response.
#[derive(Debug)]
pub struct TwinResponse {
    /// The request.
    pub request: Box<TwinRequest>,
    /// Name of the replica that sent the last token.
    pub replica: Option<Arc<str>>,
    /// How it ended.
    pub outcome: TwinOutcome,
    /// First token.
    pub first: Option<Stamp>,
    /// Gaps after the first token.
    pub events: Vec<TokenEvent>,
    /// End of the response.
    pub ended: Stamp,
    /// Tokens that were sent.
    pub generated: u32,
    /// Prompt tokens found in the cache.
    pub cached: u32,
    /// Requests of its replica when the replica received it, itself included.
    pub in_flight: u32,
}

impl TwinResponse {
    /// A response without tokens.
    pub(super) fn refused(request: Box<TwinRequest>, outcome: TwinOutcome) -> Self {
        let ended = request.at;
        Self {
            request,
            replica: None,
            outcome,
            first: None,
            events: Vec::new(),
            ended,
            generated: 0,
            cached: 0,
            in_flight: 0,
        }
    }

    /// Time to first token.
    pub fn ttft(&self) -> Option<Gap> {
        self.first.map(|first| first.since(self.request.at))
    }

    /// Time from arrival to the end.
    pub fn e2e(&self) -> Gap {
        self.ended.since(self.request.at)
    }

    /// Time per output token after the first.
    pub fn tpot(&self) -> Option<Gap> {
        let first = self.first.filter(|_| self.generated > 1)?;
        Some(self.ended.since(first).divided_by(u64::from(self.generated) - 1))
    }

    /// The row and the gaps of its response. A response that was not requested as a stream has one event, its end.
    pub fn into_row(self) -> (TraceEntry, Vec<TokenEvent>) {
        let Self { request, replica, outcome, first, events, ended, generated, cached, .. } = self;
        let TwinRequest { at, prompt_tokens, think, entry, .. } = *request;
        let after = |stamp: Stamp| stamp.since(at).as_nanos();
        let streamed = entry.stream != Some(false);
        let first = if streamed { first } else { first.map(|_| ended) };
        let events = if streamed { events } else { Vec::new() };
        let (status, ending, result, finish) = match outcome {
            TwinOutcome::Complete => {
                (Some(200), Ending::Complete, Outcome::Success, Some(entry.finish.unwrap_or(FinishReason::Stop)))
            }
            TwinOutcome::Aborted => (Some(200), Ending::DownstreamGone, Outcome::Cancelled, None),
            TwinOutcome::ReplicaLost if first.is_some() => {
                (Some(200), Ending::UpstreamFailed, Outcome::Truncated, None)
            }
            TwinOutcome::ReplicaLost => (Some(502), Ending::Complete, Outcome::Failed, None),
            TwinOutcome::TooLong => (Some(400), Ending::Complete, Outcome::Refused, None),
            TwinOutcome::NotAdmitted => (Some(429), Ending::Complete, Outcome::Refused, None),
            TwinOutcome::NoReplica => (Some(503), Ending::Complete, Outcome::Failed, None),
            TwinOutcome::Overloaded => (Some(503), Ending::Complete, Outcome::Refused, None),
        };
        let counted = first.is_some();
        let row = TraceEntry {
            at: at.as_nanos(),
            planned: Some(at.as_nanos()),
            route: Some(entry.route.unwrap_or_else(|| DEFAULT_ROUTE.0.to_owned())),
            dialect: Some(entry.dialect.unwrap_or_else(|| DEFAULT_ROUTE.1.to_owned())),
            model: entry.model,
            stream: Some(streamed),
            params: RequestParams { n: None, ..entry.params },
            prompt: PromptShape {
                tokens: Some(u64::from(prompt_tokens)),
                source: Some(CountSource::Usage),
                cached: counted.then_some(u64::from(cached)),
                blocks: entry.prompt.blocks,
                ..PromptShape::default()
            },
            session: entry.session,
            slo: entry.slo,
            turn: entry.turn,
            parent: entry.parent,
            think: think.map(Gap::as_nanos),
            status,
            ending: Some(ending),
            outcome: Some(result),
            finish,
            output_tokens: counted.then_some(u64::from(generated)),
            output_source: counted.then_some(CountSource::Usage),
            timing: Timing {
                sent: Some(0),
                evidence: first.map(after),
                first_token: first.map(after),
                first_output: first.map(after),
                ended: Some(after(ended)),
                first_tokens: first.map(|_| if streamed { 1 } else { generated }),
                ..Timing::default()
            },
            abort_tokens: (outcome == TwinOutcome::Aborted).then_some(u64::from(generated)),
            wanted: RequestTargets {
                input_tokens: Some(u64::from(prompt_tokens)),
                output_tokens: entry.output_tokens.or(entry.wanted.output_tokens),
                ..RequestTargets::default()
            },
            upstream: replica.map(|replica| replica.to_string()),
            class: entry.class,
            ..TraceEntry::default()
        };
        (row, events)
    }
}

//! A trace row unpacked for reports, with its times on the timeline shared by all sources.

use crate::measure::dialect;
use crate::measure::record::{CountSource, Outcome, TokenCount};
use crate::measure::request_class::ClassValues;
use crate::measure::slo::RequestSlo;
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;
use crate::trace_file::blocks::{block_tokens, chained_ids};
use crate::trace_file::gaps::{GapsError, unpack};
use crate::trace_file::header::BlockScheme;
use crate::trace_file::row::{RequestTargets, TraceEntry, TransferStats};

/// Operations whose responses contain no text.
const TEXTLESS_OPERATIONS: [&str; 2] = ["embeddings", "rerank"];

/// One request of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    /// Planned send time; runs only.
    pub planned: Option<Stamp>,
    /// First byte: received by the proxy, or sent by a replay.
    pub sent: Stamp,
    /// Last request byte handed to the server.
    pub written: Option<Stamp>,
    /// First generated text.
    pub first: Option<Stamp>,
    /// First generated text that is not reasoning.
    pub output: Option<Stamp>,
    /// Last generated text; unknown if gaps were lost.
    pub last: Option<Stamp>,
    /// End of the response.
    pub ended: Option<Stamp>,
    /// Each gap between token events, with the later event's tokens.
    pub events: Vec<TokenEvent>,
    /// Gaps that the record does not contain.
    pub lost_gaps: u64,
    /// Tokens of the first token event.
    pub first_tokens: Option<u32>,
    /// `true` if the response was streamed.
    pub streamed: bool,
    /// Output tokens, with the source of the count.
    pub tokens: Option<TokenCount>,
    /// Reasoning tokens among them, as the server reports.
    pub reasoning: Option<u64>,
    /// Requested limit on output tokens.
    pub max_tokens: Option<u64>,
    /// Prompt tokens.
    pub input: Option<u64>,
    /// Source of the prompt token count.
    pub input_source: Option<CountSource>,
    /// Prompt tokens from the server's cache.
    pub cached: Option<u64>,
    /// Block ids of the prompt. Each id covers the whole prefix up to its block.
    pub blocks: Vec<u64>,
    /// Tokens per block.
    pub block_tokens: u64,
    /// Time since the end of the session's previous response, in nanoseconds.
    pub think_nanos: Option<u64>,
    /// Values that a run planned for the request.
    pub planned_values: RequestTargets,
    /// Transfer details of a run's request.
    pub transfer: TransferStats,
    /// Output tokens received before the client disconnected early.
    pub abort_tokens: Option<u64>,
    /// Outcome, if known.
    pub outcome: Option<Outcome>,
    /// HTTP status of the response.
    pub status: Option<u16>,
    /// Session id and the turn's position in it.
    pub session: Option<(String, u32)>,
    /// Id of the session that this one is a sub-agent of.
    pub parent: Option<String>,
    /// Requested model.
    pub model: Option<String>,
    /// Dialect.
    pub dialect: Option<String>,
    /// URL of the server.
    pub upstream: Option<String>,
    /// Values of the configured classes.
    pub classes: ClassValues,
    /// Limits that the request set for itself.
    pub slo: RequestSlo,
    /// Other requests in flight when this one was sent.
    pub in_flight: Option<u32>,
}

impl RequestView {
    /// Reads a row. `shift` moves its times onto the shared timeline, in nanoseconds. `blocks` is the trace header's
    /// block scheme.
    ///
    /// # Errors
    /// Returns [`GapsError`] if the row's gaps cannot be decoded.
    pub fn from_row(row: TraceEntry, shift: u64, blocks: Option<&BlockScheme>) -> Result<Self, GapsError> {
        let events = row.timing.gaps.as_deref().map(unpack).transpose()?.unwrap_or_default();
        Ok(Self::with_events(row, events, shift, blocks))
    }

    /// Reads a row whose gaps are `events`, already unpacked. The other arguments are those of
    /// [`from_row`](Self::from_row).
    pub fn with_events(row: TraceEntry, events: Vec<TokenEvent>, shift: u64, blocks: Option<&BlockScheme>) -> Self {
        let ids = blocks.map(|blocks| chained_ids(blocks, &row).collect()).unwrap_or_default();
        let (aborted, slo) = (row.is_aborted(), row.request_slo());
        let timing = row.timing;
        let on_line = |at: u64| Stamp::from_nanos(at.saturating_add(shift));
        let sent = on_line(row.at);
        let after = |nanos: Option<u64>| nanos.map(|nanos| sent.after(Gap::from_nanos(nanos)));
        let first = after(timing.first_token);
        let lost_gaps = timing.lost_gaps.unwrap_or(0);
        let decode = events.iter().fold(0_u64, |sum, event| sum.saturating_add(event.gap().as_nanos()));
        Self {
            planned: row.planned.map(on_line),
            sent,
            written: after(timing.sent),
            first,
            output: after(timing.first_output),
            last: first.map(|first| first.after(Gap::from_nanos(decode))).filter(|_| lost_gaps == 0),
            ended: after(timing.ended),
            // Some dialects do not request streaming explicitly.
            streamed: row.stream.unwrap_or(!events.is_empty()),
            events,
            lost_gaps,
            first_tokens: timing.first_tokens,
            tokens: row.output_tokens.zip(row.output_source).map(|(tokens, source)| TokenCount { tokens, source }),
            reasoning: row.reasoning_tokens,
            max_tokens: row.params.max_tokens,
            input: row.prompt.tokens,
            input_source: row.prompt.source,
            cached: row.prompt.cached,
            blocks: ids,
            block_tokens: blocks.map_or(0, block_tokens),
            think_nanos: row.think,
            planned_values: row.wanted,
            transfer: row.transfer.map(|transfer| *transfer).unwrap_or_default(),
            abort_tokens: row.abort_tokens.filter(|_| aborted),
            outcome: row.outcome,
            status: row.status,
            session: row.session.map(|session| (session, row.turn.unwrap_or(0))),
            parent: row.parent,
            model: row.model,
            dialect: row.dialect,
            upstream: row.upstream,
            classes: row.class,
            slo,
            in_flight: row.in_flight,
        }
    }

    /// Returns the moment from which a user waits.
    pub fn started(&self) -> Stamp {
        self.planned.unwrap_or(self.sent)
    }

    /// Returns `true` if the client asked for text and the response has none.
    pub fn has_no_output(&self) -> bool {
        let dialect = self.dialect.as_deref().and_then(dialect::named);
        let expects_text = dialect.is_some_and(|dialect| !TEXTLESS_OPERATIONS.contains(&dialect.operation));
        expects_text && self.first.is_none() && self.tokens.is_none_or(|count| count.tokens == 0)
    }

    /// Returns the minimum number of tokens and the number of events, for a stream whose events carry no token counts.
    /// A token that ends the response, or reasoning, may have had no event.
    pub fn missing_event_tokens(&self) -> Option<(u64, u64)> {
        let has_counts = self.first_tokens.is_some() || self.events.iter().any(|event| event.tokens().is_some());
        let counted = self.tokens.filter(|count| count.source != CountSource::Chunks)?;
        let min_tokens = counted.tokens.saturating_sub(1).saturating_sub(self.reasoning.unwrap_or(0));
        let streams = self.streamed && self.lost_gaps == 0 && !self.events.is_empty();
        (streams && !has_counts).then_some((min_tokens, self.events.len() as u64 + 1))
    }

    /// Returns `true` if the response is complete.
    pub fn succeeded(&self) -> bool {
        self.outcome == Some(Outcome::Success)
    }
}

//! One request as a report looks at it: a row, unpacked, on the line of time that all sources share.

use crate::capture::blocks::{block_tokens, chained_ids};
use crate::capture::gaps::{GapsError, unpack};
use crate::capture::row::{BlockScheme, RequestTargets, TraceEntry, TransferStats};
use crate::measure::dialect;
use crate::measure::record::{CountSource, Outcome, TokenCount};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// What is asked for where the answer is no text.
const TEXTLESS_OPERATIONS: [&str; 2] = ["embeddings", "rerank"];

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestView {
    /// When it should have been sent; runs only.
    pub planned: Option<Stamp>,
    /// Its first byte: at the proxy, or as a replay sent it.
    pub sent: Stamp,
    /// Its last byte, as it was handed to the server.
    pub written: Option<Stamp>,
    /// First generated text.
    pub first: Option<Stamp>,
    /// First generated text that is not reasoning.
    pub output: Option<Stamp>,
    /// Last generated text; unknown where gaps were lost.
    pub last: Option<Stamp>,
    /// The end.
    pub ended: Option<Stamp>,
    /// Every gap between token events, and the later event's tokens.
    pub events: Vec<TokenEvent>,
    /// Gaps that were not kept.
    pub lost_gaps: u64,
    /// Tokens of the first token event.
    pub first_tokens: Option<u32>,
    /// Whether the answer came as a stream.
    pub streamed: bool,
    /// Output tokens, and who counted them.
    pub tokens: Option<TokenCount>,
    /// Of these, reasoning, as the server says.
    pub reasoning: Option<u64>,
    /// Limit on output tokens that was asked for.
    pub max_tokens: Option<u64>,
    /// Prompt tokens.
    pub input: Option<u64>,
    /// Who counted them.
    pub input_source: Option<CountSource>,
    /// Of these, from the server's cache.
    pub cached: Option<u64>,
    /// Ids of the prompt's blocks, each standing for everything before it too.
    pub blocks: Vec<u64>,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// From the end of the answer before it in its session, in nanoseconds.
    pub think_nanos: Option<u64>,
    /// What a run had wanted of it.
    pub planned_values: RequestTargets,
    /// How a run's bytes went.
    pub transfer: TransferStats,
    /// Output tokens that the client had got when it left before the end.
    pub abort_tokens: Option<u64>,
    /// What became of it, where that is known.
    pub outcome: Option<Outcome>,
    /// The answer's status.
    pub status: Option<u16>,
    /// The session, and the place in it.
    pub session: Option<(String, u32)>,
    /// The model asked for.
    pub model: Option<String>,
    /// The dialect.
    pub dialect: Option<String>,
    /// The server.
    pub upstream: Option<String>,
    /// Requests in flight when it came, itself left out.
    pub in_flight: Option<u32>,
}

impl RequestView {
    /// Reads a row. `shift` moves its line of time onto the shared one, in nanoseconds; `blocks` is what its header says of
    /// blocks.
    ///
    /// # Errors
    /// When its gaps are not as they are written.
    pub fn from_row(row: TraceEntry, shift: u64, blocks: Option<&BlockScheme>) -> Result<Self, GapsError> {
        let ids = blocks.map(|blocks| chained_ids(blocks, &row).collect()).unwrap_or_default();
        let aborted = row.is_aborted();
        let timing = row.timing;
        let events = timing.gaps.as_deref().map(unpack).transpose()?.unwrap_or_default();
        let on_line = |at: u64| Stamp::from_nanos(at.saturating_add(shift));
        let sent = on_line(row.at);
        let after = |nanos: Option<u64>| nanos.map(|nanos| sent.after(Gap::from_nanos(nanos)));
        let first = after(timing.first_token);
        let lost_gaps = timing.lost_gaps.unwrap_or(0);
        let decode = events.iter().fold(0_u64, |sum, event| sum.saturating_add(event.gap().as_nanos()));
        Ok(Self {
            planned: row.planned.map(on_line),
            sent,
            written: after(timing.sent),
            first,
            output: after(timing.first_output),
            last: first.map(|first| first.after(Gap::from_nanos(decode))).filter(|_| lost_gaps == 0),
            ended: after(timing.ended),
            // Some dialects never say that they stream.
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
            model: row.model,
            dialect: row.dialect,
            upstream: row.upstream,
            in_flight: row.in_flight,
        })
    }

    /// The moment from which a user waits.
    pub fn started(&self) -> Stamp {
        self.planned.unwrap_or(self.sent)
    }

    /// Whether text was asked for, and its answer has none.
    pub fn has_no_output(&self) -> bool {
        let dialect = self.dialect.as_deref().and_then(dialect::named);
        let asked = dialect.is_some_and(|dialect| !TEXTLESS_OPERATIONS.contains(&dialect.operation));
        asked && self.first.is_none() && self.tokens.is_none_or(|count| count.tokens == 0)
    }

    /// Of a stream whose events do not tell their tokens, how many came at least, and the events. A token that ends the
    /// reply may have had none, and neither may reasoning.
    pub fn missing_event_tokens(&self) -> Option<(u64, u64)> {
        let told = self.first_tokens.is_some() || self.events.iter().any(|event| event.tokens().is_some());
        let counted = self.tokens.filter(|count| count.source != CountSource::Chunks)?;
        let came = counted.tokens.saturating_sub(1).saturating_sub(self.reasoning.unwrap_or(0));
        let streams = self.streamed && self.lost_gaps == 0 && !self.events.is_empty();
        (streams && !told).then_some((came, self.events.len() as u64 + 1))
    }

    /// Whether it has a whole answer.
    pub fn succeeded(&self) -> bool {
        self.outcome == Some(Outcome::Success)
    }
}

//! One request as another tool recorded it.

use crate::measure::record::{CountSource, Outcome, TokenCount};
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;
use crate::report::request_view::RequestView;
use crate::trace_file::row::{PromptShape, Timing, TraceEntry};

/// One request. Times are nanoseconds: `at` and `planned` since the run's time zero, the others after `at`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerRequest {
    /// Moment of sending.
    pub at: u64,
    /// Planned moment of sending.
    pub planned: Option<u64>,
    /// First token.
    pub first: Option<u64>,
    /// First output that is not reasoning.
    pub output: Option<u64>,
    /// Last token, where the file has no gaps to compute it from.
    pub last: Option<u64>,
    /// End of the response.
    pub ended: Option<u64>,
    /// Gaps between the token events.
    pub events: Vec<TokenEvent>,
    /// Gaps that the tool did not record.
    pub lost_gaps: u64,
    /// The response was streamed.
    pub streamed: bool,
    /// Output tokens.
    pub tokens: Option<TokenCount>,
    /// Reasoning tokens that the server reported.
    pub reasoning: Option<u64>,
    /// Prompt tokens.
    pub input: Option<TokenCount>,
    /// Prompt tokens from the server's cache.
    pub cached: Option<u64>,
    /// Outcome.
    pub outcome: Option<Outcome>,
    /// HTTP status.
    pub status: Option<u16>,
    /// Session, and position in it.
    pub session: Option<(String, u32)>,
    /// Session that this one is a sub-agent of.
    pub parent: Option<String>,
    /// The tool's own warm-up, which counts in no figure.
    pub warm_up: bool,
}

impl PeerRequest {
    /// Unpacks the request for a report. `shift` moves its times onto the shared timeline.
    pub fn view(
        self,
        shift: u64,
        model: Option<&str>,
        dialect: Option<&'static str>,
        in_flight: Option<u32>,
    ) -> RequestView {
        let (session, turn) = self.session.unzip();
        let row = TraceEntry {
            at: self.at,
            planned: self.planned,
            dialect: dialect.map(str::to_owned),
            model: model.map(str::to_owned),
            stream: Some(self.streamed),
            prompt: PromptShape {
                tokens: self.input.map(|count| count.tokens),
                source: self.input.map(|count| count.source),
                cached: self.cached,
                ..PromptShape::default()
            },
            session,
            turn,
            parent: self.parent,
            status: self.status,
            outcome: self.outcome,
            output_tokens: self.tokens.map(|count| count.tokens),
            output_source: self.tokens.map(|count| count.source),
            reasoning_tokens: self.reasoning,
            timing: Timing {
                first_token: self.first,
                first_output: self.output,
                ended: self.ended,
                lost_gaps: (self.lost_gaps > 0).then_some(self.lost_gaps),
                ..Timing::default()
            },
            in_flight,
            ..TraceEntry::default()
        };
        let mut view = RequestView::with_events(row, self.events, shift, None);
        if let Some(last) = self.last {
            view.last = Some(view.sent.after(Gap::from_nanos(last)));
        }
        view
    }
}

/// A count that the server reported, else one by the tool's tokenizer.
pub(super) fn count(usage: Option<u64>, tokenizer: Option<u64>) -> Option<TokenCount> {
    let of = |tokens: Option<u64>, source| tokens.map(|tokens| TokenCount { tokens, source });
    of(usage, CountSource::Usage).or(of(tokenizer, CountSource::Tokenizer))
}

/// Seconds as nanoseconds; `None` for what is no time: negative, not finite, or beyond 285 years.
pub(super) fn nanos(seconds: f64) -> Option<u64> {
    (0.0..9e9).contains(&seconds).then(|| (seconds * 1e9).round() as u64)
}

/// The gaps between token events at these times in seconds; `None` if they are not in order.
pub(super) fn gaps(times: &[f64], tokens: Option<u32>) -> Option<Vec<TokenEvent>> {
    let gap = |pair: &[f64]| Some(TokenEvent::new(Gap::from_nanos(nanos(pair[1] - pair[0])?), tokens));
    times.windows(2).map(gap).collect()
}

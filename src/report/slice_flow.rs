//! Throughput in a slice of time: responses that ended and tokens that arrived in it.
//!
//! Latencies of a slice are those of the requests that started in it. Rates are not: a request of 30 s sends its tokens
//! through many slices.

use std::collections::BTreeMap;

use super::definitions::Definitions;
use super::request_view::RequestView;
use crate::measure::time::{Gap, Stamp};

const MICRO: u64 = 1_000_000;

/// Output of the successful requests in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceFlow {
    /// Millionths of output tokens that arrived in the slice: whole numbers add up alike in any order.
    pub output_microtokens: u64,
    /// Responses that ended in the slice.
    pub responses: u64,
}

impl SliceFlow {
    /// Output tokens that arrived in the slice.
    pub fn output_tokens(&self) -> f64 {
        self.output_microtokens as f64 / MICRO as f64
    }
}

/// Index of the slice of a moment.
pub(super) fn slice_number(at: Stamp, length: Gap) -> u64 {
    at.as_nanos() / length.as_nanos().max(1)
}

/// Adds a request's tokens to the slices in which they arrived. Without a count per event, every event carries an equal
/// share of the response's tokens; a response without events delivers them at its end.
pub(super) fn add_flow(
    flows: &mut BTreeMap<u64, SliceFlow>,
    request: &RequestView,
    definitions: Definitions,
    length: Gap,
) {
    if !request.succeeded() {
        return;
    }
    let Some(ended) = request.ended else { return };
    flows.entry(slice_number(ended, length)).or_default().responses += 1;
    let Some(tokens) = definitions.tokens(request) else { return };
    let Some(first) = request.first.filter(|_| request.streamed) else {
        add_tokens(flows, slice_number(ended, length), tokens.saturating_mul(MICRO));
        return;
    };
    let counts = || std::iter::once(request.first_tokens).chain(request.events.iter().map(|event| event.tokens()));
    let counted: u64 = counts().flatten().map(u64::from).sum();
    let share = tokens.saturating_mul(MICRO) / (request.events.len() as u64 + 1);
    // Counts of events that do not add up to the response's tokens cannot be trusted.
    let exact = counted == tokens && counts().all(|count| count.is_some());
    let gaps = std::iter::once(Gap::ZERO).chain(request.events.iter().map(|event| event.gap()));
    let mut at = first;
    for (gap, count) in gaps.zip(counts()) {
        at = at.after(gap);
        let tokens = if exact { u64::from(count.unwrap_or(0)) * MICRO } else { share };
        add_tokens(flows, slice_number(at, length), tokens);
    }
}

fn add_tokens(flows: &mut BTreeMap<u64, SliceFlow>, slice: u64, microtokens: u64) {
    let flow = flows.entry(slice).or_default();
    flow.output_microtokens = flow.output_microtokens.saturating_add(microtokens);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::{CountSource, Outcome};
    use crate::measure::timeline::TokenEvent;
    use crate::trace_file::row::{Timing, TraceEntry};

    fn flows(tokens: u64, gaps_millis: &[(u64, Option<u32>)]) -> Vec<(u64, f64)> {
        let millis = |millis: u64| millis * 1_000_000;
        let ended = 500 + gaps_millis.iter().map(|(gap, _)| gap).sum::<u64>();
        let row = TraceEntry {
            at: 0,
            stream: Some(true),
            outcome: Some(Outcome::Success),
            output_tokens: Some(tokens),
            output_source: Some(CountSource::Usage),
            timing: Timing {
                first_token: Some(millis(500)),
                first_tokens: Some(1),
                ended: Some(millis(ended)),
                ..Timing::default()
            },
            ..TraceEntry::default()
        };
        let events = gaps_millis.iter().map(|(gap, tokens)| TokenEvent::new(Gap::from_millis(*gap), *tokens)).collect();
        let request = RequestView::with_events(row, events, 0, None);
        let mut flows = BTreeMap::new();
        add_flow(&mut flows, &request, Definitions::default(), Gap::from_millis(1_000));
        flows.into_iter().map(|(slice, flow)| (slice, flow.output_tokens())).collect()
    }

    #[test]
    fn tokens_count_where_they_arrive_and_not_where_their_request_started() {
        assert_eq!(flows(3, &[(1_000, Some(1)), (1_000, Some(1))]), [(0, 1.0), (1, 1.0), (2, 1.0)]);
        assert_eq!(flows(4, &[(100, Some(1)), (1_000, Some(2))]), [(0, 2.0), (1, 2.0)]);
    }

    #[test]
    fn events_without_counts_share_the_tokens_of_the_response() {
        assert_eq!(flows(8, &[(600, None), (100, None), (100, None)]), [(0, 2.0), (1, 6.0)]);
    }
}

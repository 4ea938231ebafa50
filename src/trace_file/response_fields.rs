//! The response fields of a row, from the record of its request. Pure.

use super::row::{Timing, TraceEntry};
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::time::Stamp;

/// The response fields of a row without its gaps, for both captures and replays. `after` converts a stamp to nanoseconds
/// after the request's arrival.
pub fn response_fields(record: &RequestRecord, after: impl Fn(Stamp) -> u64) -> TraceEntry {
    let (dialect, times) = (record.shape.dialect, &record.times);
    TraceEntry {
        route: dialect.map(|dialect| dialect.route.to_owned()),
        dialect: dialect.map(|dialect| dialect.name.to_owned()),
        status: record.status,
        ending: Some(record.ending),
        outcome: Some(record.outcome),
        finish: record.choices.first().and_then(|choice| choice.finish.as_ref()).map(|(reason, _)| *reason),
        output_tokens: record.output_tokens.map(|count| count.tokens),
        output_source: record.output_tokens.map(|count| count.source),
        reasoning_tokens: record.usage.reasoning,
        timing: Timing {
            sent: times.sent.map(&after),
            evidence: times.first_evidence.map(&after),
            first_token: times.first_token.map(&after),
            first_output: times.first_output.map(&after),
            ended: Some(after(times.ended)),
            first_tokens: record.first_event_tokens,
            ..Timing::default()
        },
        abort_tokens: (record.outcome == Outcome::Cancelled)
            .then(|| record.output_tokens.map_or(0, |count| count.tokens)),
        ..TraceEntry::default()
    }
}

//! Records for the tests of this module.

use std::sync::Arc;

use super::registry::snapshot::TimePoint;
use crate::measure::dialect;
use crate::measure::record::{
    CountSource, Ending, Outcome, Quality, RecordTimes, RequestRecord, StampSource, TokenCount, Usage,
};
use crate::measure::shape::RequestShape;
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// The time of every test.
pub(crate) const NOW: TimePoint =
    TimePoint { stamp: Stamp::from_nanos(60_000_000_000), unix: 1_750_000_060_000_000_000 };

/// A stamp in milliseconds.
pub(crate) fn at(millis: u64) -> Stamp {
    Stamp::from_nanos(millis * 1_000_000)
}

/// A request for a streamed chat with this model.
pub(crate) fn shape(model: &str) -> RequestShape {
    RequestShape {
        dialect: dialect::named("openai.chat"),
        method: "POST".into(),
        model: Some(model.into()),
        stream: Some(true),
        server: Some(("llm.local".into(), 8000)),
        ..RequestShape::default()
    }
}

/// A successful stream of five token events: the first at 200 ms, the next after 10, 20 (two tokens), 30 and 40 ms
/// (unknown tokens). It ends 5 ms later, with 100 prompt tokens, 64 of them cached, and 6 output tokens.
pub(crate) fn record() -> RequestRecord {
    let received = at(1_000);
    let after = |millis| Some(received.after(Gap::from_millis(millis)));
    RequestRecord {
        shape: Arc::new(shape("tiny")),
        slos: Arc::default(),
        times: RecordTimes {
            intended: None,
            received,
            sent: after(1),
            head: after(150),
            first_byte: after(151),
            first_evidence: after(200),
            first_reasoning: None,
            first_token: after(200),
            first_output: after(200),
            last_token: after(300),
            ended: received.after(Gap::from_millis(305)),
        },
        status: Some(200),
        local_reply: None,
        ending: Ending::Complete,
        outcome: Outcome::Success,
        streamed: true,
        events: 8,
        comments: 0,
        token_events: 5,
        evidence_events: 5,
        output_tokens: Some(TokenCount { tokens: 6, source: CountSource::Usage }),
        first_event_tokens: Some(1),
        usage: Usage { input: Some(100), cached: Some(64), cache_write: None, output: Some(6), reasoning: None },
        engine_prefill: Some(Gap::from_millis(120)),
        choices: Default::default(),
        fault: None,
        response_id: Some("chatcmpl-1".into()),
        response_model: Some("tiny-0613".into()),
        gaps: [(10, Some(1)), (20, Some(2)), (30, Some(1)), (40, None)]
            .map(|(millis, tokens)| TokenEvent::new(Gap::from_millis(millis), tokens))
            .into(),
        stalls: 0,
        tokens_reported: 0,
        longest_gap: Some(Gap::from_millis(40)),
        gap_count: 4,
        gaps_over: Box::default(),
        chunk_overheads: [20_000, 30_000][..].into(),
        request_overhead: Some(Gap::from_nanos(40_000)),
        head_overhead: Some(Gap::from_nanos(50_000)),
        request_bytes: 200,
        response_bytes: 2_000,
        stamps: StampSource::Kernel,
        quality: Quality::default(),
    }
}

/// Like [`record`], with this model and times by `place` between a microsecond and minutes: 200 places fill a whole
/// histogram.
pub(crate) fn spread(model: &str, place: i32) -> RequestRecord {
    let gap = Gap::from_nanos((1_000.0 * 1.1_f64.powi(place % 200)) as u64);
    let record = record();
    let first = Some(record.times.received.after(gap));
    let ended = record.times.received.after(gap).after(gap);
    RequestRecord {
        shape: Arc::new(shape(model)),
        times: RecordTimes { first_evidence: first, first_token: first, first_output: first, ended, ..record.times },
        gaps: [TokenEvent::new(gap, Some(1))].into(),
        ..record
    }
}

//! A whole reply through the observer, in every dialect: any split gives the same record, in bounded memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::dialect::{Delta, Dialect, TABLE};
use streamgauge_fuzz::measure::event_observer::EventObserver;
use streamgauge_fuzz::measure::framing::Event;
use streamgauge_fuzz::measure::observer::StreamObserver;
use streamgauge_fuzz::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge_fuzz::measure::reply_body::ResponseHead;
use streamgauge_fuzz::measure::shape::RequestShape;
use streamgauge_fuzz::measure::time::Stamp;
use streamgauge_fuzz::memory;
use streamgauge_fuzz::split::same;

/// Maximum memory of an observer for events as small as these inputs.
const MAX_HELD_BYTES: usize = 1 << 20;

fuzz_target!(|body: &[u8]| {
    let kind = match body.trim_ascii_start().first() {
        Some(b'{' | b'[') => "application/json",
        _ => "text/event-stream",
    };
    for dialect in TABLE {
        for kind in [kind, dialect.content_type] {
            for ending in [Ending::Complete, Ending::UpstreamFailed] {
                let (record, meanings) = same(body, |pieces| {
                    let (record, meanings) = observed(dialect, kind, pieces, ending);
                    (format!("{record:?}"), meanings)
                });
                drop((record, meanings));
            }
            let record = memory::within(MAX_HELD_BYTES, || observed(dialect, kind, &[body], Ending::Complete).0);
            agrees_with_itself(&record);
        }
    }
});

/// Every meaning of every event, in words.
#[derive(Default)]
struct Meanings(Vec<String>);

impl EventObserver for Meanings {
    fn event(&mut self, index: u64, event: &Event<'_>) {
        self.0.push(format!("event {index}, {} bytes", event.data.len()));
    }
    fn delta(&mut self, choice: u32, delta: &Delta<'_>) {
        self.0.push(format!("{choice} {delta:?}"));
    }
}

fn observed(dialect: &'static Dialect, kind: &str, pieces: &[&[u8]], ending: Ending) -> (RequestRecord, Vec<String>) {
    let shape = RequestShape { dialect: Some(dialect), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, Stamp::default());
    let head = ResponseHead { status: 200, content_type: kind.as_bytes(), content_encoding: b"" };
    observer.head(Stamp::default(), head, StampSource::Read);
    let mut meanings = Meanings::default();
    for piece in pieces {
        observer.bytes_watched(Stamp::default(), piece, &mut meanings);
    }
    let record = observer.end_watched(Stamp::default(), ending, &mut meanings);
    (record, meanings.0)
}

fn agrees_with_itself(record: &RequestRecord) {
    assert!(record.token_events <= record.evidence_events && record.evidence_events <= record.events);
    assert_eq!(record.times.first_token.is_some(), record.token_events > 0);
    assert_eq!(record.gap_count, record.token_events.saturating_sub(1) * u64::from(record.streamed));
    assert!(record.times.first_token.is_none() || record.times.first_evidence.is_some());
    assert!(record.choices.len() <= 128);
    let _figures = (record.ttft(), record.ttfo(), record.tpot(), record.duration());
}

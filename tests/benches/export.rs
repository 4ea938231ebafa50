//! What counting and exporting cost.
//!
//! `cargo bench --bench export` prints the best of several rounds, in nanoseconds: of handing one record over, of
//! counting one streamed record with 100 gaps, of what the live page needs each second, and of a scrape of 50 series in
//! every format.

#![expect(clippy::disallowed_methods, reason = "a benchmark asks for the time")]
#![expect(clippy::print_stdout, reason = "its table is its output")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use streamgauge::clock::Clock;
use streamgauge::config::otlp::{HistogramAggregation, OtlpConfig, Sampler, Temporality};
use streamgauge::export::control::queue::FinishedRequest;
use streamgauge::export::control::thread::{ControlPlane, RuntimeSettings};
use streamgauge::export::otlp::metrics::MetricsEncoder;
use streamgauge::export::prometheus::ScrapeFormat;
use streamgauge::export::registry::aggregate::{Aggregate, AggregateSettings};
use streamgauge::export::registry::catalog::Convention;
use streamgauge::export::registry::snapshot::{Snapshot, TimePoint};
use streamgauge::export::trace_context::RequestTrace;
use streamgauge::measure::dialect;
use streamgauge::measure::observer::{ResponseHead, StreamObserver};
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::slo::Slos;
use streamgauge::measure::time::{Gap, Stamp};

const MOMENT: TimePoint = TimePoint { stamp: Stamp::from_nanos(60_000_000_000), unix: 1_763_000_000_000_000_000 };

/// A finished stream of 101 events, 5 to 25 ms apart.
fn record(model: &str, slos: &Arc<Slos>) -> RequestRecord {
    let shape = RequestShape {
        dialect: dialect::for_path("/v1/chat/completions"),
        method: "POST".into(),
        server: Some(("127.0.0.1".into(), 8000)),
        ..RequestShape::default()
    };
    let mut now = Stamp::from_nanos(1_000_000_000);
    let mut observer =
        StreamObserver::begin(shape, b"", None, now).with_slos(Arc::clone(slos), Gap::from_millis(1_000));
    observer.request(format!(r#"{{"model":"{model}","stream":true}}"#).as_bytes());
    observer.sent(now, Some(Gap::from_nanos(30_000)));
    now = now.after(Gap::from_millis(80));
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"" };
    observer.head(now, head, StampSource::Kernel);
    observer.head_forwarded(Gap::from_nanos(25_000));
    for event in 0..101u64 {
        now = now.after(Gap::from_millis(5 + event * 7 % 20));
        observer.bytes(now, b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n");
        observer.forwarded(Gap::from_nanos(20_000 + event * 100));
    }
    observer.bytes(now, b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":101}}\n\n");
    observer.bytes(now, b"data: [DONE]\n\n");
    observer.end(now.after(Gap::from_millis(1)), Ending::Complete)
}

fn best(name: &str, rounds: u32, mut work: impl FnMut()) {
    let time = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        (0..rounds).for_each(|_| work());
        begun.elapsed().as_nanos() as f64 / f64::from(rounds)
    };
    let best = (0..7).map(|_| time(&mut work)).fold(f64::INFINITY, f64::min);
    println!("{name:<44} {best:>12.0}");
}

fn main() {
    let slos: Vec<_> = ["fast: ttft<=500ms itl.p99<=50ms"].iter().filter_map(|slo| slo.parse().ok()).collect();
    let slos = Arc::new(Slos::new(slos).unwrap_or_default());
    let (record, trace) = (record("tiny", &slos), RequestTrace::begin(&Sampler::default(), None, None));
    let settings = AggregateSettings { slos: Arc::clone(&slos), ..AggregateSettings::default() };
    println!("{:<44} {:>12}", "work", "ns");

    let mut aggregate = Aggregate::new(settings.clone());
    best("count a record of 100 gaps", 2_000, || aggregate.record_finished(black_box(&record), None, MOMENT));
    best("the same, with exemplars", 2_000, || aggregate.record_finished(black_box(&record), Some(&trace), MOMENT));

    let plane = ControlPlane::new(
        RuntimeSettings::default(),
        &OtlpConfig::from_environment(|_| None).0,
        None,
        None,
        Clock::Monotonic,
    );
    let reporter = plane.reporter();
    let finished = || FinishedRequest { trace: Some(trace.clone()), ..record.clone().into() };
    // Making the record's copy is part of it; so is dropping it once the queue is full.
    best("copy a record and hand it over", 500, || reporter.finished(finished()));
    best("copy a record and drop it", 500, || drop(black_box(finished())));

    for models in [64, 1_000] {
        let rules = RuntimeSettings {
            aggregate: AggregateSettings { max_models: models, ..settings.clone() },
            ..RuntimeSettings::default()
        };
        let plane = ControlPlane::new(rules, &OtlpConfig::from_environment(|_| None).0, None, None, Clock::Monotonic);
        let (reporter, controls) = (plane.reporter(), plane.handle());
        let cut = || {
            (0..models).for_each(|model| reporter.finished(self::record(&format!("model-{model}"), &slos).into()));
            controls.live_snapshot()
        };
        let (before, now) = (cut(), cut());
        println!("each second, all of {models} models at work:");
        best("the figures of a moment", 20, || drop(black_box(controls.live_snapshot())));
        best("a second of all, and of 64", 20, || {
            let names = now.active_models(&before).into_iter().take(64).map(Some);
            names
                .chain([None])
                .for_each(|model| drop(black_box(serde_json::to_string(&now.history_point(model, &before)))));
        });
    }

    let mut aggregate = Aggregate::new(settings);
    let models = ["one", "two", "three"];
    models.map(|model| self::record(model, &slos)).iter().for_each(|record| {
        aggregate.record_finished(record, Some(&trace), MOMENT);
    });
    let snapshot: Snapshot = aggregate.snapshot(MOMENT);
    let series: usize = snapshot.families.iter().map(|family| family.points.len()).sum();
    println!("{series} series:");
    best("snapshot", 200, || drop(black_box(aggregate.snapshot(MOMENT))));
    for format in [ScrapeFormat::Text, ScrapeFormat::OpenMetrics, ScrapeFormat::Protobuf] {
        best(&format!("encode as {format:?}"), 200, || drop(black_box(format.encode(&snapshot))));
    }
    let resource = opentelemetry_sdk::Resource::builder_empty().build();
    for histograms in [HistogramAggregation::Explicit, HistogramAggregation::Exponential] {
        let encoder = MetricsEncoder::new(&resource, Convention::Frozen, Temporality::Cumulative, histograms);
        best(&format!("encode as OTLP, {histograms:?}"), 200, || drop(black_box(encoder.encode(&snapshot))));
    }
}

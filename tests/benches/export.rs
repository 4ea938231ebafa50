//! Cost of counting and exporting.
//!
//! `cargo bench --bench export` prints the best of several rounds, in nanoseconds. It measures the handover of one
//! record, and the count of one streamed record with 100 gaps. Spans and trace headers are measured with our code and
//! with OpenTelemetry's packages. The live page's second, and a scrape of 50 series in every format, follow.

#![expect(clippy::disallowed_methods, reason = "a benchmark asks for the time")]
#![expect(clippy::print_stdout, reason = "its table is its output")]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message;
use streamgauge::clock::Clock;
use streamgauge::config::otlp::{HistogramAggregation, OtlpConfig, Sampler, Temporality};
use streamgauge::export::control::queue::FinishedRequest;
use streamgauge::export::control::thread::{ControlPlane, RuntimeSettings};
use streamgauge::export::otlp::metrics::MetricsEncoder;
use streamgauge::export::otlp::traces::{RequestSpans, SpanEncoder};
use streamgauge::export::prometheus::ScrapeFormat;
use streamgauge::export::registry::aggregate::{Aggregate, AggregateSettings};
use streamgauge::export::registry::catalog::Convention;
use streamgauge::export::registry::snapshot::{Snapshot, TimePoint};
use streamgauge::export::trace_context::{RequestTrace, TraceParent};
use streamgauge::measure::dialect;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, RequestRecord, StampSource};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::slo::{RequestVerdict, Slos};
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

/// A request's two spans as `opentelemetry_sdk` has them, with the attributes of [`RequestSpans`].
fn sdk_spans(record: &RequestRecord, trace: &RequestTrace, scope: &InstrumentationScope) -> [SpanData; 2] {
    let at = |stamp| UNIX_EPOCH + Duration::from_nanos(MOMENT.unix_of(stamp));
    let text = |key: &'static str, value: &str| KeyValue::new(key, value.to_owned());
    let number = |key: &'static str, value: Option<u64>| value.map(|value| KeyValue::new(key, value as i64));
    let (shape, times, route) = (&record.shape, &record.times, record.shape.route());
    let http = || {
        let method = text("http.request.method", &shape.method);
        [Some(method), number("http.response.status_code", record.status.map(u64::from))].into_iter().flatten()
    };
    let mut server: Vec<KeyValue> = http().collect();
    server.extend([text("url.scheme", "http"), text("http.route", route)]);
    let (mut met, mut missed, mut violations) = (Vec::new(), Vec::new(), Vec::new());
    for (slo, verdict) in record.slos.verdicts(record) {
        match verdict {
            RequestVerdict::Met => met.push(StringValue::from(slo.name().to_owned())),
            RequestVerdict::Missed(objectives) => {
                missed.push(StringValue::from(slo.name().to_owned()));
                let each = objectives.into_iter().map(|objective| format!("{}.{objective}", slo.name()).into());
                violations.extend(each);
            }
            RequestVerdict::Excluded => {}
        }
    }
    let lists = [("streamgauge.slo.met", met), ("streamgauge.slo.missed", missed)];
    for (key, list) in lists.into_iter().chain([("streamgauge.slo.violations", violations)]) {
        if !list.is_empty() {
            server.push(KeyValue::new(key, Value::Array(list.into())));
        }
    }
    let mut client: Vec<KeyValue> = http().collect();
    if let Some((address, port)) = &shape.server {
        client.extend([text("server.address", address), KeyValue::new("server.port", i64::from(*port))]);
    }
    let model = shape.model.as_deref().unwrap_or_default();
    client.extend([text("gen_ai.operation.name", "chat"), text("gen_ai.provider.name", "openai")]);
    client.push(text("gen_ai.request.model", model));
    client.extend(shape.stream.map(|stream| KeyValue::new("gen_ai.request.stream", stream)));
    client.extend(record.response_id.as_deref().map(|id| text("gen_ai.response.id", id)));
    client.extend(record.response_model.as_deref().map(|model| text("gen_ai.response.model", model)));
    let waited = record.time_to_first_chunk().map(|waited| waited.as_secs());
    client.extend(waited.map(|waited| KeyValue::new("gen_ai.response.time_to_first_chunk", waited)));
    client.extend(number("gen_ai.usage.input_tokens", record.usage.input));
    client.extend(number("gen_ai.usage.output_tokens", record.usage.output));
    let mut events = SpanEvents::default();
    let points =
        [("first_byte", times.first_byte), ("first_token", times.first_token), ("last_token", times.last_token)];
    events.events.extend(points.into_iter().filter_map(|(name, stamp)| Some(Event::new(name, at(stamp?), vec![], 0))));
    let span = |id, parent, span_kind, name: String, attributes, events| SpanData {
        span_context: SpanContext::new(trace.trace_id, id, TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind,
        name: name.into(),
        start_time: at(times.received),
        end_time: at(times.ended),
        attributes,
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: scope.clone(),
    };
    let (none, own) = (SpanId::INVALID, trace.server_span);
    [
        span(own, none, SpanKind::Server, format!("{} {route}", shape.method), server, SpanEvents::default()),
        span(trace.client_span, own, SpanKind::Client, format!("chat {model}"), client, events),
    ]
}

/// Spans and trace headers, by our code and by OpenTelemetry's packages.
fn compare_with_the_sdk(record: &RequestRecord, trace: &RequestTrace, settings: &AggregateSettings) {
    const REQUESTS: usize = 256;
    let resource = opentelemetry_sdk::Resource::builder_empty().with_service_name("gauge").build();
    let encoder = SpanEncoder::new(&resource, Convention::Frozen);
    let own = || {
        let spans: Vec<_> = (0..REQUESTS).map(|_| RequestSpans::new(record, trace, settings, MOMENT)).collect();
        encoder.export(&spans)
    };
    let scope = InstrumentationScope::builder("streamgauge").with_version(env!("CARGO_PKG_VERSION")).build();
    let resource = ResourceAttributesWithSchema::from(&resource);
    // This is what the exporter of `opentelemetry-otlp` does before it sends.
    let sdk = || {
        let spans: Vec<_> = (0..REQUESTS).flat_map(|_| sdk_spans(record, trace, &scope)).collect();
        let resource_spans = group_spans_by_resource_and_scope(spans, &resource);
        ExportTraceServiceRequest { resource_spans }.encode_to_vec()
    };
    let keys = |export: &[u8]| -> Vec<String> {
        let export = ExportTraceServiceRequest::decode(export).unwrap_or_default();
        let scopes = export.resource_spans.into_iter().flat_map(|of| of.scope_spans);
        let all = scopes.flat_map(|of| of.spans).flat_map(|span| span.attributes);
        all.map(|attribute| attribute.key).collect()
    };
    assert_eq!(keys(&own()), keys(&sdk()), "both describe the same");
    println!("spans of {REQUESTS} requests:");
    best("made and encoded by our code", 20, || drop(black_box(own())));
    best("by the SDK and its OTLP transformation", 20, || drop(black_box(sdk())));

    println!("a trace header:");
    let header = trace.upstream().to_header();
    best("read and written by our code", 20_000, || {
        let parent = TraceParent::parse(black_box(&header).as_bytes());
        drop(black_box(parent.map(|parent| parent.to_header())));
    });
    let (propagator, mut out) = (TraceContextPropagator::new(), HashMap::new());
    let headers = HashMap::from([("traceparent".to_owned(), header)]);
    best("by the SDK's propagator", 20_000, || {
        propagator.inject_context(&propagator.extract(black_box(&headers)), &mut out);
    });
}

fn best(name: &str, rounds: u32, mut work: impl FnMut()) {
    let time = |work: &mut dyn FnMut()| {
        let started_at = Instant::now();
        (0..rounds).for_each(|_| work());
        started_at.elapsed().as_nanos() as f64 / f64::from(rounds)
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

    compare_with_the_sdk(&record, &trace, &settings);

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

//! OTLP through a real collector: what arrives behind it is what was scraped, to the last count, and what a request was.

use std::process::Command;

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};

use super::compare::{assert_same_soon, still};
use super::http_client::{json, post};
use super::known_counts::{KnownRun, MODEL, REQUESTS, TRACE};
use super::otlp_sink::{OtlpSink, attributes, hex};
use super::processes::{self, SOON, address, until};
use super::program::{ProxyProcess, count, sum};
use super::support::upstream::Upstream;
use super::tools;

/// Ends the proxy and waits until it has.
fn terminate(proxy: &mut ProxyProcess) {
    proxy.running.signal(Signal::SIGTERM);
    let (status, _) = proxy.running.ended(SOON).expect("it ends");
    assert!(status.success(), "{status}");
}

#[test]
fn what_arrives_over_grpc_is_what_was_scraped() {
    let _turn = processes::shared_turn();
    let sink = OtlpSink::start();
    let rotel = tools::rotel(sink.grpc);
    let mut known = KnownRun::run(|command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", rotel.grpc));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "300").env("OTEL_BSP_SCHEDULE_DELAY", "100");
    });
    let scraped = known.proxy.scrape_exemplars();
    terminate(&mut known.proxy);
    assert_same_soon(&still(&scraped), || still(&sink.metrics()), "the last scrape, and the collector");
    assert!(scraped.values().any(|series| series.exemplars.values().any(|trace| trace == TRACE)));
    let exports = sink.exports();
    let with_metrics = exports.iter().filter(|export| !export.metrics.is_empty()).count();
    assert!(with_metrics > 3, "{with_metrics} exports in a run of seconds");

    until("all spans have arrived", SOON, || sink.spans().len() >= 2 * REQUESTS);
    let spans = sink.spans();
    assert_eq!(spans.len(), 2 * REQUESTS);
    let errors = |kind: SpanKind| {
        let of_kind = spans.iter().filter(|span| span.kind() == kind);
        let mut errors: Vec<Value> = of_kind.map(|span| attributes(&span.attributes)["error.type"].clone()).collect();
        errors.retain(|error| !error.is_null());
        errors.sort_by_key(Value::to_string);
        Value::from(errors)
    };
    let (disconnect, reset) = ("client_disconnect", "upstream_reset");
    assert_eq!(errors(SpanKind::Server), json!(["503", disconnect, disconnect, reset]));
    assert_eq!(errors(SpanKind::Client), json!(["404", "503", disconnect, disconnect, "error_event", reset]));
    let server = spans.iter().find(|span| span.kind() == SpanKind::Server && hex(&span.trace_id) == TRACE).unwrap();
    assert_eq!(hex(&server.parent_span_id), "00f067aa0ba902b7");
}

#[test]
fn what_is_flushed_over_http_is_what_was_scraped_in_exponential_buckets_too() {
    let _turn = processes::shared_turn();
    let sink = OtlpSink::start();
    let rotel = tools::rotel(sink.grpc);
    let mut known = KnownRun::run(|command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", rotel.http));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        command.env("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram");
        // Nothing is sent before the end.
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "600000").env("OTEL_BSP_SCHEDULE_DELAY", "600000");
        command.env("OTEL_BLRP_SCHEDULE_DELAY", "600000");
    });
    let scraped = known.proxy.scrape_native();
    assert!(sink.exports().is_empty());
    terminate(&mut known.proxy);
    assert_same_soon(&still(&scraped), || still(&sink.metrics()), "the last scrape, and the collector");
    until("all spans have arrived", SOON, || sink.spans().len() == 2 * REQUESTS);
}

/// An answer with every property that a span can have.
const ANSWER: &str = concat!(
    r#"{"id":"chatcmpl-7","object":"chat.completion","model":"river-2026","choices":["#,
    r#"{"index":0,"message":{"role":"assistant","content":"deep"},"finish_reason":"stop"},"#,
    r#"{"index":1,"message":{"role":"assistant","content":"deeper"},"finish_reason":"length"}],"#,
    r#""usage":{"prompt_tokens":90,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":64},"#,
    r#""completion_tokens_details":{"reasoning_tokens":5}}}"#
);

#[test]
fn a_span_has_the_facts_of_its_request() {
    let _turn = processes::shared_turn();
    let sink = OtlpSink::start();
    let rotel = tools::rotel(sink.grpc);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", ANSWER.len());
    let upstream = Upstream::answering(head + ANSWER);
    let proxy = ProxyProcess::with(upstream.addr, |command| {
        command.arg("--provider=vllm").env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}", rotel.grpc));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").env("OTEL_BSP_SCHEDULE_DELAY", "50");
    });
    let body = json!({
        "model": "river", "messages": [{"role": "user", "content": "How deep?"}], "n": 2, "max_tokens": 64, "seed": 7,
        "temperature": 0.25, "top_p": 0.5, "frequency_penalty": 0.125, "presence_penalty": 1.5, "stream": false,
        "top_k": 40, "reasoning_effort": "low", "response_format": {"type": "json_object"},
    });
    post(proxy.addr, "/v1/chat/completions", &body);
    until("both spans have arrived", SOON, || sink.spans().len() == 2);
    let spans = sink.spans();
    let of_kind = |kind: SpanKind| spans.iter().find(|span| span.kind() == kind).unwrap();
    let (server, client) = (of_kind(SpanKind::Server), of_kind(SpanKind::Client));
    assert_eq!((server.name.as_str(), client.name.as_str()), ("POST /v1/chat/completions", "chat river"));
    assert_eq!((&client.parent_span_id, &client.trace_id), (&server.span_id, &server.trace_id));
    let expected = json!({
        "http.request.method": "POST", "http.response.status_code": 200, "url.scheme": "http",
        "http.route": "/v1/chat/completions",
    });
    assert_eq!(attributes(&server.attributes), expected);
    let expected = json!({
        "http.request.method": "POST", "http.response.status_code": 200,
        "server.address": "127.0.0.1", "server.port": upstream.addr.port(),
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "river",
        "gen_ai.request.stream": false, "gen_ai.request.max_tokens": 64, "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.25, "gen_ai.request.top_p": 0.5, "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.125, "gen_ai.request.presence_penalty": 1.5,
        "gen_ai.request.top_k": 40.0, "gen_ai.request.reasoning.level": "low", "gen_ai.output.type": "json",
        "gen_ai.response.id": "chatcmpl-7", "gen_ai.response.model": "river-2026",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 64, "gen_ai.usage.reasoning.output_tokens": 5,
    });
    assert_eq!(attributes(&client.attributes), expected);
}

#[test]
fn a_record_of_the_access_log_has_the_trace_of_its_request_by_both_protocols() {
    let sim = tools::sim(&["--model", MODEL]);
    for protocol in ["grpc", "http/protobuf"] {
        let sink = OtlpSink::start();
        let rotel = tools::rotel(sink.grpc);
        let proxy = ProxyProcess::with(sim.addr, |command| {
            let to = if protocol == "grpc" { rotel.grpc } else { rotel.http };
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{to}"));
            command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol).env("OTEL_SERVICE_NAME", "weir").arg("--access-log");
            command.env("OTEL_BSP_SCHEDULE_DELAY", "50").env("OTEL_BLRP_SCHEDULE_DELAY", "50");
        });
        streams(&proxy, 1);
        let access = || sink.logs("streamgauge::access");
        until("the spans and the record have arrived", SOON, || sink.spans().len() == 2 && access().len() == 1);
        let (spans, record) = (sink.spans(), access().remove(0));
        let server = spans.iter().find(|span| span.kind() == SpanKind::Server).unwrap();
        assert_eq!((&record.trace_id, &record.span_id), (&server.trace_id, &server.span_id));
        assert_eq!((&*record.severity_text, record.flags & 1), ("INFO", 1));
        let fields = attributes(&record.attributes);
        assert_eq!(
            (&fields["status"], &fields["model"], &fields["outcome"]),
            (&json!(200), &json!(MODEL), &json!("success"))
        );
        let own = sink.logs("streamgauge::cli::proxy");
        assert!(own.iter().any(|record| attributes(&record.attributes)["admin"] == proxy.admin.to_string()), "{own:?}");
        let exports = sink.exports();
        let logs = exports.iter().find_map(|export| export.logs.first()).unwrap();
        let resource = attributes(&logs.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["service.name"], "weir");
        assert!(resource["process.pid"].as_u64().is_some(), "{resource}");
    }
}

/// The names of a span's events, which must be in order and within the span.
fn events(span: &Span) -> Vec<&str> {
    let times: Vec<u64> = span.events.iter().map(|event| event.time_unix_nano).collect();
    let all = [&[span.start_time_unix_nano], &times[..], &[span.end_time_unix_nano]].concat();
    assert!(all.is_sorted(), "{all:?}");
    span.events.iter().map(|event| event.name.as_str()).collect()
}

/// Two short streams from a simulated server.
fn streams(proxy: &ProxyProcess, times: usize) {
    for _ in 0..times {
        let body = json!({"model": MODEL, "prompt": "deep", "max_tokens": 3, "ignore_eos": true, "stream": true});
        let response = post(proxy.addr, "/v1/completions", &body);
        assert_eq!((response.status(), response.truncated), (200, false));
        assert!(response.text().ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn the_environment_decides_the_way_of_each_signal() {
    let _turn = processes::shared_turn();
    let (sink, other) = (OtlpSink::start(), OtlpSink::start());
    let sim = tools::sim(&["--model", MODEL]);
    let environment = |command: &mut Command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.grpc));
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=river%20one");
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{}/v1/traces", other.http));
        command.env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
        command.env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20t0ken");
        command.env("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip");
        command.env("OTEL_SERVICE_NAME", "weir").env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "200").env("OTEL_BSP_SCHEDULE_DELAY", "50");
    };
    let proxy = ProxyProcess::with(sim.addr, environment);
    streams(&proxy, 2);
    until("both signals have arrived", SOON, || other.spans().len() == 4 && !sink.metrics().is_empty());

    for export in sink.exports() {
        assert_eq!((export.via.as_str(), export.traces.len()), ("grpc", 0));
        assert_eq!(export.headers["x-tenant"], "river one");
        assert!(!export.headers.contains_key("authorization"));
    }
    for export in other.exports() {
        assert_eq!((export.via.as_str(), export.metrics.len()), ("http/protobuf", 0));
        assert_eq!(export.headers["authorization"], "Bearer t0ken");
        assert_eq!(export.headers["content-encoding"], "gzip");
        assert!(!export.headers.contains_key("x-tenant"), "the signal's own headers stand for the common ones");
        let resource = attributes(&export.traces[0].resource.as_ref().unwrap().attributes);
        assert_eq!(
            (&resource["service.name"], &resource["deployment.environment.name"]),
            (&json!("weir"), &json!("test"))
        );
    }
    for span in other.client_spans() {
        assert_eq!(events(&span), ["first_byte", "first_token", "last_token"]);
        let fields = attributes(&span.attributes);
        let waited = fields["gen_ai.response.time_to_first_chunk"].as_f64().unwrap() * 1e9;
        let first = (span.events[1].time_unix_nano - span.start_time_unix_nano) as f64;
        assert!((waited - first).abs() < 2.0, "{waited} and {first} ns");
    }
}

#[test]
fn a_collector_that_is_down_costs_counted_telemetry_and_nothing_else() {
    let _turn = processes::shared_turn();
    let (grpc, http) = (address(), address());
    let sim = tools::sim(&["--model", MODEL]);
    let proxy = ProxyProcess::with(sim.addr, |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{grpc}")).env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        // Time for a collector on a busy machine, once there is one.
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "200").env("OTEL_METRIC_EXPORT_TIMEOUT", "3000");
        command.env("OTEL_BSP_SCHEDULE_DELAY", "100").env("OTEL_BSP_EXPORT_TIMEOUT", "3000");
        command.env("OTEL_BLRP_SCHEDULE_DELAY", "100").env("OTEL_BLRP_EXPORT_TIMEOUT", "3000");
    });
    streams(&proxy, 3);
    let dropped = |exporter| {
        let labels = [("exporter", exporter), ("reason", "failed")];
        sum(&proxy.scrape(), "streamgauge_export_dropped_total", &labels)
    };
    until("the spans of three requests are counted as lost", SOON, || dropped("otlp_traces") == 6.0);
    until("log records are counted as lost", SOON, || dropped("otlp_logs") > 0.0);
    until("data points are counted as lost", SOON, || dropped("otlp_metrics") > 0.0);
    until("it has been said", SOON, || proxy.running.log_count("OTLP export failed") > 0);

    let sink = OtlpSink::at(grpc, http);
    // Exports without a sink are lost; later ones are not.
    until("metrics arrive", SOON, || !sink.metrics().is_empty());
    streams(&proxy, 2);
    until("spans arrive", SOON, || sink.spans().len() == 4);
    let requests = || count(&sink.metrics(), "http_server_request_duration_seconds", &[]);
    until("the metrics have all five requests", SOON, || requests() == 5);
    let lost = (dropped("otlp_traces"), dropped("otlp_metrics"));
    assert_eq!(lost.0, 6.0);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((dropped("otlp_traces"), dropped("otlp_metrics")), lost, "nothing more is lost");
    let state = json(&proxy.page("/api/state"));
    assert!(state["recent"].as_array().unwrap().iter().all(|request| request["outcome"] == "success"));
    let complaints = proxy.running.log_count("OTLP export failed");
    assert!(complaints <= 3, "{complaints} lines for three signals within a minute");
}

//! Log records from `tracing` events to a scripted collector.

use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use prost::Message;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use super::collector::{Collector, CollectorReply};
use super::{BOTH, batch, ms, until};
use crate::clock::Clock;
use crate::config::otlp::{LogsConfig, OtlpConfig, Protocol, Sampler};
use crate::export::control::queue::FinishedRequest;
use crate::export::control::thread::{ControlPlane, RuntimeSettings};
use crate::export::fixtures::record;
use crate::export::otlp::logs::LogPipeline;
use crate::export::registry::drops::DropReason;
use crate::export::trace_context::RequestTrace;

/// A pipeline to this collector, with the subscriber that fills it and writes lines to `stderr`.
fn pipeline(collector: &Collector, stderr: &tempfile::NamedTempFile) -> (LogPipeline, impl Drop) {
    let settings = LogsConfig { exporter: collector.exporter(), batch: batch() };
    let pipeline = LogPipeline::new(&settings);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::sync::Arc::new(stderr.reopen().unwrap()));
    let bridge = OpenTelemetryTracingBridge::new(pipeline.provider());
    let own = Targets::new().with_target("streamgauge", tracing::Level::INFO);
    let subscriber = tracing_subscriber::registry().with(lines).with(bridge).with(own);
    (pipeline, tracing::subscriber::set_default(subscriber))
}

fn plane(rules: RuntimeSettings, otlp: &OtlpConfig, pipeline: &LogPipeline) -> ControlPlane {
    ControlPlane::new(rules, otlp, Some(pipeline), None, Clock::Monotonic)
}

fn nothing_else() -> OtlpConfig {
    OtlpConfig::from_environment(|name| (name == "OTEL_SERVICE_NAME").then(|| "gauge".to_owned())).0
}

/// The records of each scope, by its name.
fn received(collector: &Collector) -> Vec<(String, LogRecord)> {
    let mut records = Vec::new();
    for request in &*collector.seen.lock().unwrap() {
        let sent = ExportLogsServiceRequest::decode(&request.message[..]).unwrap();
        for scope in sent.resource_logs.into_iter().flat_map(|of_resource| of_resource.scope_logs) {
            let name = scope.scope.unwrap().name;
            records.extend(scope.log_records.into_iter().map(|record| (name.clone(), record)));
        }
    }
    records
}

fn text(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(real) => format!("{real:?}"),
        other => format!("{other:?}"),
    }
}

fn shown(attributes: &[KeyValue]) -> Vec<String> {
    let value = |one: &KeyValue| text(one.value.as_ref().unwrap().value.as_ref().unwrap());
    attributes.iter().map(|one| format!("{}={}", one.key, value(one))).collect()
}

fn body(record: &LogRecord) -> String {
    text(record.body.as_ref().unwrap().value.as_ref().unwrap())
}

#[tokio::test]
async fn a_record_has_its_severity_time_trace_and_resource() {
    for protocol in BOTH {
        let (collector, stderr) = (Collector::start(protocol, vec![]).await, tempfile::NamedTempFile::new().unwrap());
        let (pipeline, _logging) = pipeline(&collector, &stderr);
        let plane = plane(RuntimeSettings { access_log: true, ..Default::default() }, &nothing_else(), &pipeline);
        tracing::warn!(count = 3, why = "dry", "the river is low");
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        plane.reporter().finished(FinishedRequest { trace: Some(trace.clone()), ..record().into() });
        plane.reporter().finished(record().into());
        let drops = plane.drops();
        plane.run(None, async {}, ms(5_000)).await;

        let mut records = received(&collector);
        records.sort_by_key(|(_, record)| record.time_unix_nano);
        let [(scope, warning), (access, traced), (_, untraced)] = &records[..] else { panic!("{records:?}") };
        assert_eq!((&**scope, &**access), (module_path!(), "streamgauge::access"));
        assert_eq!((warning.severity_number(), &*warning.severity_text), (SeverityNumber::Warn, "WARN"));
        assert_eq!(
            (body(warning), shown(&warning.attributes)),
            ("the river is low".into(), vec!["count=3".into(), "why=dry".into()])
        );
        assert!(warning.trace_id.is_empty() && warning.event_name.is_empty(), "{warning:?}");
        assert!(warning.time_unix_nano > 1_500_000_000_000_000_000);
        assert_eq!((traced.severity_number(), &*body(traced)), (SeverityNumber::Info, "request"));
        assert_eq!(traced.trace_id, trace.trace_id.to_bytes());
        assert_eq!((&traced.span_id[..], traced.flags), (&trace.server_span.to_bytes()[..], 1));
        assert!(untraced.trace_id.is_empty(), "the trace is that of one request");
        for expected in ["status=200", "model=tiny", "outcome=success", "ttft_ms=200.0", "output_tokens=6"] {
            assert!(shown(&traced.attributes).contains(&expected.to_owned()), "{expected}: {:?}", traced.attributes);
        }
        let seen = collector.seen.lock().unwrap();
        let sent = ExportLogsServiceRequest::decode(&seen[0].message[..]).unwrap();
        let resource = shown(&sent.resource_logs[0].resource.as_ref().unwrap().attributes);
        assert!(resource.contains(&"service.name=gauge".to_owned()), "{resource:?}");
        assert!(resource.iter().any(|attribute| attribute.starts_with("service.instance.id=")), "{resource:?}");
        let path = match protocol {
            Protocol::HttpProtobuf => "/v1/anything",
            Protocol::Grpc => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        };
        assert_eq!((&*seen[0].path, drops.count(DropReason::LogsFailed)), (path, 0));
    }
}

#[tokio::test]
async fn what_finds_the_queue_full_or_is_rejected_is_counted() {
    for protocol in BOTH {
        let partial = ExportLogsPartialSuccess { rejected_log_records: 1, error_message: String::new() };
        let message = ExportLogsServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let replies = vec![CollectorReply { message, ..CollectorReply::default() }];
        let (collector, stderr) = (Collector::start(protocol, replies).await, tempfile::NamedTempFile::new().unwrap());
        let (pipeline, _logging) = pipeline(&collector, &stderr);
        (0..11).for_each(|number| tracing::info!("line {number}"));
        let plane = plane(RuntimeSettings::default(), &nothing_else(), &pipeline);
        let drops = plane.drops();
        plane.run(None, async {}, ms(5_000)).await;
        let lines: Vec<String> = received(&collector).iter().map(|(_, record)| body(record)).collect();
        assert_eq!(lines, [0, 1, 2, 3, 4, 5, 6, 7].map(|number| format!("line {number}")));
        let counts = [DropReason::Logs, DropReason::LogsFailed, DropReason::LogsRejected].map(|loss| drops.count(loss));
        assert_eq!(counts, [3, 0, 1], "the queue holds eight");
    }
}

#[tokio::test]
async fn a_failure_is_exported_unless_it_is_one_of_this_export() {
    for protocol in BOTH {
        let refusal = if protocol == Protocol::Grpc { 16 } else { 401 };
        let replies = vec![CollectorReply { status: refusal, ..CollectorReply::default() }; 2];
        let (collector, stderr) = (Collector::start(protocol, replies).await, tempfile::NamedTempFile::new().unwrap());
        let (pipeline, _logging) = pipeline(&collector, &stderr);
        // Bound but not listening.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let dead = format!("http://{}/v1/metrics", held.local_addr().unwrap());
        let otlp = OtlpConfig::from_environment(|name| match name {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" => Some(dead.clone()),
            "OTEL_METRIC_EXPORT_INTERVAL" | "OTEL_METRIC_EXPORT_TIMEOUT" => Some("50".to_owned()),
            _ => None,
        });
        let plane = plane(RuntimeSettings::default(), &otlp.0, &pipeline);
        let drops = plane.drops();
        // Two batches are refused.
        (0..8).for_each(|number| tracing::info!("line {number}"));
        let failed = async {
            until(|| drops.count(DropReason::LogsFailed) == 8 && drops.count(DropReason::PointsFailed) > 0).await;
        };
        plane.run(None, failed, ms(5_000)).await;

        let lines: Vec<String> = received(&collector).iter().skip(8).map(|(_, record)| body(record)).collect();
        assert_eq!(lines.iter().filter(|line| *line == "OTLP export failed").count(), 1, "{lines:?}");
        let log = std::fs::read_to_string(stderr.path()).unwrap();
        let failures = |signal: &str| {
            let of_signal = |line: &&str| line.contains("OTLP export failed") && line.contains(signal);
            log.lines().filter(of_signal).count()
        };
        assert_eq!((failures("\"logs\""), failures("\"metrics\"")), (1, 1), "once a minute each: {log}");
    }
}

#[tokio::test]
async fn a_collector_that_is_down_costs_counted_records() {
    for protocol in BOTH {
        let (mut collector, stderr) =
            (Collector::start(protocol, vec![]).await, tempfile::NamedTempFile::new().unwrap());
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        collector.address = held.local_addr().unwrap();
        let (pipeline, _logging) = pipeline(&collector, &stderr);
        tracing::error!("the last words");
        let plane = plane(RuntimeSettings::default(), &nothing_else(), &pipeline);
        let drops = plane.drops();
        plane.run(None, async {}, ms(300)).await;
        assert_eq!(drops.count(DropReason::LogsFailed), 1);
    }
}

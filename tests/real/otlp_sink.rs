//! Exports that the OTLP sink of `tests/tools` has received.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs};
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::processes::{ChildProcess, address};
use super::support::metrics_parser::{self, Table};
use super::tools::start;

/// A sink that runs.
pub(crate) struct OtlpSink {
    /// Receives OTLP over gRPC.
    pub(crate) grpc: SocketAddr,
    /// Receives OTLP over HTTP.
    pub(crate) http: SocketAddr,
    file: PathBuf,
    _directory: TempDir,
    _running: ChildProcess,
}

/// One export, as it came.
pub(crate) struct Export {
    /// `grpc` or `http/protobuf`.
    pub(crate) via: String,
    /// Names are in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) metrics: Vec<ResourceMetrics>,
    pub(crate) traces: Vec<ResourceSpans>,
    pub(crate) logs: Vec<ResourceLogs>,
}

impl OtlpSink {
    pub(crate) fn start() -> Self {
        Self::at(address(), address())
    }

    /// A sink that listens there.
    pub(crate) fn at(grpc: SocketAddr, http: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("exports.jsonl");
        let ports = [grpc, http].map(|address| address.port().to_string());
        let running = start("otlp-sink", &[file.to_str().unwrap(), &ports[0], &ports[1]]);
        // It listens on the second port once it serves on the first.
        let running = running.ready(http, || true);
        Self { grpc, http, file, _directory: directory, _running: running }
    }

    /// Everything received so far, as it was written: what is looked through for secrets.
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// Every export so far, in order.
    pub(crate) fn exports(&self) -> Vec<Export> {
        let text = self.text();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(Export::read).collect()
    }

    /// Every span so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.exports().into_iter().flat_map(|export| export.traces).flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// The CLIENT spans so far, in order: they have what is known of the answer.
    pub(crate) fn client_spans(&self) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.kind() == SpanKind::Client).collect()
    }

    /// The log records so far of the scope with this name.
    pub(crate) fn logs(&self, scope: &str) -> Vec<LogRecord> {
        let scopes = self.exports().into_iter().flat_map(|export| export.logs).flat_map(|logs| logs.scope_logs);
        let of_name = scopes.filter(|logs| logs.scope.as_ref().is_some_and(|known| known.name == scope));
        of_name.flat_map(|logs| logs.log_records).collect()
    }

    /// The last value of every series, under the name that Prometheus would store it by.
    pub(crate) fn metrics(&self) -> Table {
        let mut table = Table::new();
        let exported = self.exports().into_iter().flat_map(|export| export.metrics);
        exported.for_each(|metrics| table.extend(metrics_parser::otlp(&metrics)));
        table
    }
}

impl Export {
    fn read(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let headers = line["headers"].as_object().unwrap().iter();
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), text(value))).collect();
        let hex = text(&line["bytes"]);
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let (mut metrics, mut traces, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        match line["kind"].as_str().unwrap() {
            "metrics" => metrics = ExportMetricsServiceRequest::decode(&bytes[..]).unwrap().resource_metrics,
            "traces" => traces = ExportTraceServiceRequest::decode(&bytes[..]).unwrap().resource_spans,
            "logs" => logs = ExportLogsServiceRequest::decode(&bytes[..]).unwrap().resource_logs,
            other => panic!("we send no {other}"),
        }
        Self { via: text(&line["via"]), headers, metrics, traces, logs }
    }
}

/// An id as it is written in headers.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attributes as JSON.
pub(crate) fn attributes(attributes: &[KeyValue]) -> Value {
    fn value(any: Option<&AnyValue>) -> Value {
        match any.and_then(|value| value.value.as_ref()) {
            Some(Any::StringValue(text)) => json!(text),
            Some(Any::IntValue(number)) => json!(number),
            Some(Any::DoubleValue(real)) => json!(real),
            Some(Any::BoolValue(truth)) => json!(truth),
            Some(Any::ArrayValue(array)) => array.values.iter().map(|each| value(Some(each))).collect(),
            other => panic!("{other:?}"),
        }
    }
    attributes.iter().map(|each| (each.key.clone(), value(each.value.as_ref()))).collect()
}

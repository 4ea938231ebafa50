//! The files of AIPerf 0.13, from our records and by its definitions: `profile_export.jsonl` with one line per request,
//! `profile_export_aiperf.json` (schema 1.4) and `profile_export_aiperf.csv`.
//!
//! AIPerf's own models read these files. They contain every metric that AIPerf has for streamed responses, except GPU
//! telemetry. Warm-up requests are lines with their own phase, and `warmup_metrics` in the summary. A connection opened
//! before its request was due counts as reused. For a connection opened for the request, `http_req_connecting` covers
//! DNS lookup, TCP and TLS. Unknown values are omitted, as in AIPerf: process ids, request ids, and `http_req_*` in
//! runs recorded by older versions.
//!
//! `input_config` is the equivalent AIPerf configuration: `models`, `endpoint`, and the mean lengths as one synthetic
//! data set. The phase is either slots (`concurrency`) or fixed times (`fixed_schedule`). It is absent if a run names
//! no model or uses a dialect that AIPerf does not have.
//!
//! [`time_slices`] writes the two files of AIPerf's `--slice-duration`.

mod curves;
mod input_config;
mod metric_summary;
mod phase;
mod request_metrics;
pub mod time_slices;

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::accumulate::SloCounts;
use super::request_view::RequestView;
use super::source::ReportSource;
use super::tool_fields::{ToolFields, failure_text, python_timestamp};
use crate::measure::record::Outcome;
use crate::measure::time::{Gap, Stamp};
use input_config::RequestConfig;
use phase::AiperfPhase;
use request_metrics::{LIST_METRIC, REQUEST_METRICS, is_integer, request_metrics};

/// Names of the files.
pub const FILES: [&str; 3] = ["profile_export.jsonl", "profile_export_aiperf.json", "profile_export_aiperf.csv"];

/// Collects requests and renders the files. All lines and values stay in memory until then.
#[derive(Debug, Default)]
pub struct Aiperf {
    lines: String,
    warm_up: AiperfPhase,
    profiling: AiperfPhase,
    /// `true` if the run had a warm-up.
    warmed_up: bool,
    config: RequestConfig,
}

/// Contents of the three files, in the order of [`FILES`].
pub type AiperfFiles = [String; 3];

impl Aiperf {
    /// Creates an empty collection. `warmed_up` is `true` for a run with a warm-up.
    pub fn new(warmed_up: bool) -> Self {
        Self { warmed_up, ..Self::default() }
    }

    /// Adds a request. `counts` is `false` for the warm-up. `zero` is the wall-clock time of the run's start, in
    /// nanoseconds since 1970.
    pub fn add(&mut self, request: &RequestView, counts: bool, zero: u64) {
        let numbers = request_metrics(request);
        let phase = if counts { &mut self.profiling } else { &mut self.warm_up };
        let number = phase.add(request, &numbers);
        if counts {
            self.config.add(request);
        }
        let mut line = ToolFields::default();
        line.put("metadata", json!(self.metadata(request, number, counts, zero)));
        line.put("metrics", json!(numbers.iter().filter_map(metric).collect::<Map<_, _>>()));
        if !request.succeeded() {
            line.put("error", error_details(request));
        }
        self.lines += &serde_json::to_string(&line).unwrap_or_default();
        self.lines.push('\n');
    }

    fn metadata(&self, request: &RequestView, number: u64, counts: bool, zero: u64) -> ToolFields {
        let wall = |at: Stamp| zero + at.as_nanos();
        let after = |after: Option<u64>| after.map(|after| wall(request.sent.after(Gap::from_nanos(after))));
        let (session, turn) = request.session.clone().unwrap_or_else(|| (format!("session_{number:06}"), 0));
        let cancelled = request.outcome == Some(Outcome::Cancelled);
        let ended = wall(request.ended.unwrap_or(request.sent));
        let phase = if counts { "profiling" } else { "warmup" };
        let mut metadata = ToolFields::default();
        metadata.put("session_num", json!(number));
        metadata.put("conversation_id", json!(session));
        metadata.put("turn_index", json!(turn));
        metadata.put("credit_issued_ns", json!(wall(request.started())));
        metadata.put("request_start_ns", json!(wall(request.sent)));
        if let Some(head) = after(request.transfer.head) {
            metadata.put("request_ack_ns", json!(head));
        }
        metadata.put("request_end_ns", json!(ended));
        metadata.put("worker_id", json!("streamgauge"));
        metadata.put("record_processor_id", json!("streamgauge"));
        metadata.put("benchmark_phase", json!(phase));
        metadata.put("phase_index", json!(u8::from(counts && self.warmed_up)));
        if counts {
            metadata.put("profiling_index", json!(0));
        }
        metadata.put("phase_name", json!(phase));
        metadata.put("phase_kind", json!(phase));
        metadata.put("was_cancelled", json!(cancelled));
        if cancelled {
            metadata.put("cancellation_time_ns", json!(ended));
        }
        metadata.put("context_overflow_skip", json!(false));
        metadata.put("agent_depth", json!(0));
        metadata
    }

    /// Renders the files. Goodput is included if the run has
    /// exactly one SLO.
    pub fn render(self, sources: &[ReportSource], goodput: &[SloCounts]) -> AiperfFiles {
        let zero = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let stopped = sources.iter().any(|source| source.stopped);
        let fixed = !sources.iter().any(|source| source.closed_loop);
        let good = if let [only] = goodput { Some(only.met) } else { None };
        let mut summary = ToolFields::default();
        summary.put("schema_version", json!("1.4"));
        summary.put("aiperf_version", json!(concat!("streamgauge ", env!("CARGO_PKG_VERSION"))));
        let (mut spread, mut single) = (metric_summary::csv_header() + "\n", "Metric,Value\n".to_owned());
        for (tag, (header, unit, metric)) in &self.profiling.summary(good, fixed) {
            summary.put(tag, metric.json(unit));
            let name = metric_summary::csv_name(header, unit);
            _ = match metric.has_percentiles() {
                true => writeln!(spread, "{name},{}", metric.csv()),
                false => writeln!(single, "{name},{:.2}", metric.avg.unwrap_or_default()),
            };
        }
        if let Some(config) = self.config.render(sources, &self.profiling) {
            summary.put("input_config", config);
        }
        let mut about = ToolFields::default();
        if let Some(seed) = sources.first().and_then(|source| source.seed) {
            about.put("random_seed", json!(seed));
        }
        if let Some(command) = sources.first().map(|source| source.command.join(" ")).filter(|text| !text.is_empty()) {
            about.put("cli_command", json!(command));
        }
        summary.put("run_info", json!(about));
        summary.put("was_cancelled", json!(stopped));
        summary.put("is_complete", json!(!stopped));
        summary.put("error_summary", self.profiling.errors());
        let (begin, end) = self.profiling.window().unwrap_or_default();
        summary.put("start_time", json!(python_timestamp(zero + begin.as_nanos())));
        summary.put("end_time", json!(python_timestamp(zero + end.as_nanos())));
        if self.warm_up.window().is_some() {
            let metrics = self.warm_up.summary(None, fixed);
            let metrics = metrics.iter().map(|(tag, (_, unit, metric))| (tag.clone(), metric.json(unit)));
            summary.put("warmup_metrics", json!(metrics.collect::<Map<_, _>>()));
        }
        [self.lines, serde_json::to_string_pretty(&summary).unwrap_or_default(), format!("{spread}\n{single}")]
    }
}

/// Formats a metric for a request's line.
fn metric((tag, values): &(&'static str, Vec<f64>)) -> Option<(String, Value)> {
    let (.., unit) = REQUEST_METRICS.iter().find(|(of, ..)| of == tag)?;
    let value = match (&values[..], *tag) {
        (all, LIST_METRIC) => json!(all),
        ([one], tag) if is_integer(tag, unit) => json!(*one as u64),
        (all, _) => json!(all.first()?),
    };
    Some(((*tag).to_owned(), json!({"value": value, "unit": unit})))
}

/// Describes a failure without any text from the server. A client disconnect uses AIPerf's own wording.
fn error_details(request: &RequestView) -> Value {
    match request.outcome {
        Some(Outcome::Cancelled) => {
            json!({"code": 499, "type": "RequestCancellationError", "message": "Request cancelled"})
        }
        _ => json!({"code": request.status, "type": "streamgauge", "message": failure_text(request)}),
    }
}

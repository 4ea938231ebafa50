//! The files of AIPerf 0.13 from our records and by its definitions: `profile_export.jsonl`, one line for each request,
//! `profile_export_aiperf.json` (schema 1.4) and `profile_export_aiperf.csv`.
//!
//! AIPerf's own models read them, and they have every number that it has of a run of streamed answers, but for what it asks
//! of GPUs. Requests of a warm-up are lines of their own phase, and `warmup_metrics` of the summary. A connection that was
//! made before a request was due counts as one that is used again; of one that was made for it `http_req_connecting` has
//! the whole, name look-up and TLS included. What no record has is left out, as AIPerf does where it has none: the ids of
//! its processes and of single requests, and `http_req_*` of runs that older versions recorded.
//!
//! `input_config` is what AIPerf would have been told: `models` and `endpoint`, the mean lengths of the requests as one
//! synthetic data set, and as phase slots (`concurrency`) or times that were fixed before (`fixed_schedule`). Where a run
//! names no model, or speaks a dialect that AIPerf does not, there is none.

mod curves;
mod metric_summary;
mod phase;
mod request_metrics;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::accumulate::SloCounts;
use super::request_view::RequestView;
use super::source::ReportSource;
use super::tool_fields::{ToolFields, failure_text, python_timestamp};
use crate::measure::record::Outcome;
use crate::measure::time::{Gap, Stamp};
use phase::AiperfPhase;
use request_metrics::{LIST_METRIC, REQUEST_METRICS, is_integer, request_metrics};

/// The names of its files.
pub const FILES: [&str; 3] = ["profile_export.jsonl", "profile_export_aiperf.json", "profile_export_aiperf.csv"];

/// Takes requests in and makes the files. All lines and all numbers are held until then.
#[derive(Debug, Default)]
pub struct Aiperf {
    lines: String,
    warm_up: AiperfPhase,
    profiling: AiperfPhase,
    /// Whether there is a warm-up at all.
    warmed_up: bool,
    models: BTreeSet<String>,
    dialect: Option<String>,
    streamed: bool,
}

/// The three files, in the order of [`FILES`].
pub type AiperfFiles = [String; 3];

impl Aiperf {
    /// Nothing yet, of a run that had a warm-up or none.
    pub fn new(warmed_up: bool) -> Self {
        Self { warmed_up, ..Self::default() }
    }

    /// One request more, of the warm-up or in the figures. `zero` is the wall clock's time at the beginning of the line, in
    /// nanoseconds since 1970.
    pub fn add(&mut self, request: &RequestView, counts: bool, zero: u64) {
        let numbers = request_metrics(request);
        let phase = if counts { &mut self.profiling } else { &mut self.warm_up };
        let number = phase.add(request, &numbers);
        if counts {
            self.models.extend(request.model.clone());
            self.dialect = self.dialect.take().or_else(|| request.dialect.clone());
            self.streamed |= request.streamed;
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

    /// The files. `moment` writes a wall-clock time as `20261121T004151Z`.
    /// Its goodput is that of the run's SLO, if it has exactly one.
    pub fn render(self, sources: &[ReportSource], goodput: &[SloCounts], moment: fn(u64) -> String) -> AiperfFiles {
        let zero = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let stopped = sources.iter().any(|source| source.stopped);
        let fixed = !sources.iter().any(|source| source.closed_loop);
        let good = if let [only] = goodput { Some(only.met) } else { None };
        let mut summary = ToolFields::default();
        summary.put("schema_version", json!("1.4"));
        summary.put("aiperf_version", json!(concat!("streamgauge ", env!("CARGO_PKG_VERSION"))));
        let (mut spread, mut single) = (metric_summary::csv_header() + "\n", "Metric,Value\n".to_owned());
        for (tag, (header, unit, told)) in &self.profiling.summary(good, fixed) {
            summary.put(tag, told.json(unit));
            let name = metric_summary::csv_name(header, unit);
            _ = match told.has_percentiles() {
                true => writeln!(spread, "{name},{}", told.csv()),
                false => writeln!(single, "{name},{:.2}", told.avg.unwrap_or_default()),
            };
        }
        if let Some(config) = self.input_config(sources) {
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
        summary.put("start_time", json!(python_timestamp(zero + begin.as_nanos(), moment)));
        summary.put("end_time", json!(python_timestamp(zero + end.as_nanos(), moment)));
        if self.warm_up.window().is_some() {
            let metrics = self.warm_up.summary(None, fixed);
            let metrics = metrics.iter().map(|(tag, (_, unit, told))| (tag.clone(), told.json(unit)));
            summary.put("warmup_metrics", json!(metrics.collect::<Map<_, _>>()));
        }
        [self.lines, serde_json::to_string_pretty(&summary).unwrap_or_default(), format!("{spread}\n{single}")]
    }

    /// See the module.
    fn input_config(&self, sources: &[ReportSource]) -> Option<Value> {
        let of = endpoint(self.dialect.as_deref()?)?;
        let requests = self.profiling.requests();
        let models: Vec<_> = self.models.iter().map(|model| json!({"name": model})).collect();
        let urls: BTreeSet<&String> = sources.iter().flat_map(|source| &source.targets).collect();
        let prompts = [("isl", "input_sequence_length"), ("osl", "output_sequence_length")];
        let prompts: Map<_, _> = prompts
            .into_iter()
            .filter_map(|(key, tag)| Some((key.to_owned(), json!(self.profiling.mean(tag)?))))
            .collect();
        let phase = match sources.iter().find(|source| source.closed_loop) {
            Some(closed) => json!({
                "name": "profiling", "type": "concurrency", "concurrency": closed.slots.unwrap_or(1),
                "requests": requests,
            }),
            None => json!({"name": "profiling", "type": "fixed_schedule"}),
        };
        (!models.is_empty() && !urls.is_empty()).then(|| {
            json!({
                "models": {"items": models},
                "endpoint": {"urls": urls, "type": of, "streaming": self.streamed},
                "datasets": [{"name": "main", "type": "synthetic", "entries": requests, "prompts": prompts}],
                "phases": [phase],
            })
        })
    }
}

/// A number of a request, as its line has it.
fn metric((tag, values): &(&'static str, Vec<f64>)) -> Option<(String, Value)> {
    let (.., unit) = REQUEST_METRICS.iter().find(|(of, ..)| of == tag)?;
    let value = match (&values[..], *tag) {
        (all, LIST_METRIC) => json!(all),
        ([one], tag) if is_integer(tag, unit) => json!(*one as u64),
        (all, _) => json!(all.first()?),
    };
    Some(((*tag).to_owned(), json!({"value": value, "unit": unit})))
}

/// What it calls a server that speaks a dialect, where it knows one.
fn endpoint(dialect: &str) -> Option<&'static str> {
    match dialect {
        "openai.chat" => Some("chat"),
        "openai.completions" => Some("completions"),
        "openai.responses" => Some("responses"),
        "openai.embeddings" => Some("embeddings"),
        "anthropic.messages" => Some("messages"),
        "tgi.stream" => Some("huggingface_generate"),
        _ => None,
    }
}

/// A failure without anything that a server wrote. That a client left is told as AIPerf tells it.
fn error_details(request: &RequestView) -> Value {
    match request.outcome {
        Some(Outcome::Cancelled) => {
            json!({"code": 499, "type": "RequestCancellationError", "message": "Request cancelled"})
        }
        _ => json!({"code": request.status, "type": "streamgauge", "message": failure_text(request)}),
    }
}

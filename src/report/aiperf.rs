//! The files of AIPerf 0.13 from our records and by its definitions: `profile_export.jsonl`, one line for each request,
//! `profile_export_aiperf.json` (schema 1.4) and `profile_export_aiperf.csv`.
//!
//! Of what AIPerf calls `http_req_*` a record has how long the request was written (`sending`) and the whole exchange
//! (`duration`). It has no times of name look-ups and connections, which are made before a request is due, none of the
//! reply's first byte, and no sizes; those are left out, as AIPerf does where it has none. So are its sweep lines
//! (`effective_*` and `active_*` but for `effective_latency`, `tokens_in_flight`) and the ids of its processes. AIPerf's own
//! models read what is left.
//!
//! `input_config` is what AIPerf would have been told: `models` and `endpoint`, the mean lengths of the requests as one
//! synthetic data set, and as phase slots (`concurrency`) or times that were fixed before (`fixed_schedule`). Where a run
//! names no model, or speaks a dialect that AIPerf does not, there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::column::Column;
use super::definitions::Definitions;
use super::fold::Good;
use super::request::Request;
use super::source::Source;
use super::vllm::{Fields, error};
use crate::measure::record::{CountSource, Outcome};
use crate::measure::time::{Gap, Stamp};

/// The names of its files.
pub const FILES: [&str; 3] = ["profile_export.jsonl", "profile_export_aiperf.json", "profile_export_aiperf.csv"];

/// Its percentiles.
const PERCENTILES: [u32; 9] = [1, 5, 10, 25, 50, 75, 90, 95, 99];
/// Output that is more than this share shorter or longer than asked for, or by more than so many tokens, is a mismatch.
const MISMATCH: (f64, f64) = (0.05, 50.0);

/// Numbers of single requests: tag, header, unit.
const OF_REQUESTS: [(&str, &str, &str); 21] = [
    ("credit_to_start_latency", "Credit-to-Start Latency", "ms"),
    ("decode_duration", "Decode Duration", "ms"),
    ("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user"),
    ("effective_latency", "Effective Latency (CO-aware)", "ms"),
    ("http_req_duration", "HTTP Duration (excl. conn)", "ms"),
    ("http_req_sending", "HTTP Sending", "ms"),
    ("input_sequence_length", "Input Sequence Length", "tokens"),
    ("inter_chunk_latency", "Inter Chunk Latency", "ms"),
    ("inter_token_latency", "Inter Token Latency", "ms"),
    ("osl_mismatch_diff_pct", "OSL Mismatch Diff %", "%"),
    ("output_sequence_length", "Output Sequence Length", "tokens"),
    ("output_token_count", "Output Token Count", "tokens"),
    ("output_token_throughput_per_user", "Output Token Throughput Per User", "tokens/sec/user"),
    ("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user"),
    ("request_latency", "Request Latency", "ms"),
    ("time_to_first_output_token", "Time to First Output Token", "ms"),
    ("time_to_first_token", "Time to First Token", "ms"),
    ("time_to_second_token", "Time to Second Token", "ms"),
    ("usage_completion_tokens", "Usage Completion Tokens", "tokens"),
    ("usage_prompt_tokens", "Usage Prompt Tokens", "tokens"),
    ("usage_total_tokens", "Usage Total Tokens", "tokens"),
];

/// Those that its file of requests leaves to the summary.
const SUMMARY_ONLY: [&str; 2] = ["credit_to_start_latency", "effective_latency"];

/// Takes requests in and makes the files. All lines and all numbers are held until then.
#[derive(Debug, Default)]
pub struct Aiperf {
    lines: String,
    columns: BTreeMap<&'static str, Column>,
    requests: u64,
    errors: BTreeMap<(String, Option<u16>), u64>,
    mismatches: u64,
    models: BTreeSet<String>,
    dialect: Option<String>,
    streamed: bool,
    window: Option<(Stamp, Stamp)>,
}

/// The three files, in the order of [`FILES`].
pub type Files = [String; 3];

impl Aiperf {
    /// One request more. `zero` is the wall clock's time at the beginning of the line, in nanoseconds since 1970.
    pub fn add(&mut self, request: &Request, zero: u64) {
        let number = self.requests;
        self.requests += 1;
        self.models.extend(request.model.clone());
        self.dialect = self.dialect.take().or_else(|| request.dialect.clone());
        self.streamed |= request.streamed;
        let mut metrics = Map::new();
        if request.succeeded() {
            for (tag, values) in of_request(request) {
                let (_, _, unit) = OF_REQUESTS[OF_REQUESTS.iter().position(|(of, ..)| *of == tag).unwrap_or_default()];
                if !SUMMARY_ONLY.contains(&tag) {
                    let whole = unit == "tokens";
                    let value = match (&values[..], tag) {
                        (all, "inter_chunk_latency") => json!(all),
                        ([one], _) if whole => json!(*one as u64),
                        (all, _) => json!(all[0]),
                    };
                    metrics.insert(tag.to_owned(), json!({"value": value, "unit": unit}));
                }
                self.columns.entry(tag).or_default().0.extend(values);
            }
            if let (Some(asked), Some(tokens)) = (request.asked, request.tokens) {
                let most = (asked as f64 * MISMATCH.0).min(MISMATCH.1);
                self.mismatches += u64::from(asked.abs_diff(tokens.tokens) as f64 > most);
            }
            let end = Definitions::Aiperf.end(request).unwrap_or(request.sent);
            let (first, last) = self.window.unwrap_or((request.sent, end));
            self.window = Some((first.min(request.sent), last.max(end)));
        } else {
            *self.errors.entry((error(request), request.status)).or_default() += 1;
        }
        let wall = |at: Stamp| zero + at.as_nanos();
        let (session, turn) = request.session.clone().unwrap_or_else(|| (format!("session_{number:06}"), 0));
        let cancelled = request.outcome == Some(Outcome::Cancelled);
        let mut metadata = Fields::default();
        metadata.put("session_num", json!(number));
        metadata.put("conversation_id", json!(session));
        metadata.put("turn_index", json!(turn));
        metadata.put("credit_issued_ns", json!(wall(request.begun())));
        metadata.put("request_start_ns", json!(wall(request.sent)));
        metadata.put("request_end_ns", json!(wall(request.ended.unwrap_or(request.sent))));
        metadata.put("worker_id", json!("streamgauge"));
        metadata.put("record_processor_id", json!("streamgauge"));
        metadata.put("benchmark_phase", json!("profiling"));
        metadata.put("phase_index", json!(0));
        metadata.put("profiling_index", json!(0));
        metadata.put("phase_name", json!("profiling"));
        metadata.put("phase_kind", json!("profiling"));
        metadata.put("was_cancelled", json!(cancelled));
        metadata.put("context_overflow_skip", json!(false));
        metadata.put("agent_depth", json!(0));
        let mut line = Fields::default();
        line.put("metadata", json!(metadata));
        line.put("metrics", Value::Object(metrics));
        if !request.succeeded() {
            line.put("error", fault(&error(request), request.status));
        }
        self.lines += &serde_json::to_string(&line).unwrap_or_default();
        self.lines.push('\n');
    }

    /// The files. `moment` writes a wall-clock time as `20261121T004151Z`.
    /// Its goodput is that of the run's SLO, if it has exactly one.
    pub fn render(self, sources: &[Source], goodput: &[Good], moment: fn(u64) -> String) -> Files {
        let zero = sources.iter().filter_map(|source| source.started_unix_ns).min().unwrap_or(0);
        let stopped = sources.iter().any(|source| source.stopped);
        let successes = self.columns.get("request_latency").map_or(0, |column| column.0.len());
        let sum = |tag: &str| self.columns.get(tag).map_or(0.0, |column| column.stats().sum());
        let seconds = self.window.map_or(0.0, |(first, last)| last.since(first).as_secs());
        let per_second = |number: f64| if seconds > 0.0 { number / seconds } else { 0.0 };
        let (isl, osl) = (sum("input_sequence_length"), sum("output_sequence_length"));
        let failed = self.requests as f64 - successes as f64;
        let of_all = vec![
            ("benchmark_duration", "Benchmark Duration", "sec", seconds),
            ("completed_request_count", "Completed Requests (Success + Error)", "requests", self.requests as f64),
            ("input_token_throughput", "Input Token Throughput", "tokens/sec", per_second(isl)),
            ("osl_mismatch_count", "OSL Mismatch Count", "requests", self.mismatches as f64),
            ("output_token_throughput", "Output Token Throughput", "tokens/sec", per_second(osl)),
            ("request_count", "Request Count", "requests", successes as f64),
            ("request_error_rate", "Request Error Rate", "%", failed / (self.requests.max(1) as f64) * 100.0),
            ("request_throughput", "Request Throughput", "requests/sec", per_second(successes as f64)),
            ("total_isl", "Total Input Sequence Length", "tokens", isl),
            ("total_osl", "Total Output Sequence Length", "tokens", osl),
            ("total_output_tokens", "Total Output Tokens", "tokens", sum("output_token_count")),
            ("total_token_throughput", "Total Token Throughput", "tokens/sec", per_second(isl + osl)),
            (
                "total_usage_completion_tokens",
                "Total Usage Completion Tokens",
                "tokens",
                sum("usage_completion_tokens"),
            ),
            ("total_usage_prompt_tokens", "Total Usage Prompt Tokens", "tokens", sum("usage_prompt_tokens")),
            ("total_usage_total_tokens", "Total Usage Total Tokens", "tokens", sum("usage_total_tokens")),
        ];
        let good = if let [only] = goodput { Some(only.met as f64) } else { None };
        let of_good = good.map(|good| {
            [
                ("good_request_count", "Good Request Count", "requests", good),
                ("good_request_fraction", "GoodRequestFraction", "ratio", good / self.requests.max(1) as f64),
                ("goodput", "Goodput", "requests/sec", per_second(good)),
            ]
        });
        let of_all = of_all.into_iter().chain(of_good.into_iter().flatten());
        let mut summary = Fields::default();
        summary.put("schema_version", json!("1.4"));
        summary.put("aiperf_version", json!(concat!("streamgauge ", env!("CARGO_PKG_VERSION"))));
        let named: Vec<String> = PERCENTILES.iter().map(|percent| format!("p{percent}")).collect();
        let mut csv = format!("Metric,avg,min,max,sum,{},std\n", named.join(","));
        for (tag, header, unit) in OF_REQUESTS {
            let Some(stats) = self.columns.get(tag).map(Column::stats) else { continue };
            let mut metric = Fields::default();
            metric.put("unit", json!(unit));
            metric.put("avg", json!(stats.mean()));
            let percentiles: Vec<f64> = PERCENTILES.iter().map(|percent| stats.percentile((*percent).into())).collect();
            named.iter().zip(&percentiles).for_each(|(name, value)| metric.put(name, json!(value)));
            metric.put("min", json!(stats.min()));
            metric.put("max", json!(stats.max()));
            metric.put("std", json!(stats.std()));
            metric.put("count", json!(stats.count()));
            metric.put("sum", json!(stats.sum()));
            summary.put(tag, json!(metric));
            let numbers = [stats.mean(), stats.min(), stats.max(), stats.sum()];
            let numbers = numbers.into_iter().chain(percentiles).chain([stats.std()]);
            let numbers: Vec<String> = numbers.map(|number| format!("{number:.2}")).collect();
            _ = writeln!(csv, "{header} ({unit}),{}", numbers.join(","));
        }
        csv += "\nMetric,Value\n";
        for (tag, header, unit, value) in of_all {
            summary.put(tag, json!({"unit": unit, "avg": value}));
            let unit = if unit == "requests" { String::new() } else { format!(" ({unit})") };
            _ = writeln!(csv, "{header}{unit},{value:.2}");
        }
        let seed = sources.first().and_then(|source| source.seed);
        let faults = self
            .errors
            .iter()
            .map(|((said, status), count)| json!({"error_details": fault(said, *status), "count": count}));
        let span = self.window.unwrap_or_default();
        if let Some(config) = self.input_config(sources) {
            summary.put("input_config", config);
        }
        summary.put("run_info", json!({"random_seed": seed}));
        summary.put("was_cancelled", json!(stopped));
        summary.put("is_complete", json!(!stopped));
        summary.put("error_summary", json!(faults.collect::<Vec<_>>()));
        summary.put("start_time", json!(time(zero + span.0.as_nanos(), moment)));
        summary.put("end_time", json!(time(zero + span.1.as_nanos(), moment)));
        [self.lines, serde_json::to_string_pretty(&summary).unwrap_or_default(), csv]
    }

    /// See the module.
    fn input_config(&self, sources: &[Source]) -> Option<Value> {
        let of = endpoint(self.dialect.as_deref()?)?;
        let models: Vec<_> = self.models.iter().map(|model| json!({"name": model})).collect();
        let urls: BTreeSet<&String> = sources.iter().flat_map(|source| &source.targets).collect();
        let mean = |tag: &str| self.columns.get(tag).map(|column| column.stats().mean());
        let prompts = [("isl", mean("input_sequence_length")), ("osl", mean("output_sequence_length"))];
        let prompts: Map<_, _> =
            prompts.into_iter().filter_map(|(key, mean)| Some((key.to_owned(), json!(mean?)))).collect();
        let phase = match sources.iter().find(|source| source.closed_loop) {
            Some(closed) => json!({
                "name": "profiling", "type": "concurrency", "concurrency": closed.slots.unwrap_or(1),
                "requests": self.requests,
            }),
            None => json!({"name": "profiling", "type": "fixed_schedule"}),
        };
        (!models.is_empty() && !urls.is_empty()).then(|| {
            json!({
                "models": {"items": models},
                "endpoint": {"urls": urls, "type": of, "streaming": self.streamed},
                "datasets": [{"name": "main", "type": "synthetic", "entries": self.requests, "prompts": prompts}],
                "phases": [phase],
            })
        })
    }
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

/// A failure without anything that a server wrote.
fn fault(said: &str, status: Option<u16>) -> Value {
    json!({"code": status, "type": "streamgauge", "message": said})
}

/// `2026-11-21T00:41:51.697509`, without a zone, as Python writes it.
fn time(unix_ns: u64, moment: fn(u64) -> String) -> String {
    let text = moment(unix_ns);
    let part = |range| text.get(range).unwrap_or_default();
    let micros = unix_ns % 1_000_000_000 / 1_000;
    let (year, month, day) = (part(0..4), part(4..6), part(6..8));
    format!("{year}-{month}-{day}T{}:{}:{}.{micros:06}", part(9..11), part(11..13), part(13..15))
}

/// The numbers of a success. What it does not have is left out.
fn of_request(request: &Request) -> Vec<(&'static str, Vec<f64>)> {
    let times = Definitions::Aiperf.times(request, request.sent);
    let millis = Gap::as_millis;
    let mut numbers: Vec<(&'static str, Vec<f64>)> = Vec::new();
    let mut put = |tag: &'static str, value: Option<f64>| numbers.extend(value.map(|value| (tag, vec![value])));
    let tokens = request.tokens.map(|count| count.tokens as f64);
    let input = request.input.map(|tokens| tokens as f64);
    let rate = |count: Option<f64>, time: Option<Gap>| {
        let seconds = time.map(Gap::as_secs).filter(|seconds| *seconds > 0.0);
        Some(count? / seconds?)
    };
    put("http_req_sending", request.written.map(|written| millis(written.since(request.sent))));
    put("http_req_duration", request.ended.map(|ended| millis(ended.since(request.sent))));
    put("request_latency", times.e2e.map(millis));
    put("time_to_first_token", times.ttft.map(millis));
    put("time_to_first_output_token", times.ttfo.map(millis));
    put("time_to_second_token", request.events.first().map(|event| millis(event.gap())));
    put("inter_token_latency", times.mean_itl.map(millis));
    put("output_token_throughput_per_user", rate(Some(1.0), times.mean_itl));
    put("decode_duration", times.e2e.zip(times.ttft).map(|(whole, first)| millis(whole) - millis(first)));
    put("e2e_output_token_throughput", rate(tokens, times.e2e));
    put("prefill_throughput_per_user", rate(input, times.ttft));
    put("output_sequence_length", tokens);
    // Without reasoning; whether there was any is all that a record tells.
    put("output_token_count", tokens.filter(|_| request.output == request.first));
    put("input_sequence_length", input);
    let used = request.tokens.filter(|count| count.source == CountSource::Usage).and(tokens);
    put("usage_completion_tokens", used);
    put("usage_prompt_tokens", used.and(input));
    put("usage_total_tokens", used.zip(input).map(|(output, input)| output + input));
    let asked = request.asked.filter(|asked| *asked > 0).map(|asked| asked as f64);
    put("osl_mismatch_diff_pct", asked.zip(tokens).map(|(asked, tokens)| (tokens - asked) / asked * 100.0));
    if let Some(planned) = request.planned {
        put("credit_to_start_latency", Some(millis(request.sent.since(planned))));
        let end = Definitions::Aiperf.end(request);
        put("effective_latency", end.map(|end| millis(end.since(planned))));
    }
    if !request.events.is_empty() {
        numbers.push(("inter_chunk_latency", request.events.iter().map(|event| millis(event.gap())).collect()));
    }
    numbers
}

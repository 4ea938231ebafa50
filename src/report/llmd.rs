//! A report as llm-d's Benchmark Report 0.2.1, the format that llm-d-benchmark converts the results of other tools to.
//!
//! Latencies are from the time of sending, as those of the other converters. `failures` were answered with an error or
//! with nothing; `incomplete` were cut off or left. With `--slice` and a wall clock there are time series. Unreported
//! values are absent; a field that the schema requires is `unknown`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::context::{FactName, UNKNOWN};
use super::distribution::MetricDistribution;
use super::metric::ReportMetric;
use super::source::ReportSource;
use super::{Report, RequestSummary};
use crate::measure::calendar::utc;
use crate::measure::record::Outcome;
use crate::trace_file::header::SIMULATED;

/// Version of the schema.
const VERSION: &str = "0.2.1";
/// Version of the parts of a scenario.
const PART_VERSION: &str = "0.0.1";
const ID_BYTES: usize = 16;

/// Latencies: (name, metric, unit).
const LATENCIES: [(&str, ReportMetric, &str); 4] = [
    ("time_to_first_token", ReportMetric::Ttft, "ms"),
    ("time_per_output_token", ReportMetric::Tpot, "ms/token"),
    ("inter_token_latency", ReportMetric::Itl, "ms/token"),
    ("request_latency", ReportMetric::E2e, "ms"),
];

/// Names of tools in the schema's list of load generators, by the start of ours.
const TOOLS: [(&str, &str); 4] = [
    ("AIPerf", "aiperf"),
    ("GuideLLM", "guidellm"),
    ("inference-perf", "inference-perf"),
    ("vllm bench serve", "vllm-benchmark"),
];

/// Renders the report as one JSON object.
pub fn render(report: &Report) -> String {
    let whole = &report.whole;
    let started = report.sources.iter().filter_map(|source| source.started_unix_ns).min();
    let mut performance = json!({"aggregate": {
        "requests": requests(whole),
        "latency": latencies(whole, statistics),
        "throughput": throughput(whole, |rate, unit| json!({"units": unit, "mean": rate})),
    }});
    if let Some(series) = started.and_then(|started| time_series(report, started)) {
        performance["time_series"] = series;
    }
    let mut document = json!({"version": VERSION, "results": {"request_performance": performance}});
    if let Some(scenario) = scenario(report) {
        document["scenario"] = scenario;
    }
    // Equal results have equal ids.
    document["run"] = json!({"uid": digest(&document), "time": time(whole, started)});
    if report.sources.iter().any(|source| source.simulated) {
        document["run"]["description"] = json!(SIMULATED);
    }
    // Numbers, names and string keys always serialize.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn digest(value: &Value) -> String {
    let hash = blake3::hash(value.to_string().as_bytes());
    hash.to_hex()[..2 * ID_BYTES].to_owned()
}

fn time(whole: &RequestSummary, started: Option<u64>) -> Value {
    let mut time = json!({"duration": format!("PT{:.3}S", whole.seconds)});
    if let Some(started) = started {
        time["start"] = json!(utc(started));
    }
    time
}

fn requests(whole: &RequestSummary) -> Value {
    let count = |outcomes: &[Outcome]| -> u64 { outcomes.iter().filter_map(|of| whole.outcomes.get(of.name())).sum() };
    let mut requests = json!({
        "total": whole.requests,
        "failures": count(&[Outcome::Failed, Outcome::Refused]),
        "incomplete": count(&[Outcome::Truncated, Outcome::Cancelled]),
    });
    for (name, metric) in [("input_length", ReportMetric::Input), ("output_length", ReportMetric::Output)] {
        if let Some(length) = whole.metric(metric) {
            requests[name] = statistics(length, "count");
        }
    }
    requests
}

/// The latencies that the summary has, each as `show` renders it.
fn latencies(summary: &RequestSummary, show: impl Fn(&MetricDistribution, &str) -> Value) -> Map<String, Value> {
    let known = LATENCIES
        .iter()
        .filter_map(|(name, metric, unit)| Some(((*name).to_owned(), show(summary.metric(*metric)?, unit))));
    known.collect()
}

fn throughput(summary: &RequestSummary, show: impl Fn(f64, &str) -> Value) -> Value {
    let rates = &summary.throughput;
    json!({
        "request_rate": show(rates.requests, "queries/s"),
        "input_token_rate": show(rates.input_tokens, "tokens/s"),
        "output_token_rate": show(rates.output_tokens, "tokens/s"),
        "total_token_rate": show(rates.total_tokens, "tokens/s"),
    })
}

fn statistics(of: &MetricDistribution, unit: &str) -> Value {
    let mut fields = point(of);
    fields.insert("units".to_owned(), json!(unit));
    Value::Object(fields)
}

/// The statistics that the schema has a name for.
fn point(of: &MetricDistribution) -> Map<String, Value> {
    const PERCENTILES: [f64; 11] = [0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
    let mut fields = Map::new();
    fields.insert("mean".to_owned(), json!(of.avg));
    fields.insert("stddev".to_owned(), json!(of.std));
    fields.insert("min".to_owned(), json!(of.min));
    fields.insert("max".to_owned(), json!(of.max));
    for (percent, value) in of.percentiles.iter().filter(|(percent, _)| PERCENTILES.contains(percent)) {
        fields.insert(format!("p{percent}").replace('.', "p"), json!(value));
    }
    fields
}

/// One series per latency and rate, with a point for each slice.
fn time_series(report: &Report, started: u64) -> Option<Value> {
    let (mut latency, mut throughput_series) = (BTreeMap::new(), BTreeMap::new());
    for slice in &report.slices {
        let at = json!(utc(started.saturating_add((slice.from_s * 1e9) as u64)));
        let with_time = |mut fields: Map<String, Value>| {
            fields.insert("ts".to_owned(), at.clone());
            Value::Object(fields)
        };
        for (name, value) in latencies(&slice.summary, |of, unit| json!([unit, with_time(point(of))])) {
            push(&mut latency, name, value);
        }
        let rates = throughput(&slice.summary, |rate, unit| json!([unit, {"ts": at, "mean": rate}]));
        for (name, value) in rates.as_object().into_iter().flatten() {
            push(&mut throughput_series, name.clone(), value.clone());
        }
    }
    (!report.slices.is_empty()).then(|| json!({"latency": latency, "throughput": throughput_series}))
}

/// Appends [unit, point] to a series.
fn push(series: &mut BTreeMap<String, Value>, name: String, value: Value) {
    let [unit, point] = [0, 1].map(|at| value[at].clone());
    let of = series.entry(name).or_insert_with(|| json!({"units": unit, "series": []}));
    if let Some(points) = of["series"].as_array_mut() {
        points.push(point);
    }
}

/// The load and the engine, as far as they are known.
fn scenario(report: &Report) -> Option<Value> {
    let mut scenario = Map::new();
    if let Some(load) = report.sources.first().and_then(|source| load(report, source)) {
        scenario.insert("load".to_owned(), load);
    }
    if let Some(engine) = engine(report) {
        scenario.insert("stack".to_owned(), json!([engine]));
    }
    (!scenario.is_empty()).then_some(Value::Object(scenario))
}

/// The load of a run. A capture has no load generator.
fn load(report: &Report, source: &ReportSource) -> Option<Value> {
    let (tool, version, input) = match &source.tool {
        Some(tool) => {
            let (name, known) = TOOLS.iter().find(|(name, _)| tool.starts_with(name))?;
            (*known, tool[name.len()..].trim(), "unknown")
        }
        // All texts of a run are made of random words.
        None if source.run => ("streamgauge", source.version.as_deref().unwrap_or_default(), "random"),
        None => return None,
    };
    let length = |metric: ReportMetric| {
        let length = report.whole.metric(metric).filter(|length| length.max >= 1.0)?;
        let kind = if length.min == length.max { "fixed" } else { "other" };
        Some(json!({"distribution": kind, "value": length.avg, "min": length.min as u64, "max": length.max as u64}))
    };
    let mut standardized = json!({
        "tool": tool,
        "tool_version": if version.is_empty() { UNKNOWN } else { version },
        "source": input,
        "input_seq_len": length(ReportMetric::Input)?,
    });
    let stages = source.arrivals["stages"].as_array().filter(|stages| stages.len() == 1).map(|stages| &stages[0]);
    let steady = stages.filter(|stage| stage["from"] == stage["to"]).and_then(|stage| stage["from"].as_f64());
    let stated = source.load.rate.as_deref().and_then(|rate| rate.strip_suffix("/s")?.parse().ok());
    let optional = [
        ("output_seq_len", length(ReportMetric::Output)),
        ("rate_qps", steady.or(stated).filter(|rate| *rate > 0.0).map(|rate: f64| json!(rate))),
        ("concurrency", source.slots.filter(|slots| *slots > 0).map(|slots| json!(slots))),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            standardized[name] = value;
        }
    }
    let mut native = json!({"config": source.load});
    if let Some(fields) = native["config"].as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Some(json!({
        "metadata": {"schema_version": PART_VERSION, "cfg_id": digest(&native)},
        "standardized": standardized,
        "native": native,
    }))
}

/// The server, as a component without a schema of its own: its replicas are unknown.
fn engine(report: &Report) -> Option<Value> {
    let context = &report.context;
    let tool = context.get(FactName::Engine)?;
    let mut standardized = json!({
        "kind": "generic",
        "tool": tool,
        "tool_version": context.get(FactName::EngineVersion).unwrap_or(UNKNOWN),
    });
    let facts = [
        FactName::Target,
        FactName::Model,
        FactName::EngineFlags,
        FactName::Gpu,
        FactName::GpuCount,
        FactName::Interconnect,
        FactName::Precision,
        FactName::Parallelism,
    ];
    for fact in facts {
        if let Some(value) = context.get(fact) {
            standardized[fact.key()] = json!(value);
        }
    }
    Some(json!({
        "metadata": {"schema_version": PART_VERSION, "label": "server", "cfg_id": digest(&standardized)},
        "standardized": standardized,
        "native": {},
    }))
}

//! Files of inference-perf: `per_request_lifecycle_metrics.json`, and the figures of a run or of a stage.
//!
//! `chunk_times` are the arrivals of chunks with content; reasoning and tool calls are not among them. Older versions
//! have only `output_token_times`, one per token. Token counts are the server's usage, or those of inference-perf's
//! tokenizer. The clock counts from an unknown moment, and planned times are not in the file.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::detect::PeerFormat;
use super::error::{FilePlace, PeerFileError};
use super::facts::PeerFacts;
use super::in_flight::InFlightCounter;
use super::input::PeerInput;
use super::request::{PeerRequest, count, gaps, nanos};
use super::summary::{PeerFigure, PeerSummary, UnitScale, statistics};
use super::{PeerContent, PeerRun};
use crate::measure::record::Outcome;

const TOOL: &str = "inference-perf";
/// Figures of a report, with the path within `successes` and the unit.
const FIGURES: [(&str, &str, UnitScale); 8] = [
    ("TTFT", "/latency/time_to_first_token", UnitScale::SECONDS),
    ("ITL", "/latency/inter_token_latency", UnitScale::SECONDS),
    ("TPOT", "/latency/time_per_output_token", UnitScale::SECONDS),
    ("E2E per token", "/latency/normalized_time_per_output_token", UnitScale::SECONDS),
    ("E2E", "/latency/request_latency", UnitScale::SECONDS),
    ("ISL", "/prompt_tokens", UnitScale::Tokens),
    ("ISL", "/prompt_len", UnitScale::Tokens),
    ("OSL", "/output_len", UnitScale::Tokens),
];
const TOTALS: [(&str, &str); 8] = [
    ("successes", "/successes/count"),
    ("failures", "/failures/count"),
    ("duration in s", "/benchmark_time_seconds"),
    ("requested rate", "/load_summary/requested_rate"),
    ("achieved rate", "/load_summary/achieved_rate"),
    ("requests per second", "/successes/throughput/requests_per_sec"),
    ("output tokens per second", "/successes/throughput/output_tokens_per_sec"),
    ("total tokens per second", "/successes/throughput/total_tokens_per_sec"),
];

#[derive(Deserialize)]
struct LifecycleRequest {
    start_time: f64,
    end_time: f64,
    info: Option<LifecycleInfo>,
    error: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LifecycleInfo {
    input_tokens: Option<u64>,
    response_metrics: Option<ResponseMetrics>,
    /// Older versions have these here.
    #[serde(flatten)]
    response: ResponseMetrics,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseMetrics {
    output_tokens: Option<u64>,
    server_usage: Option<ServerUsage>,
    chunk_times: Option<Vec<f64>>,
    output_token_times: Option<Vec<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServerUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

/// Reads the requests.
pub(super) fn read(input: &PeerInput) -> Result<PeerContent, PeerFileError> {
    let entries: Vec<LifecycleRequest> = input.document()?;
    let zero = entries.iter().map(|entry| entry.start_time).fold(f64::INFINITY, f64::min);
    let wrong = |number| {
        let problem = "its times are not in order";
        input.error(FilePlace::Request(number), problem, "run inference-perf again, or remove the request")
    };
    let requests: Vec<PeerRequest> = entries
        .into_iter()
        .zip(1..)
        .map(|(entry, number)| entry.request(zero).ok_or_else(|| wrong(number)))
        .collect::<Result<_, _>>()?;
    Ok(PeerContent::Run(PeerRun {
        format: PeerFormat::InferencePerfRecords,
        facts: PeerFacts { tool: TOOL.to_owned(), ..PeerFacts::default() },
        in_flight: InFlightCounter::new(requests.iter().map(|row| (row.at, row.ended.map(|ended| row.at + ended)))),
        requests: Box::new(requests.into_iter().map(Ok)),
    }))
}

impl LifecycleRequest {
    /// `None` if its times are not in order.
    fn request(self, zero: f64) -> Option<PeerRequest> {
        let info = self.info.unwrap_or_default();
        let response = info.response_metrics.unwrap_or(info.response);
        let usage = response.server_usage.unwrap_or_default();
        let some = |times: Option<Vec<f64>>| times.filter(|times| !times.is_empty());
        let (times, tokens_each) = match some(response.chunk_times) {
            Some(chunks) => (chunks, None),
            None => (some(response.output_token_times).unwrap_or_default(), Some(1)),
        };
        let first = times.first().map(|first| nanos(first - self.start_time).ok_or(())).transpose();
        Some(PeerRequest {
            at: nanos(self.start_time - zero)?,
            first: first.ok()?,
            ended: Some(nanos(self.end_time - self.start_time)?),
            events: gaps(&times, tokens_each)?,
            streamed: !times.is_empty(),
            tokens: count(usage.completion_tokens, response.output_tokens),
            input: count(usage.prompt_tokens, info.input_tokens),
            cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
            outcome: Some(if self.error.is_some() { Outcome::Failed } else { Outcome::Success }),
            ..PeerRequest::default()
        })
    }
}

/// Reads the figures of a run or of a stage.
pub(super) fn read_summary(input: &PeerInput) -> Result<PeerContent, PeerFileError> {
    let document: Map<String, Value> = input.document()?;
    let document = Value::Object(document);
    let figure = |(name, path, scale): &(&str, &str, UnitScale)| {
        let statistics = statistics(document["successes"].pointer(path)?, *scale);
        (!statistics.is_empty()).then(|| PeerFigure { name: (*name).to_owned(), unit: scale.name(), statistics })
    };
    let total = |(name, path): &(&str, &str)| Some(((*name).to_owned(), document.pointer(path)?.as_f64()?));
    let slots = document.pointer("/load_summary/concurrency").and_then(Value::as_u64);
    Ok(PeerContent::Summary(PeerSummary {
        format: PeerFormat::InferencePerfSummary,
        path: input.path.display().to_string(),
        facts: PeerFacts {
            tool: TOOL.to_owned(),
            concurrency: slots.and_then(|slots| slots.try_into().ok()),
            ..PeerFacts::default()
        },
        totals: TOTALS.iter().filter_map(total).collect(),
        figures: FIGURES.iter().filter_map(figure).collect(),
        remedy: "name per_request_lifecycle_metrics.json (`report.request_lifecycle.per_request: true`)".to_owned(),
    }))
}

//! `benchmarks.json` of GuideLLM, version 2 of its schema: one benchmark per load, each with its requests.
//!
//! A request has the times of its first and last token and the number of chunks, but no gaps. So there is no ITL, and
//! TPOT is exact. Times are of the wall clock. `targeted_start` is the planned time where a rate or a trace decides it.
//! A request that the end of the benchmark cut off is cancelled.

use serde::Deserialize;
use serde_json::Value;

use super::detect::PeerFormat;
use super::error::{FilePlace, PeerFileError};
use super::facts::{PeerFacts, dialect};
use super::in_flight::InFlightCounter;
use super::input::PeerInput;
use super::request::{PeerRequest, count, nanos};
use super::summary::{PeerFigure, PeerSummary, UnitScale, statistics};
use super::{PeerContent, PeerRun};
use crate::measure::record::{CountSource, Outcome, TokenCount};

const REMEDY: &str = "run GuideLLM again with a clock that is not set back";
/// Strategies whose plan decides when requests are sent.
const OPEN_LOOP: [&str; 5] = ["constant", "poisson", "async", "trace", "replay"];
/// Figures of a report, with GuideLLM's name and unit.
const FIGURES: [(&str, &str, UnitScale); 7] = [
    ("TTFT", "time_to_first_token_ms", UnitScale::MILLIS),
    ("TTFO", "time_to_first_output_token_ms", UnitScale::MILLIS),
    ("TPOT", "time_per_output_token_ms", UnitScale::MILLIS),
    ("ITL per request", "inter_token_latency_ms", UnitScale::MILLIS),
    ("E2E", "request_latency", UnitScale::SECONDS),
    ("ISL", "prompt_token_count", UnitScale::Tokens),
    ("OSL", "output_token_count", UnitScale::Tokens),
];
const RATES: [(&str, &str); 3] = [
    ("requests per second", "requests_per_second"),
    ("output tokens per second", "output_tokens_per_second"),
    ("total tokens per second", "tokens_per_second"),
];

#[derive(Deserialize)]
struct GuidellmFile {
    #[serde(default)]
    metadata: FileMetadata,
    benchmarks: Vec<Benchmark>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FileMetadata {
    guidellm_version: String,
}

#[derive(Deserialize)]
struct Benchmark {
    #[serde(default)]
    config: Value,
    #[serde(default)]
    metrics: Value,
    #[serde(default)]
    requests: RequestLists,
    #[serde(default)]
    warmup_duration: f64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RequestLists {
    successful: Vec<GuidellmRequest>,
    incomplete: Vec<GuidellmRequest>,
    errored: Vec<GuidellmRequest>,
}

#[derive(Deserialize)]
struct GuidellmRequest {
    info: GuidellmRequestInfo,
    #[serde(default)]
    input_metrics: TokenMetrics,
    #[serde(default)]
    output_metrics: TokenMetrics,
}

#[derive(Deserialize)]
struct GuidellmRequestInfo {
    timings: Timings,
    conversation_id: Option<String>,
    turn_index: Option<u32>,
}

#[derive(Deserialize)]
struct Timings {
    targeted_start: Option<f64>,
    resolve_start: Option<f64>,
    request_start: Option<f64>,
    first_token_iteration: Option<f64>,
    first_output_token_iteration: Option<f64>,
    last_token_iteration: Option<f64>,
    #[serde(default)]
    token_iterations: u64,
    request_end: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenMetrics {
    text_tokens: Option<u64>,
    total_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

/// Reads benchmark `number`, from 1; with one benchmark in the file the number may be absent.
pub(super) fn read(input: &PeerInput, number: Option<usize>) -> Result<PeerContent, PeerFileError> {
    let mut document: GuidellmFile = input.document()?;
    let has = document.benchmarks.len();
    let file = input.path.display().to_string();
    let index = match (number, has) {
        (Some(number), _) if (1..=has).contains(&number) => number - 1,
        (None, 1) => 0,
        (None, 2..) => {
            let remedy = format!("name one of them, {file}#1 to {file}#{has}");
            return Err(input.error(FilePlace::File, format!("it has {has} benchmarks of different loads"), &remedy));
        }
        (_, 0) => return Err(input.error(FilePlace::File, "it has no benchmark", "let GuideLLM finish")),
        (Some(_), _) => {
            let remedy = format!("name one of {file}#1 to {file}#{has}");
            return Err(input.error(FilePlace::File, format!("it has only {has} benchmarks"), &remedy));
        }
    };
    let benchmark = document.benchmarks.swap_remove(index);
    let mut facts = benchmark.facts(&document.metadata);
    let lists = &benchmark.requests;
    let listed = (lists.successful.len() + lists.incomplete.len() + lists.errored.len()) as u64;
    let made = benchmark.metrics.pointer("/request_totals/total").and_then(Value::as_u64);
    if listed == 0 {
        return Ok(PeerContent::Summary(benchmark.summary(&file, facts)));
    }
    if let Some(made) = made.filter(|made| *made > listed) {
        facts.truncated.push(format!("{file} lists {listed} of {made} requests, a sample"));
    }
    let has_plan = !facts.closed_loop;
    let requests = benchmark.requests.of_all(has_plan).map_err(|number| {
        let problem = "its start is missing, or a time is before it";
        input.error(FilePlace::Request(number), problem, REMEDY)
    })?;
    let zero = requests.iter().map(|request| request.at).min().unwrap_or(0);
    facts.started_unix_ns = Some(zero);
    let after_zero = |request: PeerRequest| PeerRequest {
        at: request.at - zero,
        planned: request.planned.map(|planned| planned.saturating_sub(zero)),
        ..request
    };
    let requests: Vec<PeerRequest> = requests.into_iter().map(after_zero).collect();
    Ok(PeerContent::Run(PeerRun {
        format: PeerFormat::Guidellm,
        facts,
        in_flight: InFlightCounter::new(requests.iter().map(|row| (row.at, row.ended.map(|ended| row.at + ended)))),
        requests: Box::new(requests.into_iter().map(Ok)),
    }))
}

impl RequestLists {
    /// Returns the requests with times since 1970, or the number of the first that has none.
    fn of_all(self, has_plan: bool) -> Result<Vec<PeerRequest>, u64> {
        let of = |list: Vec<GuidellmRequest>, outcome| list.into_iter().map(move |entry| (entry, outcome));
        let all = of(self.successful, Outcome::Success)
            .chain(of(self.incomplete, Outcome::Cancelled))
            .chain(of(self.errored, Outcome::Failed));
        all.zip(1..).map(|((entry, outcome), number)| entry.request(outcome, has_plan).ok_or(number)).collect()
    }
}

impl GuidellmRequest {
    /// `None` if the start is missing or a time is before it.
    fn request(self, outcome: Outcome, has_plan: bool) -> Option<PeerRequest> {
        let Timings { targeted_start, resolve_start, request_start, token_iterations, .. } = self.info.timings;
        let start = request_start.or(resolve_start)?;
        let after = |at: Option<f64>| at.map(|at| nanos(at - start).ok_or(())).transpose();
        let timings = &self.info.timings;
        let first = after(timings.first_token_iteration).ok()?;
        let planned = targeted_start.filter(|_| has_plan).map(|planned| nanos(planned).ok_or(())).transpose();
        let usage = self.output_metrics.total_tokens.or(self.output_metrics.text_tokens);
        // Without usage GuideLLM takes each chunk for a token.
        let chunks = (token_iterations > 0).then_some(token_iterations);
        let chunks = chunks.map(|tokens| TokenCount { tokens, source: CountSource::Chunks });
        Some(PeerRequest {
            at: nanos(start)?,
            planned: planned.ok()?,
            first,
            output: after(timings.first_output_token_iteration).ok()?,
            last: after(timings.last_token_iteration).ok()?,
            ended: after(timings.request_end).ok()?,
            lost_gaps: token_iterations.saturating_sub(1),
            streamed: first.is_some(),
            tokens: count(usage, None).or(chunks),
            input: count(self.input_metrics.total_tokens.or(self.input_metrics.text_tokens), None),
            cached: self.input_metrics.cached_tokens,
            outcome: Some(outcome),
            session: self.info.conversation_id.zip(self.info.turn_index),
            ..PeerRequest::default()
        })
    }
}

impl Benchmark {
    fn facts(&self, metadata: &FileMetadata) -> PeerFacts {
        let (strategy, backend) = (&self.config["strategy"], &self.config["backend"]);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = text(&strategy["type_"]);
        let is_open = kind.as_deref().is_some_and(|kind| OPEN_LOOP.contains(&kind));
        let slots = match kind.as_deref() {
            Some("synchronous") => Some(1),
            Some("concurrent") => strategy["streams"].as_u64().and_then(|slots| slots.try_into().ok()),
            _ => None,
        };
        let target = text(&backend["target"]);
        PeerFacts {
            tool: format!("GuideLLM {}", metadata.guidellm_version).trim_end().to_owned(),
            model: text(&backend["model"]),
            targets: target.into_iter().collect(),
            dialect: backend["request_format"].as_str().and_then(dialect),
            closed_loop: !is_open,
            warmed_up: self.warmup_duration > 0.0,
            arrivals: kind,
            rate: strategy["rate"].as_f64().filter(|_| is_open).map(|rate| format!("{rate}/s")),
            concurrency: slots,
            ..PeerFacts::default()
        }
    }

    fn summary(&self, file: &str, facts: PeerFacts) -> PeerSummary {
        let of = |name: &str| self.metrics.get(name)?.get("successful").filter(|of| of.is_object());
        let figure = |(name, key, scale): &(&str, &str, UnitScale)| {
            let statistics = statistics(of(key)?, *scale);
            (!statistics.is_empty()).then(|| PeerFigure { name: (*name).to_owned(), unit: scale.name(), statistics })
        };
        let counts = self.metrics.get("request_totals").and_then(Value::as_object).into_iter().flatten();
        let counts = counts.filter_map(|(name, count)| Some((format!("{name} requests"), count.as_f64()?)));
        let rates = RATES.iter().filter_map(|(name, key)| Some(((*name).to_owned(), of(key)?.get("mean")?.as_f64()?)));
        PeerSummary {
            format: PeerFormat::Guidellm,
            path: file.to_owned(),
            facts,
            totals: counts.chain(rates).collect(),
            figures: FIGURES.iter().filter_map(figure).collect(),
            remedy: "run GuideLLM without a sample size of 0".to_owned(),
        }
    }
}

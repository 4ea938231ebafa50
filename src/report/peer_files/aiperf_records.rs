//! `profile_export.jsonl` of AIPerf: one request per line, in the order of completion.
//!
//! `inter_chunk_latency` is every gap between chunks; how many tokens a chunk has is not recorded. Token counts are the
//! server's usage where the line has it, and AIPerf's own tokenizer's where not. `credit_issued_ns` is no planned time:
//! AIPerf stamps it once a slot is free. The file is read twice, first for starts and ends alone, so that memory does
//! not grow with the gaps.

use serde::Deserialize;

use super::detect::PeerFormat;
use super::error::PeerFileError;
use super::facts::PeerFacts;
use super::in_flight::InFlightCounter;
use super::input::{PeerInput, PeerLines};
use super::request::{PeerRequest, count};
use super::{PeerRequests, PeerRun};
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::measure::timeline::TokenEvent;

const REMEDY: &str = "run AIPerf again, or remove the line";

#[derive(Deserialize)]
struct SpanLine {
    metadata: SpanFields,
}

#[derive(Deserialize)]
struct SpanFields {
    request_start_ns: u64,
    request_end_ns: Option<u64>,
    benchmark_phase: Option<String>,
}

#[derive(Deserialize)]
struct RecordLine {
    metadata: RecordMetadata,
    #[serde(default)]
    metrics: Metrics,
    error: Option<ErrorDetails>,
}

#[derive(Deserialize)]
struct RecordMetadata {
    request_start_ns: u64,
    request_end_ns: Option<u64>,
    benchmark_phase: Option<String>,
    #[serde(default)]
    was_cancelled: bool,
    x_correlation_id: Option<String>,
    parent_correlation_id: Option<String>,
    turn_index: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metrics {
    time_to_first_token: Option<TimeMetric>,
    time_to_first_output_token: Option<TimeMetric>,
    inter_chunk_latency: Option<GapMetric>,
    output_sequence_length: Option<CountMetric>,
    input_sequence_length: Option<CountMetric>,
    usage_completion_tokens: Option<CountMetric>,
    usage_prompt_tokens: Option<CountMetric>,
    usage_prompt_cache_read_tokens: Option<CountMetric>,
    usage_reasoning_tokens: Option<CountMetric>,
}

#[derive(Deserialize)]
struct ErrorDetails {
    code: Option<u16>,
}

#[derive(Deserialize)]
struct TimeMetric {
    value: f64,
    unit: PeerTimeUnit,
}

#[derive(Deserialize)]
struct GapMetric {
    value: Vec<f64>,
    unit: PeerTimeUnit,
}

#[derive(Deserialize)]
struct CountMetric {
    value: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PeerTimeUnit {
    Ns,
    Us,
    Ms,
    Sec,
}

impl PeerTimeUnit {
    fn nanos(self, value: f64) -> Option<u64> {
        let nanos = match self {
            Self::Ns => value,
            Self::Us => value * 1e3,
            Self::Ms => value * 1e6,
            Self::Sec => value * 1e9,
        };
        (0.0..1.8e19).contains(&nanos).then(|| nanos.round() as u64)
    }
}

/// Reads the file's facts and prepares its requests.
pub(super) fn read(input: &PeerInput, mut facts: PeerFacts) -> Result<PeerRun, PeerFileError> {
    let mut spans = Vec::new();
    let mut lines = input.lines()?;
    while let Some(SpanLine { metadata }) = lines.next()? {
        facts.warmed_up |= is_warm_up(metadata.benchmark_phase.as_deref());
        spans.push((metadata.request_start_ns, metadata.request_end_ns));
    }
    let zero = spans.iter().map(|(start, _)| *start).min().unwrap_or(0);
    facts.started_unix_ns = Some(zero);
    if facts.tool.is_empty() {
        facts.tool = "AIPerf".to_owned();
    }
    let after_zero = |(start, end): (u64, Option<u64>)| (start - zero, end.map(|end| end.saturating_sub(zero)));
    let in_flight = InFlightCounter::new(spans.into_iter().map(after_zero));
    let requests: PeerRequests = Box::new(Records { lines: input.lines()?, zero });
    Ok(PeerRun { format: PeerFormat::AiperfRecords, facts, requests, in_flight })
}

fn is_warm_up(phase: Option<&str>) -> bool {
    phase == Some("warmup")
}

struct Records {
    lines: PeerLines,
    zero: u64,
}

impl Iterator for Records {
    type Item = Result<PeerRequest, PeerFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next::<RecordLine>().transpose()?;
        Some(line.and_then(|line| {
            line.request(self.zero).ok_or_else(|| self.lines.error("a time is negative or out of order", REMEDY))
        }))
    }
}

impl RecordLine {
    /// `None` if a time is none.
    fn request(self, zero: u64) -> Option<PeerRequest> {
        let Self { metadata, metrics, error } = self;
        let time =
            |metric: Option<TimeMetric>| metric.map(|metric| metric.unit.nanos(metric.value).ok_or(())).transpose();
        let count_of = |metric: Option<CountMetric>| metric.map(|metric| metric.value);
        let gaps = metrics.inter_chunk_latency;
        let streamed = gaps.is_some() || metrics.time_to_first_token.is_some();
        let events = gaps.map_or(Some(Vec::new()), |gaps| {
            let event = |gap: &f64| Some(TokenEvent::new(Gap::from_nanos(gaps.unit.nanos(*gap)?), None));
            gaps.value.iter().map(event).collect()
        })?;
        let ended = metadata.request_end_ns.map(|end| end.checked_sub(metadata.request_start_ns).ok_or(()));
        // Of a cancellation the code is AIPerf's own, 499.
        let code = error.as_ref().filter(|_| !metadata.was_cancelled).and_then(|error| error.code);
        let code = code.filter(|code| (100..600).contains(code));
        Some(PeerRequest {
            at: metadata.request_start_ns.checked_sub(zero)?,
            first: time(metrics.time_to_first_token).ok()?,
            output: time(metrics.time_to_first_output_token).ok()?,
            ended: ended.transpose().ok()?,
            events,
            streamed,
            tokens: count(count_of(metrics.usage_completion_tokens), count_of(metrics.output_sequence_length)),
            reasoning: count_of(metrics.usage_reasoning_tokens),
            input: count(count_of(metrics.usage_prompt_tokens), count_of(metrics.input_sequence_length)),
            cached: count_of(metrics.usage_prompt_cache_read_tokens),
            outcome: Some(match (metadata.was_cancelled, &error, code) {
                (true, ..) => Outcome::Cancelled,
                (false, None, _) => Outcome::Success,
                (false, Some(_), Some(400..=499)) => Outcome::Refused,
                (false, Some(_), _) => Outcome::Failed,
            }),
            status: code,
            session: metadata.x_correlation_id.zip(metadata.turn_index),
            parent: metadata.parent_correlation_id,
            warm_up: is_warm_up(metadata.benchmark_phase.as_deref()),
            ..PeerRequest::default()
        })
    }
}

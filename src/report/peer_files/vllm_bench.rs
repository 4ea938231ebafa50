//! The JSON of `vllm bench serve`: figures, and with `--save-detailed` a list of values for each request.
//!
//! `itls` are gaps between chunks, whatever their tokens. A latency ends at the last chunk with a token: the end of the
//! response is not recorded. `output_lens` are the server's usage, or counts of vLLM's tokenizer where it sent none.
//! The file does not state which, so they are taken for the tokenizer's. The clock counts from an unknown moment. A
//! planned time exists only for a finite request rate: the send time less `queue_times`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::detect::PeerFormat;
use super::error::{FilePlace, PeerFileError};
use super::facts::{PeerFacts, dialect};
use super::in_flight::InFlightCounter;
use super::input::PeerInput;
use super::request::{PeerRequest, count, nanos};
use super::summary::{PeerFigure, PeerSummary, rank};
use super::vllm_columns::{ErrorFlag, GapColumn};
use super::{PeerContent, PeerRun};
use crate::measure::record::Outcome;

const REMEDY: &str = "write the file again with `vllm bench serve --save-result --save-detailed`";
/// Latencies saturate here, so that a moment of the run is a number of 64 bits.
const MAX_LATENCY_NS: u64 = 9_000_000_000_000_000_000;
/// Maximum number of single figures.
const MAX_FIGURES: usize = 1_000;
const TOTALS: [(&str, &str); 8] = [
    ("requests", "num_prompts"),
    ("successes", "completed"),
    ("failures", "failed"),
    ("duration in s", "duration"),
    ("requests per second", "request_throughput"),
    ("goodput", "request_goodput"),
    ("output tokens per second", "output_throughput"),
    ("total tokens per second", "total_token_throughput"),
];
/// Figures of a report, with vLLM's names.
const FIGURES: [(&str, &str); 6] = [
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("E2E", "e2el"),
    ("client queue", "client_queue_time"),
    ("E2E and client queue", "e2el_including_client_queue"),
];

/// The file: a column per value of requests, and single values by name.
#[derive(Default)]
struct VllmBenchFile {
    values: BTreeMap<String, Value>,
    input_lens: Vec<u64>,
    output_lens: Vec<u64>,
    ttfts: Vec<f64>,
    itls: GapColumn,
    latencies: Vec<f64>,
    start_times: Vec<f64>,
    queue_times: Vec<f64>,
    errors: Vec<ErrorFlag>,
}

impl<'de> Deserialize<'de> for VllmBenchFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VllmBenchVisitor;

        impl<'de> Visitor<'de> for VllmBenchVisitor {
            type Value = VllmBenchFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VllmBenchFile, A::Error> {
                let mut document = VllmBenchFile::default();
                while let Some(key) = map.next_key::<String>()? {
                    match &*key {
                        "input_lens" => document.input_lens = map.next_value()?,
                        "output_lens" => document.output_lens = map.next_value()?,
                        "ttfts" => document.ttfts = map.next_value()?,
                        "itls" => document.itls = map.next_value()?,
                        "latencies" => document.latencies = map.next_value()?,
                        "start_times" => document.start_times = map.next_value()?,
                        "queue_times" => document.queue_times = map.next_value()?,
                        "errors" => document.errors = map.next_value()?,
                        _ if is_single_value(&key) => {
                            if document.values.len() >= MAX_FIGURES {
                                return Err(A::Error::custom("too many figures"));
                            }
                            let value = map.next_value()?;
                            document.values.insert(key, value);
                        }
                        // Among them the generated texts.
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(document)
            }
        }
        deserializer.deserialize_map(VllmBenchVisitor)
    }
}

fn is_single_value(key: &str) -> bool {
    const FACTS: [&str; 6] = ["model_id", "endpoint_type", "backend", "request_rate", "burstiness", "max_concurrency"];
    key.ends_with("_ms") || FACTS.contains(&key) || TOTALS.iter().any(|(_, name)| *name == key)
}

/// Reads the requests, or the figures of a file without them.
pub(super) fn read(input: &PeerInput) -> Result<PeerContent, PeerFileError> {
    let document: VllmBenchFile = input.document()?;
    if document.ttfts.is_empty() || document.start_times.is_empty() {
        return Ok(PeerContent::Summary(document.summary(input)));
    }
    let requests = document.ttfts.len();
    let lengths = [
        ("itls", document.itls.len()),
        ("start_times", document.start_times.len()),
        ("input_lens", document.input_lens.len()),
        ("output_lens", document.output_lens.len()),
        ("errors", document.errors.len()),
    ];
    let optional = [("latencies", document.latencies.len()), ("queue_times", document.queue_times.len())];
    let wrong = lengths.into_iter().chain(optional.into_iter().filter(|(_, length)| *length > 0));
    if let Some((name, length)) = wrong.into_iter().find(|(_, length)| *length != requests) {
        let problem = format!("`ttfts` has {requests} values and `{name}` has {length}");
        return Err(input.error(FilePlace::File, problem, REMEDY));
    }
    let (facts, has_plan) = (document.facts(), document.values.get("request_rate").is_some_and(Value::is_number));
    let zero = document.start_times.iter().copied().fold(f64::INFINITY, f64::min);
    let place = input.clone();
    let wrong = move |number: usize| {
        let at = FilePlace::Request(number as u64 + 1);
        place.error(at, "a time is negative or too large", REMEDY)
    };
    let spans = (0..requests).map(|number| document.span(number, zero).ok_or_else(|| wrong(number)));
    let spans = spans.collect::<Result<Vec<_>, _>>()?;
    let in_flight = InFlightCounter::new(spans.into_iter().map(|(at, took)| (at, took.map(|took| at + took))));
    let row = move |number| document.request(number, zero, has_plan).ok_or_else(|| wrong(number));
    Ok(PeerContent::Run(PeerRun {
        format: PeerFormat::VllmBench,
        facts,
        in_flight,
        requests: Box::new((0..requests).map(row)),
    }))
}

impl VllmBenchFile {
    /// Time of sending, and time to the last token or to the end that the file states. `None` if a time is none.
    fn span(&self, number: usize, zero: f64) -> Option<(u64, Option<u64>)> {
        let at = nanos(self.start_times[number] - zero)?;
        let latency = self.latencies.get(number).map(|latency| nanos(*latency).ok_or(())).transpose().ok()?;
        // A failure has a latency of 0, and older files have none.
        let latency = latency.filter(|latency| *latency > 0);
        let gaps = || self.itls.of(number).iter().map(|event| event.gap().as_nanos());
        let to_last = self.first(number)?.map(|first| gaps().fold(first, u64::saturating_add));
        Some((at, latency.or(to_last).map(|took| took.min(MAX_LATENCY_NS))))
    }

    /// Time to the first token; vLLM writes 0 where no token came.
    fn first(&self, number: usize) -> Option<Option<u64>> {
        Some(Some(nanos(self.ttfts[number])?).filter(|first| *first > 0))
    }

    /// `None` if a time is none.
    fn request(&self, number: usize, zero: f64, has_plan: bool) -> Option<PeerRequest> {
        let (at, ended) = self.span(number, zero)?;
        let (first, failed) = (self.first(number)?, self.errors[number].0);
        let planned = match self.queue_times.get(number).filter(|_| has_plan) {
            Some(queued) => Some(at.saturating_sub(nanos(*queued)?)),
            None => None,
        };
        Some(PeerRequest {
            at,
            planned,
            first,
            ended,
            events: self.itls.of(number).to_vec(),
            streamed: first.is_some(),
            tokens: count(None, Some(self.output_lens[number])).filter(|_| !failed),
            input: count(None, Some(self.input_lens[number])),
            outcome: Some(if failed { Outcome::Failed } else { Outcome::Success }),
            ..PeerRequest::default()
        })
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key)?.as_str()
    }

    fn facts(&self) -> PeerFacts {
        let rate = self.values.get("request_rate");
        let slots = self.values.get("max_concurrency").and_then(Value::as_u64).and_then(|slots| slots.try_into().ok());
        let is_unlimited = rate.is_some_and(Value::is_string);
        let arrivals = match self.values.get("burstiness").and_then(Value::as_f64) {
            _ if is_unlimited && slots.is_some() => Some("closed loop".to_owned()),
            _ if is_unlimited => Some("all at once".to_owned()),
            Some(1.0) => Some("poisson".to_owned()),
            Some(burstiness) => Some(format!("gamma:{burstiness}")),
            None => None,
        };
        PeerFacts {
            tool: "vllm bench serve".to_owned(),
            model: self.text("model_id").map(str::to_owned),
            dialect: self.text("endpoint_type").or(self.text("backend")).and_then(dialect),
            closed_loop: is_unlimited && slots.is_some(),
            arrivals,
            rate: rate.and_then(Value::as_f64).map(|rate| format!("{rate}/s")),
            concurrency: slots,
            ..PeerFacts::default()
        }
    }

    fn summary(&self, input: &PeerInput) -> PeerSummary {
        let number = |key: &str| self.values.get(key)?.as_f64();
        let figure = |(name, key): &(&str, &str)| {
            let suffix = format!("_{key}_ms");
            let mut statistics: Vec<(String, f64)> = Vec::new();
            for (stat, value) in &self.values {
                let Some((stat, value)) = stat.strip_suffix(&suffix).zip(value.as_f64()) else { continue };
                let name = match stat {
                    "mean" => "avg",
                    "median" => "p50",
                    other => other,
                };
                if rank(name).is_some() && !statistics.iter().any(|(known, _)| known == name) {
                    statistics.push((name.to_owned(), value));
                }
            }
            statistics.sort_by_key(|(name, _)| rank(name));
            (!statistics.is_empty()).then(|| PeerFigure { name: (*name).to_owned(), unit: "ms", statistics })
        };
        let remedy = if self.ttfts.is_empty() {
            "write the requests too, with `vllm bench serve --save-result --save-detailed`"
        } else {
            "write the file with a newer vLLM, whose `--save-detailed` has `start_times`"
        };
        PeerSummary {
            format: PeerFormat::VllmBench,
            path: input.path.display().to_string(),
            facts: self.facts(),
            totals: TOTALS.iter().filter_map(|(name, key)| Some(((*name).to_owned(), number(key)?))).collect(),
            figures: FIGURES.iter().filter_map(figure).collect(),
            remedy: remedy.to_owned(),
        }
    }
}

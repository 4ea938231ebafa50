//! `profile_export_aiperf.json` of AIPerf: figures of the whole run, and its configuration.

use serde_json::{Map, Value};

use super::PeerContent;
use super::detect::PeerFormat;
use super::error::PeerFileError;
use super::facts::{PeerFacts, dialect};
use super::input::PeerInput;
use super::summary::{PeerFigure, PeerSummary, UnitScale, statistics};

/// Figures of a report, with AIPerf's tag.
const DISTRIBUTIONS: [(&str, &str); 8] = [
    ("TTFT", "time_to_first_token"),
    ("TTFO", "time_to_first_output_token"),
    ("second token", "time_to_second_token"),
    ("ITL per request", "inter_token_latency"),
    ("gap", "inter_chunk_latency"),
    ("E2E", "request_latency"),
    ("ISL", "input_sequence_length"),
    ("OSL", "output_sequence_length"),
];
const TOTALS: [(&str, &str); 7] = [
    ("requests", "request_count"),
    ("errors", "error_request_count"),
    ("duration in s", "benchmark_duration"),
    ("requests per second", "request_throughput"),
    ("output tokens per second", "output_token_throughput"),
    ("total tokens per second", "total_token_throughput"),
    ("goodput", "goodput"),
];

/// Reads the figures.
pub(super) fn read(input: &PeerInput) -> Result<PeerContent, PeerFileError> {
    let document: Map<String, Value> = input.document()?;
    let mut figures = Vec::new();
    for (name, tag) in DISTRIBUTIONS {
        let Some(metric) = document.get(tag) else { continue };
        let scale = UnitScale::of(metric["unit"].as_str().unwrap_or_default());
        figures.push(PeerFigure { name: name.to_owned(), unit: scale.name(), statistics: statistics(metric, scale) });
    }
    let totals =
        TOTALS.iter().filter_map(|(name, tag)| Some(((*name).to_owned(), document.get(*tag)?["avg"].as_f64()?)));
    Ok(PeerContent::Summary(PeerSummary {
        format: PeerFormat::AiperfSummary,
        path: input.path.display().to_string(),
        facts: facts(&document),
        totals: totals.collect(),
        figures,
        remedy: "name profile_export.jsonl of the same folder (`--export-level records`)".to_owned(),
    }))
}

/// Reads the configuration of a run, for its records.
pub(super) fn read_facts(input: &PeerInput) -> Result<PeerFacts, PeerFileError> {
    Ok(facts(&input.document()?))
}

fn facts(document: &Map<String, Value>) -> PeerFacts {
    let at = |pointer: &str| {
        let (key, rest) = pointer[1..].split_once('/').unwrap_or((&pointer[1..], ""));
        let value = document.get(key)?;
        if rest.is_empty() { Some(value) } else { value.pointer(&format!("/{rest}")) }
    };
    let text = |pointer: &str| at(pointer).and_then(Value::as_str).map(str::to_owned);
    let urls = at("/input_config/endpoint/urls").and_then(Value::as_array);
    let phases = at("/input_config/phases").and_then(Value::as_array);
    let phase = phases.and_then(|phases| phases.iter().find(|phase| phase["kind"] == "profiling"));
    let kind = phase.and_then(|phase| phase["type"].as_str());
    let rate = phase.and_then(|phase| phase["rate"].as_f64().or_else(|| phase["request_rate"].as_f64()));
    let length = |which: &str| {
        let of = at(&format!("/input_config/datasets/0/prompts/{which}"))?;
        match (of["mean"].as_f64()?, of["stddev"].as_f64()) {
            (mean, None | Some(0.0)) => Some(format!("fixed:{mean}")),
            (mean, Some(deviation)) => Some(format!("normal:{mean}:{deviation}")),
        }
    };
    PeerFacts {
        tool: format!("AIPerf {}", text("/aiperf_version").unwrap_or_default()).trim_end().to_owned(),
        model: text("/input_config/models/items/0/name"),
        targets: urls.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        dialect: text("/input_config/endpoint/type").and_then(|endpoint| dialect(&endpoint)),
        closed_loop: kind == Some("concurrency"),
        arrivals: kind.map(|kind| if kind == "concurrency" { "closed loop" } else { kind }.to_owned()),
        rate: rate.map(|rate| format!("{rate}/s")),
        concurrency: phase.and_then(|phase| phase["concurrency"].as_u64()).and_then(|slots| slots.try_into().ok()),
        isl: length("isl"),
        osl: length("osl"),
        seed: at("/run_info/random_seed").and_then(Value::as_u64),
        ..PeerFacts::default()
    }
}

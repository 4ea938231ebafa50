//! A line of the file that `sglang.bench_serving --output-file` appends for each run: figures alone.
//!
//! Also with `--output-details` the file has no times of sending, so its requests have no place in time. Neither a rate
//! over time nor requests in flight can be computed. The figures are shown as they stand. `FILE#2` is the second run of
//! a file. An unlimited rate is written as `Infinity`, which is no JSON, and is read as absent.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::PeerContent;
use super::detect::PeerFormat;
use super::error::{FilePlace, PeerFileError};
use super::facts::{PeerFacts, dialect};
use super::input::PeerInput;
use super::summary::{PeerFigure, PeerSummary, rank};

const REMEDY: &str =
    "the tool records no times of sending; send the load with `streamgauge load` for figures of requests";
const TOTALS: [(&str, &str); 8] = [
    ("successes", "completed"),
    ("duration in s", "duration"),
    ("requests per second", "request_throughput"),
    ("input tokens per second", "input_throughput"),
    ("output tokens per second", "output_throughput"),
    ("total tokens per second", "total_throughput"),
    ("concurrency", "concurrency"),
    ("goodput", "request_goodput"),
];
/// Figures of a report, with SGLang's names.
const FIGURES: [(&str, &str); 4] = [("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e_latency")];
const FACTS: [&str; 3] = ["backend", "request_rate", "max_concurrency"];

/// Single values of a run, by name. The texts of the responses are skipped.
#[derive(Default)]
struct RunValues(BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for RunValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RunValuesVisitor;

        impl<'de> Visitor<'de> for RunValuesVisitor {
            type Value = RunValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RunValues, A::Error> {
                let mut values = RunValues::default();
                while let Some(key) = map.next_key::<String>()? {
                    if is_wanted(&key) {
                        values.0.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(values)
            }
        }
        deserializer.deserialize_map(RunValuesVisitor)
    }
}

fn is_wanted(key: &str) -> bool {
    FACTS.contains(&key) || TOTALS.iter().any(|(_, name)| *name == key) || statistic(key).is_some()
}

/// The figure and the statistic of a key such as `p99_ttft_ms`.
fn statistic(key: &str) -> Option<(&'static str, &'static str)> {
    let key = key.strip_suffix("_ms")?;
    let (figure, stat) =
        FIGURES.iter().find_map(|(name, of)| Some((*name, key.strip_suffix(of)?.strip_suffix('_')?)))?;
    let stat = match stat {
        "mean" => "avg",
        "median" => "p50",
        "std" => "std",
        "p90" => "p90",
        "p95" => "p95",
        "p99" => "p99",
        _ => return None,
    };
    Some((figure, stat))
}

/// Reads the figures of one run of the file, from 1.
pub(super) fn read(input: &PeerInput, number: Option<usize>) -> Result<PeerContent, PeerFileError> {
    let (number, mut lines, mut found) = (number.unwrap_or(1), input.lines()?, 0);
    while let Some(RunValues(values)) = lines.next_of_python()? {
        found += 1;
        if found == number {
            return Ok(PeerContent::Summary(summary(&values, input)));
        }
    }
    let problem = format!("it has {found} runs, and none of number {number}");
    Err(input.error(FilePlace::File, problem, "name one that it has, as in FILE#1"))
}

fn summary(values: &BTreeMap<String, Value>, input: &PeerInput) -> PeerSummary {
    let number = |key: &str| values.get(key)?.as_f64();
    let slots = values.get("max_concurrency").and_then(Value::as_u64).and_then(|slots| slots.try_into().ok());
    let rate = number("request_rate");
    let figure = |(name, _): &(&'static str, &str)| {
        let of_figure = values.iter().filter_map(|(key, value)| {
            let (figure, stat) = statistic(key)?;
            (figure == *name).then_some((stat.to_owned(), value.as_f64()?))
        });
        let mut statistics: Vec<(String, f64)> = of_figure.collect();
        statistics.sort_by_key(|(stat, _)| rank(stat));
        (!statistics.is_empty()).then(|| PeerFigure { name: (*name).to_owned(), unit: "ms", statistics })
    };
    PeerSummary {
        format: PeerFormat::SglangBench,
        path: input.path.display().to_string(),
        facts: PeerFacts {
            tool: "sglang.bench_serving".to_owned(),
            dialect: values.get("backend").and_then(Value::as_str).and_then(dialect),
            closed_loop: rate.is_none() && slots.is_some(),
            rate: rate.map(|rate| format!("{rate}/s")),
            concurrency: slots,
            ..PeerFacts::default()
        },
        totals: TOTALS.iter().filter_map(|(name, key)| Some(((*name).to_owned(), number(key)?))).collect(),
        figures: FIGURES.iter().filter_map(figure).collect(),
        remedy: REMEDY.to_owned(),
    }
}

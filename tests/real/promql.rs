//! Asking a backend that speaks PromQL, and reading its answers as the same tables that a scrape is read into.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::http_client::{get, json};
use super::support::metrics_parser::{Labels, Series, Table};

/// Where the zero bucket begins that VictoriaMetrics makes of ours.
const MIN_BUCKET_BOUND: f64 = 1e-9;

/// A backend's query API.
pub(crate) struct PromQl {
    pub(crate) addr: SocketAddr,
    /// The suffix of every query.
    pub(crate) more: &'static str,
}

/// One series of an instant query's result.
pub(crate) struct Sample {
    pub(crate) name: String,
    /// Without the labels of its origin.
    pub(crate) labels: Labels,
    pub(crate) value: Sampled,
}

/// A series' value at one moment.
pub(crate) enum Sampled {
    Number(f64),
    Native(Series),
}

impl PromQl {
    /// The `data` of an answer of the API.
    pub(crate) fn api(&self, path: &str, query: &str) -> Value {
        let more = self.more;
        let response = get(self.addr, &format!("/api/v1/{path}?query={}{more}", encoded(query)));
        let mut answer = json(&response);
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"].take()
    }

    /// An instant query's series, now.
    pub(crate) fn query(&self, query: &str) -> Vec<Sample> {
        let data = self.api("query", query);
        assert_eq!(data["resultType"], "vector", "{query}");
        data["result"].as_array().unwrap().iter().map(sample).collect()
    }

    /// The one number that a query has for an answer; none if it has no series.
    pub(crate) fn number(&self, query: &str) -> Option<f64> {
        let mut samples = self.query(query);
        assert!(samples.len() < 2, "{query} has {} series", samples.len());
        match samples.pop()?.value {
            Sampled::Number(number) => Some(number),
            Sampled::Native(_) => panic!("{query} is no number"),
        }
    }
}

/// The sum over labels, as a query.
pub(crate) fn summed(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    format!("sum({name}{{{}}})", labels.join(","))
}

/// Puts plain numbers together to the families that a scrape has; those that are histograms are so in `like`. Buckets
/// are classic ones, or VictoriaMetrics' own, which are native ones by another name.
pub(crate) fn table(samples: &[Sample], like: &Table) -> Table {
    let is_histogram =
        |family: &str| like.iter().any(|((name, _), series)| name == family && !series.buckets.is_empty());
    let mut table = Table::new();
    for Sample { name, labels, value } in samples {
        let Sampled::Number(value) = value else { continue };
        let suffixes = ["_bucket", "_count", "_sum"];
        let part = suffixes.iter().find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)));
        let Some((family, suffix)) = part.filter(|(family, _)| is_histogram(family)) else {
            table.entry((name.clone(), labels.clone())).or_default().value = *value;
            continue;
        };
        let mut labels = labels.clone();
        let (bound, range) = (labels.remove("le"), labels.remove("vmrange"));
        let series = table.entry((family.to_owned(), labels)).or_default();
        match (suffix, bound, range) {
            (_, Some(bound), _) => {
                let bound: f64 = bound.parse().unwrap();
                series.buckets.insert(bound.to_bits(), *value as u64);
            }
            (_, _, Some(range)) => {
                let native = series.native.get_or_insert_default();
                let (below, above) = range.split_once("...").unwrap();
                if below.parse::<f64>().unwrap() <= MIN_BUCKET_BOUND {
                    native.0 = *value as u64;
                } else {
                    native.1.insert(index_below(above.parse().unwrap()), *value as u64);
                }
            }
            ("_count", ..) => series.count = *value as u64,
            _ => series.value = *value,
        }
    }
    table
}

/// The bucket that ends there: bucket i of OpenTelemetry ends at 2^((i + 1) / 8) at our scale of 3.
fn index_below(bound: f64) -> i32 {
    (bound.log2() * 8.0).round() as i32 - 1
}

/// The native histograms among samples.
pub(crate) fn native(samples: &[Sample]) -> Table {
    let native = |sample: &Sample| match &sample.value {
        Sampled::Native(series) => Some(((sample.name.clone(), sample.labels.clone()), series.clone())),
        Sampled::Number(_) => None,
    };
    samples.iter().filter_map(native).collect()
}

fn sample(result: &Value) -> Sample {
    let mut labels: Labels = serde_json::from_value(result["metric"].clone()).unwrap();
    let name = labels.remove("__name__").unwrap_or_default();
    let resource = ["job", "instance", "host_", "os_", "process_", "service_", "telemetry_sdk_", "scope_"];
    labels.retain(|label, _| !resource.iter().any(|prefix| label.starts_with(prefix)));
    let value = match &result["histogram"] {
        Value::Null => Sampled::Number(real(&result["value"][1])),
        histogram => Sampled::Native(native_series(&histogram[1])),
    };
    Sample { name, labels, value }
}

fn native_series(histogram: &Value) -> Series {
    let (mut zero, mut buckets) = (0, BTreeMap::new());
    for bucket in histogram["buckets"].as_array().into_iter().flatten() {
        let (below, above, count) = (real(&bucket[1]), real(&bucket[2]), real(&bucket[3]) as u64);
        if below < 0.0 {
            zero = count;
        } else {
            buckets.insert(index_below(above), count);
        }
    }
    let (value, count) = (real(&histogram["sum"]), real(&histogram["count"]) as u64);
    Series { value, count, native: Some((zero, buckets)), ..Series::default() }
}

fn real(text: &Value) -> f64 {
    text.as_str().unwrap().parse().unwrap()
}

pub(crate) fn encoded(text: &str) -> String {
    let byte = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") };
    text.bytes().map(byte).collect()
}

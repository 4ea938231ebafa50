//! Readers of every format that share no code with the writers. All of them return the same [`Table`].

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, metric, number_data_point};
use prost::Message;

/// `io.prometheus.client`, with the fields that are read here: the numbers are those of
/// <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>.
mod client_model {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct MetricFamily {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(message, repeated, tag = "4")]
        pub(super) metric: Vec<Metric>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub(super) label: Vec<LabelPair>,
        #[prost(message, optional, tag = "2")]
        pub(super) gauge: Option<Number>,
        #[prost(message, optional, tag = "3")]
        pub(super) counter: Option<Number>,
        #[prost(message, optional, tag = "7")]
        pub(super) histogram: Option<Histogram>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct LabelPair {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) value: String,
    }

    /// `Gauge` and `Counter`, whose values have one number.
    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Number {
        #[prost(double, tag = "1")]
        pub(super) value: f64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Histogram {
        #[prost(uint64, tag = "1")]
        pub(super) sample_count: u64,
        #[prost(double, tag = "2")]
        pub(super) sample_sum: f64,
        #[prost(message, repeated, tag = "3")]
        pub(super) bucket: Vec<Bucket>,
        #[prost(sint32, tag = "5")]
        pub(super) schema: i32,
        #[prost(uint64, tag = "7")]
        pub(super) zero_count: u64,
        #[prost(message, repeated, tag = "12")]
        pub(super) positive_span: Vec<BucketSpan>,
        #[prost(sint64, repeated, tag = "13")]
        pub(super) positive_delta: Vec<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Bucket {
        #[prost(uint64, tag = "1")]
        pub(super) cumulative_count: u64,
        #[prost(double, tag = "2")]
        pub(super) upper_bound: f64,
        #[prost(message, optional, tag = "3")]
        pub(super) exemplar: Option<Exemplar>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct BucketSpan {
        #[prost(sint32, tag = "1")]
        pub(super) offset: i32,
        #[prost(uint32, tag = "2")]
        pub(super) length: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Exemplar {
        #[prost(message, repeated, tag = "1")]
        pub(super) label: Vec<LabelPair>,
        #[prost(double, tag = "2")]
        pub(super) value: f64,
    }
}

/// Labels of a series, without `le`.
pub(crate) type Labels = BTreeMap<String, String>;

/// A series.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// A counter's or a gauge's value, or a histogram's sum.
    pub(crate) value: f64,
    /// A histogram's count.
    pub(crate) count: u64,
    /// Its cumulative buckets, by the bits of their bounds.
    pub(crate) buckets: BTreeMap<u64, u64>,
    /// Its native buckets, by the index of OpenTelemetry, and its zero bucket.
    pub(crate) native: Option<(u64, BTreeMap<i32, u64>)>,
    /// Trace ids of its exemplars, by the bits of their buckets' bounds.
    pub(crate) exemplars: BTreeMap<u64, String>,
}

/// All series by their family's name (with `_total`) and labels.
pub(crate) type Table = BTreeMap<(String, Labels), Series>;

/// Reads a text format.
pub(crate) fn text(text: &str) -> Table {
    let mut kinds = BTreeMap::new();
    let mut table = Table::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kinds.insert(name.to_owned(), kind.to_owned());
        }
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (name, mut labels, rest) = sample(line);
        let (value, exemplar) = match rest.split_once(" # ") {
            Some((value, exemplar)) => (value, Some(exemplar)),
            None => (rest, None),
        };
        let value: f64 = value.trim().parse().unwrap();
        let suffixes = ["_bucket", "_count", "_sum", "_created"];
        let split = suffixes.iter().find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)));
        let of_histogram = split.filter(|(base, _)| kinds.get(*base).is_some_and(|kind| kind == "histogram"));
        match of_histogram {
            Some((base, suffix)) => {
                let bound = labels.remove("le").map(|bound| bound.parse::<f64>().unwrap().to_bits());
                let series = table.entry((base.to_owned(), labels)).or_default();
                match (suffix, bound) {
                    ("_bucket", Some(bound)) => {
                        series.buckets.insert(bound, value as u64);
                        if let Some(exemplar) = exemplar {
                            let (_, labels, _) = sample(exemplar);
                            series.exemplars.insert(bound, labels["trace_id"].clone());
                        }
                    }
                    ("_count", _) => series.count = value as u64,
                    ("_sum", _) => series.value = value,
                    _ => {}
                }
            }
            None if name.ends_with("_created") => {}
            None => table.entry((name, labels)).or_default().value = value,
        }
    }
    table
}

/// A name, its labels, and what follows.
fn sample(line: &str) -> (String, Labels, &str) {
    let end = line.find([' ', '{']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = rest.strip_prefix(',').unwrap_or(rest);
            let (label, quoted) = rest.split_once("=\"").unwrap();
            let mut value = String::new();
            let mut chars = quoted.char_indices();
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().unwrap().1 {
                        'n' => '\n',
                        other => other,
                    }),
                    (_, other) => value.push(other),
                }
            };
            labels.insert(label.to_owned(), value);
            rest = &quoted[end + 1..];
        }
    }
    (name.to_owned(), labels, rest)
}

/// Reads the protobuf format.
pub(crate) fn protobuf(mut bytes: &[u8]) -> Table {
    let mut table = Table::new();
    while !bytes.is_empty() {
        let family = client_model::MetricFamily::decode_length_delimited(&mut bytes).unwrap();
        for metric in family.metric {
            let labels = metric.label.into_iter().map(|label| (label.name, label.value)).collect();
            let value = metric.counter.map(|counter| counter.value).or(metric.gauge.map(|gauge| gauge.value));
            let mut series = Series { value: value.unwrap_or_default(), ..Series::default() };
            if let Some(histogram) = metric.histogram {
                series.value = histogram.sample_sum;
                series.count = histogram.sample_count;
                assert_eq!(histogram.schema, 3, "the indexes below are of eight buckets per octave");
                for bucket in histogram.bucket {
                    let bound = bucket.upper_bound.to_bits();
                    series.buckets.insert(bound, bucket.cumulative_count);
                    if let Some(exemplar) = bucket.exemplar {
                        let id = exemplar.label.into_iter().find(|label| label.name == "trace_id").unwrap();
                        series.exemplars.insert(bound, id.value);
                    }
                }
                let (mut native, mut index, mut count) = (BTreeMap::new(), 0, 0);
                let mut deltas = histogram.positive_delta.iter();
                for span in histogram.positive_span {
                    index += span.offset;
                    for _ in 0..span.length {
                        count += deltas.next().unwrap();
                        if count > 0 {
                            native.insert(index - 1, count as u64);
                        }
                        index += 1;
                    }
                }
                assert_eq!(deltas.next(), None);
                series.native = Some((histogram.zero_count, native));
            }
            table.insert((family.name.clone(), labels), series);
        }
    }
    table
}

/// Reads OTLP metrics, under the names that a Prometheus server would store them by.
pub(crate) fn otlp(metrics: &ResourceMetrics) -> Table {
    let mut table = Table::new();
    for metric in metrics.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
        let mut name = metric.name.replace('.', "_");
        match metric.unit.as_str() {
            "s" => name.push_str("_seconds"),
            "By" => name.push_str("_bytes"),
            "1" => name.push_str("_ratio"),
            annotation => assert!(annotation.is_empty() || annotation.starts_with('{')),
        }
        match metric.data.as_ref().unwrap() {
            metric::Data::Gauge(gauge) => numbers(&mut table, &name, &gauge.data_points),
            metric::Data::Sum(sum) => {
                let name = if sum.is_monotonic { format!("{name}_total") } else { name };
                numbers(&mut table, &name, &sum.data_points);
            }
            metric::Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                    let mut below = 0;
                    let bounds = point.explicit_bounds.iter().chain([&f64::INFINITY]);
                    let buckets = bounds.zip(&point.bucket_counts).map(|(bound, count)| {
                        below += count;
                        (bound.to_bits(), below)
                    });
                    let buckets: BTreeMap<u64, u64> = buckets.collect();
                    let exemplars = point.exemplars.iter().map(|exemplar| {
                        let Some(opentelemetry_proto::tonic::metrics::v1::exemplar::Value::AsDouble(value)) =
                            exemplar.value
                        else {
                            panic!()
                        };
                        let bound = buckets.keys().find(|bound| value <= f64::from_bits(**bound)).unwrap();
                        let id = exemplar.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
                        (*bound, id)
                    });
                    let exemplars = exemplars.collect();
                    let (value, count) = (point.sum.unwrap(), point.count);
                    let series = Series { value, count, buckets, native: None, exemplars };
                    table.insert((name.clone(), labels(&point.attributes)), series);
                }
            }
            metric::Data::ExponentialHistogram(histogram) => {
                for point in &histogram.data_points {
                    assert_eq!(point.scale, 3);
                    let positive = point.positive.as_ref().unwrap();
                    let counts = positive.bucket_counts.iter().enumerate();
                    let native = counts.map(|(at, count)| (positive.offset + at as i32, *count));
                    let native = native.filter(|(_, count)| *count > 0).collect();
                    let native = Some((point.zero_count, native));
                    let (value, count) = (point.sum.unwrap(), point.count);
                    let series = Series { value, count, native, ..Series::default() };
                    table.insert((name.clone(), labels(&point.attributes)), series);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    table
}

fn numbers(table: &mut Table, name: &str, points: &[opentelemetry_proto::tonic::metrics::v1::NumberDataPoint]) {
    for point in points {
        let value = match point.value.unwrap() {
            number_data_point::Value::AsDouble(value) => value,
            number_data_point::Value::AsInt(value) => value as f64,
        };
        table.insert((name.to_owned(), labels(&point.attributes)), Series { value, ..Series::default() });
    }
}

fn labels(attributes: &[KeyValue]) -> Labels {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        any_value::Value::BoolValue(truth) => truth.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.replace('.', "_"), value(attribute))).collect()
}

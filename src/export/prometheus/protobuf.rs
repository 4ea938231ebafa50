//! Prometheus protobuf messages (`io.prometheus.client`) and the encoding of a snapshot.
//!
//! The messages contain the used fields of
//! <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>. A histogram has both
//! classic *and* native buckets (schema 3); the server chooses which to store.

use prost::Message;

use super::name;
use crate::export::registry::catalog::InstrumentKind;
use crate::export::registry::interner::LabelValue;
use crate::export::registry::snapshot;
use crate::export::registry::snapshot::{DataPoint, PointValue, Snapshot};
use crate::measure::histogram;

/// A family of series.
#[derive(Clone, PartialEq, Message)]
pub struct MetricFamily {
    /// Name, with `_total` for counters.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Description.
    #[prost(string, tag = "2")]
    pub help: String,
    /// Type of the values.
    #[prost(enumeration = "MetricType", tag = "3")]
    pub r#type: i32,
    /// Series.
    #[prost(message, repeated, tag = "4")]
    pub metric: Vec<ProtoMetric>,
    /// Unit.
    #[prost(string, tag = "5")]
    pub unit: String,
}

/// Type of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum MetricType {
    /// A sum that only grows.
    Counter = 0,
    /// A value that grows and shrinks.
    Gauge = 1,
    /// A distribution.
    Histogram = 4,
}

/// A series with exactly one of the values.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoMetric {
    /// Labels.
    #[prost(message, repeated, tag = "1")]
    pub label: Vec<LabelPair>,
    /// Value of a gauge.
    #[prost(message, optional, tag = "2")]
    pub gauge: Option<Gauge>,
    /// Value of a counter.
    #[prost(message, optional, tag = "3")]
    pub counter: Option<Counter>,
    /// Value of a histogram.
    #[prost(message, optional, tag = "7")]
    pub histogram: Option<ProtoHistogram>,
}

/// A label.
#[derive(Clone, PartialEq, Message)]
pub struct LabelPair {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A gauge's value.
#[derive(Clone, PartialEq, Message)]
pub struct Gauge {
    /// The value.
    #[prost(double, tag = "1")]
    pub value: f64,
}

/// A counter's value.
#[derive(Clone, PartialEq, Message)]
pub struct Counter {
    /// The value.
    #[prost(double, tag = "1")]
    pub value: f64,
    /// Start of the count.
    #[prost(message, optional, tag = "3")]
    pub created_timestamp: Option<Timestamp>,
}

/// A histogram with classic and native buckets.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoHistogram {
    /// Number of values.
    #[prost(uint64, tag = "1")]
    pub sample_count: u64,
    /// Sum of the values.
    #[prost(double, tag = "2")]
    pub sample_sum: f64,
    /// Classic buckets; the last bound is infinite.
    #[prost(message, repeated, tag = "3")]
    pub bucket: Vec<ProtoBucket>,
    /// The native buckets have 2^schema buckets per octave.
    #[prost(sint32, tag = "5")]
    pub schema: i32,
    /// Upper bound of the zero bucket.
    #[prost(double, tag = "6")]
    pub zero_threshold: f64,
    /// Values in the zero bucket.
    #[prost(uint64, tag = "7")]
    pub zero_count: u64,
    /// Runs of native buckets.
    #[prost(message, repeated, tag = "12")]
    pub positive_span: Vec<BucketSpan>,
    /// Difference of each native bucket's count from the previous one.
    #[prost(sint64, repeated, tag = "13")]
    pub positive_delta: Vec<i64>,
    /// Start of the count.
    #[prost(message, optional, tag = "15")]
    pub created_timestamp: Option<Timestamp>,
    /// Exemplars of the native buckets.
    #[prost(message, repeated, tag = "16")]
    pub exemplars: Vec<Exemplar>,
}

/// A classic bucket.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoBucket {
    /// Number of values up to the bound.
    #[prost(uint64, tag = "1")]
    pub cumulative_count: u64,
    /// Upper bound.
    #[prost(double, tag = "2")]
    pub upper_bound: f64,
    /// Example value in the bucket.
    #[prost(message, optional, tag = "3")]
    pub exemplar: Option<Exemplar>,
}

/// A run of native buckets.
#[derive(Clone, PartialEq, Message)]
pub struct BucketSpan {
    /// Number of skipped buckets since the previous span; for the first span, the index of its first bucket.
    #[prost(sint32, tag = "1")]
    pub offset: i32,
    /// Number of buckets.
    #[prost(uint32, tag = "2")]
    pub length: u32,
}

/// A value and the trace of its request.
#[derive(Clone, PartialEq, Message)]
pub struct Exemplar {
    /// `trace_id` and `span_id`.
    #[prost(message, repeated, tag = "1")]
    pub label: Vec<LabelPair>,
    /// The value.
    #[prost(double, tag = "2")]
    pub value: f64,
    /// Time of the measurement.
    #[prost(message, optional, tag = "3")]
    pub timestamp: Option<Timestamp>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Encodes a snapshot; each family follows its length.
pub(super) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 16);
    for message in snapshot.families.iter().map(family) {
        // A vector can grow as needed, so this cannot fail.
        let _encoded = message.encode_length_delimited(&mut out).is_ok();
    }
    out
}

fn family(family: &snapshot::FamilySnapshot) -> MetricFamily {
    let instrument = family.id.instrument();
    let r#type = match instrument.kind {
        InstrumentKind::Counter | InstrumentKind::ObservedCounter => MetricType::Counter,
        InstrumentKind::UpDownCounter | InstrumentKind::Gauge | InstrumentKind::Info => MetricType::Gauge,
        InstrumentKind::Histogram(_) => MetricType::Histogram,
    };
    MetricFamily {
        name: name::sample(instrument),
        help: instrument.description.to_owned(),
        r#type: r#type.into(),
        metric: family.points.iter().map(|point| metric(point, r#type)).collect(),
        unit: name::unit(instrument).unwrap_or_default().to_owned(),
    }
}

fn metric(point: &DataPoint, r#type: MetricType) -> ProtoMetric {
    let label = point.labels.iter().map(|label| LabelPair {
        name: label.name.chars().map(name::sanitize_char).collect(),
        value: match &label.value {
            LabelValue::Text(text) => text.to_string(),
            LabelValue::Int(number) => number.to_string(),
            LabelValue::Bool(truth) => truth.to_string(),
        },
    });
    let metric = ProtoMetric { label: label.collect(), gauge: None, counter: None, histogram: None };
    let value = match &point.data {
        PointValue::Count(count) => *count as f64,
        PointValue::Gauge(level) => *level as f64,
        PointValue::Number(seconds) => *seconds,
        PointValue::Histogram(histogram, exemplars) => {
            return ProtoMetric { histogram: Some(distribution(point, histogram, exemplars)), ..metric };
        }
    };
    match r#type {
        MetricType::Counter => ProtoMetric {
            counter: Some(Counter { value, created_timestamp: Some(timestamp(point.created)) }),
            ..metric
        },
        _ => ProtoMetric { gauge: Some(Gauge { value }), ..metric },
    }
}

fn distribution(
    point: &DataPoint,
    histogram: &histogram::Histogram,
    exemplars: &[(usize, snapshot::BucketExemplar)],
) -> ProtoHistogram {
    let bounds = histogram.layout().bounds().iter().copied().chain([f64::INFINITY]);
    let exemplar_of = |at| exemplars.iter().find(|(bucket, _)| *bucket == at).map(|(_, source)| exemplar(source));
    let bucket = bounds.zip(histogram.cumulative()).enumerate().map(|(at, (upper_bound, cumulative_count))| {
        ProtoBucket { cumulative_count, upper_bound, exemplar: exemplar_of(at) }
    });
    let native = histogram.exponential();
    let (positive_span, positive_delta) = spans(&native);
    let mut exemplars: Vec<Exemplar> = exemplars.iter().map(|(_, source)| exemplar(source)).collect();
    exemplars.sort_by_key(|exemplar| exemplar.timestamp.as_ref().map(|at| (at.seconds, at.nanos)));
    ProtoHistogram {
        sample_count: histogram.count(),
        sample_sum: histogram.sum(),
        bucket: bucket.collect(),
        schema: native.scale,
        zero_threshold: native.zero_threshold,
        zero_count: native.zero,
        positive_span,
        positive_delta,
        created_timestamp: Some(timestamp(point.created)),
        exemplars,
    }
}

/// Encodes native buckets as spans and differences. A span continues over at most two empty buckets, which is smaller
/// than a new span.
fn spans(native: &histogram::ExponentialBuckets) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas) = (Vec::<BucketSpan>::new(), Vec::new());
    let (mut before, mut empty) = (0, 0);
    for (at, count) in native.buckets.iter().map(|count| *count as i64).enumerate() {
        if count == 0 {
            empty += 1;
            continue;
        }
        match spans.last_mut() {
            Some(span) if empty <= 2 => {
                for _ in 0..empty {
                    deltas.push(-std::mem::take(&mut before));
                }
                span.length += empty + 1;
            }
            Some(_) => spans.push(BucketSpan { offset: empty as i32, length: 1 }),
            // Prometheus indexes a bucket by its upper bound, OpenTelemetry by its lower one.
            None => spans.push(BucketSpan { offset: native.offset + 1 + at as i32, length: 1 }),
        }
        deltas.push(count - before);
        (before, empty) = (count, 0);
    }
    (spans, deltas)
}

fn exemplar(source: &snapshot::BucketExemplar) -> Exemplar {
    let label = |name: &str, value: String| LabelPair { name: name.to_owned(), value };
    Exemplar {
        label: vec![label("trace_id", source.trace_id.to_string()), label("span_id", source.span_id.to_string())],
        value: source.value,
        timestamp: Some(timestamp(source.unix)),
    }
}

fn timestamp(unix: u64) -> Timestamp {
    Timestamp { seconds: (unix / 1_000_000_000) as i64, nanos: (unix % 1_000_000_000) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::otlp::Sampler;
    use crate::export::fixtures::{NOW, record};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::export::registry::catalog::Id;
    use crate::export::trace_context::RequestTrace;

    #[test]
    fn spans_skip_long_gaps_and_bridge_short_ones() {
        let native = |offset, buckets: &[u64]| {
            spans(&histogram::ExponentialBuckets {
                scale: 3,
                zero_threshold: 0.0,
                zero: 0,
                offset,
                buckets: buckets.to_vec(),
            })
        };
        assert_eq!(native(0, &[]), (vec![], vec![]));
        let span = |offset, length| BucketSpan { offset, length };
        assert_eq!(native(-9, &[3, 5]), (vec![span(-8, 2)], vec![3, 2]));
        assert_eq!(native(4, &[1, 0, 0, 2]), (vec![span(5, 4)], vec![1, -1, 0, 2]));
        assert_eq!(native(4, &[7, 0, 0, 0, 2, 2]), (vec![span(5, 1), span(3, 2)], vec![7, -5, 0]));
    }

    #[test]
    fn classic_and_native_buckets_come_from_the_same_counts() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let mut aggregate = Aggregate::new(AggregateSettings::default());
        aggregate.record_finished(&record(), Some(&trace), NOW);
        let mut bytes = &encode(&aggregate.snapshot(NOW))[..];
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        let name = name::sample(Id::TimeToFirstToken.instrument());
        let ttft = families.iter().find(|family| family.name == name).unwrap();
        assert_eq!((ttft.r#type(), ttft.unit.as_str()), (MetricType::Histogram, "seconds"));
        let [metric] = &ttft.metric[..] else { panic!() };
        let model = metric.label.iter().find(|label| label.name == "gen_ai_request_model").unwrap();
        assert_eq!(model.value, "tiny");
        let histogram = metric.histogram.as_ref().unwrap();
        assert_eq!((histogram.sample_count, histogram.sample_sum, histogram.bucket.len()), (1, 0.2, 23));
        assert_eq!((histogram.bucket[7].cumulative_count, histogram.bucket[8].cumulative_count), (0, 1));
        let exemplar = histogram.bucket[8].exemplar.as_ref().unwrap();
        assert_eq!((exemplar.value, &exemplar.label[0].value), (0.2, &trace.trace_id.to_string()));
        assert_eq!(exemplar.timestamp, Some(Timestamp { seconds: 1_750_000_001, nanos: 305_000_000 }));
        assert_eq!(histogram.exemplars.len(), 1);
        // 0.2 s is in (2^(-19/8), 2^(-18/8)] = (0.1928, 0.2102].
        assert_eq!((histogram.schema, &histogram.positive_span[..]), (3, &[BucketSpan { offset: -18, length: 1 }][..]));
        assert_eq!((&histogram.positive_delta[..], histogram.zero_count), (&[1][..], 0));
        assert_eq!(histogram.created_timestamp.as_ref().map(|at| at.seconds), Some(1_750_000_060));
    }
}

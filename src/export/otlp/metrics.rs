//! Encodes snapshots as OTLP metrics.
//!
//! Cumulative values are the snapshot's own. A delta is the difference from the last snapshot *that a collector
//! accepted*. After an outage the next delta covers the whole time, so nothing is lost.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram,
    HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar,
    exponential_histogram_data_point::Buckets, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::attributes;
use crate::config::otlp::{HistogramAggregation, Temporality};
use crate::export::registry::catalog::{Convention, Id, InstrumentKind};
use crate::export::registry::interner::Label;
use crate::export::registry::snapshot;
use crate::export::registry::snapshot::{DataPoint, FamilySnapshot, PointValue, Snapshot};
use crate::measure::histogram;

/// Encodes successive snapshots.
#[derive(Debug)]
pub struct MetricsEncoder {
    resource: Resource,
    convention: Convention,
    temporality: Temporality,
    histograms: HistogramAggregation,
    /// Values that the collector has, for deltas.
    base: DeltaBase,
}

/// One export, with the values that the collector has once it accepts.
#[derive(Debug)]
pub struct MetricsExport {
    /// Encoded metrics.
    pub metrics: ResourceMetrics,
    /// Number of data points.
    pub points: u64,
    base: DeltaBase,
}

#[derive(Debug, Default)]
struct DeltaBase {
    unix: u64,
    points: HashMap<(Id, Arc<[Label]>), PointValue>,
}

impl MetricsEncoder {
    /// Creates an encoder for a collector that has no data yet.
    pub fn new(
        resource: &opentelemetry_sdk::Resource,
        convention: Convention,
        temporality: Temporality,
        histograms: HistogramAggregation,
    ) -> Self {
        let resource = attributes::resource(resource);
        Self { resource, convention, temporality, histograms, base: DeltaBase::default() }
    }

    /// Encodes one snapshot.
    pub fn encode(&self, snapshot: &Snapshot) -> MetricsExport {
        let mut base = DeltaBase { unix: snapshot.unix, points: HashMap::new() };
        let mut points = 0;
        let mut metrics = Vec::with_capacity(snapshot.families.len());
        for family in &snapshot.families {
            let instrument = family.id.instrument();
            if self.is_delta(instrument.kind) {
                for point in &family.points {
                    base.points.insert((family.id, Arc::clone(&point.labels)), point.data.clone());
                }
            }
            let (data, count) = self.data(family, snapshot.unix);
            if count == 0 {
                continue;
            }
            points += count as u64;
            metrics.push(Metric {
                name: instrument.name.to_owned(),
                description: instrument.description.to_owned(),
                unit: instrument.unit.to_owned(),
                metadata: Vec::new(),
                data: Some(data),
            });
        }
        let schema_url = self.convention.schema_url().to_owned();
        let scope = Some(attributes::scope());
        let scope_metrics = vec![ScopeMetrics { scope, metrics, schema_url: schema_url.clone() }];
        let metrics = ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics, schema_url };
        MetricsExport { metrics, points, base }
    }

    /// Records that the collector accepted this export.
    pub fn acknowledge(&mut self, export: MetricsExport) {
        self.base = export.base;
    }

    fn is_delta(&self, kind: InstrumentKind) -> bool {
        match (self.temporality, kind) {
            (Temporality::Cumulative, _) => false,
            (_, InstrumentKind::Counter | InstrumentKind::Histogram(_)) => true,
            (Temporality::Delta, InstrumentKind::ObservedCounter) => true,
            _ => false,
        }
    }

    fn data(&self, family: &FamilySnapshot, unix: u64) -> (metric::Data, usize) {
        let kind = family.id.instrument().kind;
        let delta = self.is_delta(kind);
        let temporality = if delta { AggregationTemporality::Delta } else { AggregationTemporality::Cumulative };
        let aggregation_temporality = temporality.into();
        let points = family.points.iter().filter_map(|point| self.since_base(family.id, point, delta));
        match (kind, self.histograms) {
            (InstrumentKind::Histogram(_), HistogramAggregation::Explicit) => {
                let data_points: Vec<_> = points.filter_map(|point| point.explicit(unix)).collect();
                let count = data_points.len();
                (metric::Data::Histogram(Histogram { data_points, aggregation_temporality }), count)
            }
            (InstrumentKind::Histogram(_), HistogramAggregation::Exponential) => {
                let data_points: Vec<_> = points.filter_map(|point| point.exponential(unix)).collect();
                let count = data_points.len();
                let histogram = ExponentialHistogram { data_points, aggregation_temporality };
                (metric::Data::ExponentialHistogram(histogram), count)
            }
            (InstrumentKind::Gauge | InstrumentKind::Info, _) => {
                let data_points: Vec<_> = points.filter_map(|point| point.number(unix)).collect();
                let count = data_points.len();
                (metric::Data::Gauge(Gauge { data_points }), count)
            }
            (InstrumentKind::Counter | InstrumentKind::ObservedCounter | InstrumentKind::UpDownCounter, _) => {
                let data_points: Vec<_> = points.filter_map(|point| point.number(unix)).collect();
                let count = data_points.len();
                let is_monotonic = !matches!(kind, InstrumentKind::UpDownCounter);
                (metric::Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic }), count)
            }
        }
    }

    /// Returns a point's value and start time; for a delta, `None` without activity.
    fn since_base<'a>(&self, id: Id, point: &'a DataPoint, delta: bool) -> Option<IntervalPoint<'a>> {
        let whole = IntervalPoint { point, data: point.data.clone(), start: point.created };
        let base = self.base.points.get(&(id, Arc::clone(&point.labels))).filter(|_| delta);
        let Some(base) = base else { return Some(whole) };
        let data = match (&point.data, base) {
            (PointValue::Count(now), PointValue::Count(then)) => PointValue::Count(now.saturating_sub(*then)),
            (PointValue::Number(now), PointValue::Number(then)) => PointValue::Number((now - then).max(0.0)),
            (PointValue::Histogram(now, exemplars), PointValue::Histogram(then, _)) => {
                // The bounds changed: the histogram restarted, and the collector has none of its values.
                let Ok(since) = now.since(then) else { return Some(whole) };
                let fresh = exemplars.iter().filter(|(_, exemplar)| exemplar.unix > self.base.unix);
                PointValue::Histogram(since, fresh.copied().collect())
            }
            _ => return Some(whole),
        };
        let nothing = match &data {
            PointValue::Count(count) => *count == 0,
            PointValue::Histogram(histogram, _) => histogram.count() == 0,
            PointValue::Gauge(_) | PointValue::Number(_) => false,
        };
        (!nothing).then_some(IntervalPoint { point, data, start: self.base.unix })
    }
}

/// A value and its start time.
struct IntervalPoint<'a> {
    point: &'a DataPoint,
    data: PointValue,
    start: u64,
}

impl IntervalPoint<'_> {
    fn number(&self, time_unix_nano: u64) -> Option<NumberDataPoint> {
        let value = match self.data {
            PointValue::Count(count) => number_data_point::Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX)),
            PointValue::Gauge(level) => number_data_point::Value::AsInt(level),
            PointValue::Number(seconds) => number_data_point::Value::AsDouble(seconds),
            PointValue::Histogram(..) => return None,
        };
        Some(NumberDataPoint {
            attributes: attributes::labels(&self.point.labels),
            start_time_unix_nano: self.start,
            time_unix_nano,
            exemplars: Vec::new(),
            flags: 0,
            value: Some(value),
        })
    }

    fn explicit(&self, time_unix_nano: u64) -> Option<HistogramDataPoint> {
        let (histogram, exemplars) = self.histogram()?;
        Some(HistogramDataPoint {
            attributes: attributes::labels(&self.point.labels),
            start_time_unix_nano: self.start,
            time_unix_nano,
            count: histogram.count(),
            sum: Some(histogram.sum()),
            bucket_counts: histogram.explicit(),
            explicit_bounds: histogram.layout().bounds().to_vec(),
            exemplars: exemplars.iter().map(|(_, exemplar)| exemplar_of(exemplar)).collect(),
            flags: 0,
            min: None,
            max: None,
        })
    }

    fn exponential(&self, time_unix_nano: u64) -> Option<ExponentialHistogramDataPoint> {
        let (histogram, exemplars) = self.histogram()?;
        let view = histogram.exponential();
        Some(ExponentialHistogramDataPoint {
            attributes: attributes::labels(&self.point.labels),
            start_time_unix_nano: self.start,
            time_unix_nano,
            count: histogram.count(),
            sum: Some(histogram.sum()),
            scale: view.scale,
            zero_count: view.zero,
            positive: Some(Buckets { offset: view.offset, bucket_counts: view.buckets }),
            negative: None,
            flags: 0,
            exemplars: exemplars.iter().map(|(_, exemplar)| exemplar_of(exemplar)).collect(),
            min: None,
            max: None,
            zero_threshold: view.zero_threshold,
        })
    }

    fn histogram(&self) -> Option<(&histogram::Histogram, &[(usize, snapshot::BucketExemplar)])> {
        match &self.data {
            PointValue::Histogram(histogram, exemplars) => Some((histogram, exemplars)),
            PointValue::Count(_) | PointValue::Gauge(_) | PointValue::Number(_) => None,
        }
    }
}

fn exemplar_of(source: &snapshot::BucketExemplar) -> Exemplar {
    Exemplar {
        filtered_attributes: Vec::new(),
        time_unix_nano: source.unix,
        span_id: source.span_id.to_bytes().to_vec(),
        trace_id: source.trace_id.to_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(source.value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::otlp::Sampler;
    use crate::export::fixtures::{NOW, record};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::export::registry::snapshot::TimePoint;
    use crate::export::trace_context::RequestTrace;

    fn encoder(temporality: Temporality, histograms: HistogramAggregation) -> MetricsEncoder {
        let resource = opentelemetry_sdk::Resource::builder_empty().with_service_name("gauge").build();
        MetricsEncoder::new(&resource, Convention::Frozen, temporality, histograms)
    }

    fn metric(export: &MetricsExport, id: Id) -> Option<&metric::Data> {
        let metrics = &export.metrics.scope_metrics[0].metrics;
        metrics.iter().find(|metric| metric.name == id.instrument().name)?.data.as_ref()
    }

    fn explicit(export: &MetricsExport, id: Id) -> (&HistogramDataPoint, i32) {
        match metric(export, id) {
            Some(metric::Data::Histogram(histogram)) => (&histogram.data_points[0], histogram.aggregation_temporality),
            other => panic!("{other:?}"),
        }
    }

    fn sum(export: &MetricsExport, id: Id) -> &Sum {
        match metric(export, id) {
            Some(metric::Data::Sum(sum)) => sum,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cumulative_export_is_the_snapshot_itself() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let mut aggregate = Aggregate::new(AggregateSettings::default());
        aggregate.record_finished(&record(), Some(&trace), NOW);
        let later = TimePoint { unix: NOW.unix + 5, ..NOW };
        let export =
            encoder(Temporality::Cumulative, HistogramAggregation::Explicit).encode(&aggregate.snapshot(later));
        let (ttft, temporality) = explicit(&export, Id::TimeToFirstToken);
        assert_eq!((ttft.count, ttft.sum, temporality), (1, Some(0.2), 2));
        assert_eq!((ttft.bucket_counts.len(), ttft.explicit_bounds.len(), ttft.bucket_counts[8]), (23, 22, 1));
        assert_eq!((ttft.start_time_unix_nano, ttft.time_unix_nano), (NOW.unix, NOW.unix + 5));
        assert_eq!(ttft.exemplars[0].trace_id, trace.trace_id.to_bytes());
        let attributes: Vec<_> = ttft.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(attributes[4], "server.port");
        let tokens = sum(&export, Id::StreamTokens);
        assert!(tokens.is_monotonic);
        assert_eq!(tokens.data_points[0].value, Some(number_data_point::Value::AsInt(6)));
        let scope = &export.metrics.scope_metrics[0];
        assert_eq!(scope.scope.as_ref().unwrap().name, "streamgauge");
        assert_eq!(scope.schema_url, "https://opentelemetry.io/schemas/1.41.1");
        let points: usize = aggregate.snapshot(NOW).families.iter().map(|family| family.points.len()).sum();
        assert_eq!(export.points, points as u64);
    }

    #[test]
    fn an_exponential_export_has_the_same_counts() {
        let mut aggregate = Aggregate::new(AggregateSettings::default());
        aggregate.record_finished(&record(), None, NOW);
        let export =
            encoder(Temporality::Cumulative, HistogramAggregation::Exponential).encode(&aggregate.snapshot(NOW));
        let Some(metric::Data::ExponentialHistogram(histogram)) = metric(&export, Id::TimeToFirstToken) else {
            panic!()
        };
        let point = &histogram.data_points[0];
        assert_eq!((point.scale, point.count, point.sum, point.zero_count), (3, 1, Some(0.2), 0));
        assert_eq!(point.positive, Some(Buckets { offset: -19, bucket_counts: vec![1] }));
    }

    #[test]
    fn a_delta_is_what_came_since_the_last_export_that_was_taken() {
        let mut aggregate = Aggregate::new(AggregateSettings::default());
        let mut encoder = encoder(Temporality::Delta, HistogramAggregation::Explicit);
        let at = |seconds: u64| TimePoint { unix: NOW.unix + seconds * 1_000_000_000, ..NOW };
        aggregate.record_finished(&record(), None, at(0));
        let first = encoder.encode(&aggregate.snapshot(at(10)));
        assert_eq!(explicit(&first, Id::TimeToFirstToken).0.start_time_unix_nano, at(0).unix);
        encoder.acknowledge(first);

        aggregate.record_finished(&record(), None, at(11));
        let lost = encoder.encode(&aggregate.snapshot(at(20)));
        assert_eq!(explicit(&lost, Id::TimeToFirstToken).0.count, 1);
        aggregate.record_finished(&record(), None, at(21));
        let third = encoder.encode(&aggregate.snapshot(at(30)));
        let (ttft, temporality) = explicit(&third, Id::TimeToFirstToken);
        assert_eq!((ttft.count, ttft.sum, temporality), (2, Some(0.4), 1));
        assert_eq!((ttft.start_time_unix_nano, ttft.time_unix_nano), (at(10).unix, at(30).unix));
        let tokens = sum(&third, Id::StreamTokens);
        assert_eq!(tokens.data_points[0].value, Some(number_data_point::Value::AsInt(12)));
        encoder.acknowledge(third);
        assert_eq!(encoder.encode(&aggregate.snapshot(at(40))).points, 0, "nothing happened");
    }

    #[test]
    fn levels_are_never_deltas_and_low_memory_spares_observed_counters() {
        let mut snapshot = Snapshot { unix: 100, families: Vec::new() };
        snapshot.observe(Id::ActiveStreams, ["waiting".into()], 1, PointValue::Gauge(7));
        snapshot.observe(Id::HttpActive, ["GET".into(), "http".into()], 1, PointValue::Gauge(3));
        snapshot.observe(Id::ProcessCpu, [], 1, PointValue::Number(2.0));
        snapshot.observe(Id::ProcessStart, [], 1, PointValue::Number(1.0));
        for (temporality, cpu) in [(Temporality::Delta, 1), (Temporality::LowMemory, 2), (Temporality::Cumulative, 2)] {
            let mut encoder = encoder(temporality, HistogramAggregation::Explicit);
            let first = encoder.encode(&snapshot);
            encoder.acknowledge(first);
            let export = encoder.encode(&snapshot);
            assert_eq!(sum(&export, Id::ProcessCpu).aggregation_temporality, cpu);
            let active = sum(&export, Id::HttpActive);
            assert_eq!((active.aggregation_temporality, active.is_monotonic), (2, false));
            assert!(matches!(metric(&export, Id::ActiveStreams), Some(metric::Data::Gauge(_))));
            assert!(matches!(metric(&export, Id::ProcessStart), Some(metric::Data::Gauge(_))));
        }
    }

    #[test]
    fn a_delta_of_a_histogram_that_got_other_bounds_is_all_that_it_has() {
        let with = |slo: &str| {
            let slos = crate::measure::slo::Slos::new(vec![slo.parse().unwrap()]).unwrap();
            let mut aggregate =
                Aggregate::new(AggregateSettings { slos: Arc::new(slos), ..AggregateSettings::default() });
            aggregate.record_finished(&record(), None, NOW);
            aggregate.snapshot(NOW)
        };
        let mut encoder = encoder(Temporality::Delta, HistogramAggregation::Explicit);
        let before = encoder.encode(&with("x: ttft<=111ms"));
        encoder.acknowledge(before);
        let after = encoder.encode(&with("x: ttft<=222ms"));
        assert_eq!(explicit(&after, Id::TimeToFirstToken).0.count, 1);
        assert!(metric(&after, Id::RequestDuration).is_none(), "its bounds are the same and nothing came");
    }
}

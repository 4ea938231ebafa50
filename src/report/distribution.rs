//! Statistics of one metric.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::confidence::MetricConfidence;
use super::metric::{MetricUnit, ReportMetric};
use crate::stats::samples::SortedSamples;

/// Statistics of one metric over many requests, in its display unit.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricDistribution {
    /// The metric.
    pub metric: ReportMetric,
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub avg: f64,
    /// Minimum.
    pub min: f64,
    /// Percentiles as (percent, value).
    pub percentiles: Vec<(f64, f64)>,
    /// Maximum.
    pub max: f64,
    /// Standard deviation.
    pub std: f64,
    /// Sum.
    pub sum: f64,
    /// p99 ÷ p50, for latencies.
    pub tail_ratio: Option<f64>,
    /// 95 % intervals, where they were computed.
    pub confidence: Option<MetricConfidence>,
}

/// Returns a percentile's name, for example `p99.9`.
pub fn percentile_name(percent: f64) -> String {
    format!("p{percent}")
}

/// Pattern of [`percentile_name`] in a JSON Schema.
pub(super) const PERCENTILE_PATTERN: &str = "^p[0-9]+(\\.[0-9]+)?$";

/// Default percentiles. The last one is reported where the count carries it.
pub const PERCENTILES: [f64; 11] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// True if a count suffices for a percentile that was not requested: p99.99 needs ten values above it.
fn is_carried(percent: f64, percentiles: &[f64], count: u64) -> bool {
    let was_requested = !PERCENTILES.iter().all(|default| percentiles.contains(default));
    percent <= 99.9 || was_requested || count as f64 * (100.0 - percent) / 100.0 >= 10.0 - 1e-6
}

impl MetricDistribution {
    /// Computes the statistics with these percentiles.
    pub(super) fn of(metric: ReportMetric, sorted: SortedSamples<'_>, percentiles: &[f64]) -> Self {
        let outside = |inside: f64| metric.unit().to_display(inside);
        Self {
            metric,
            count: sorted.count(),
            avg: outside(sorted.mean()),
            min: outside(sorted.min() as f64),
            percentiles: percentiles
                .iter()
                .filter(|percent| is_carried(**percent, percentiles, sorted.count()))
                .map(|percent| (*percent, outside(sorted.percentile(*percent))))
                .collect(),
            max: outside(sorted.max() as f64),
            std: outside(sorted.deviation()),
            sum: outside(sorted.sum() as f64),
            tail_ratio: Some(sorted.percentile(99.0) / sorted.percentile(50.0))
                .filter(|ratio| metric.unit() == MetricUnit::Time && ratio.is_finite()),
            confidence: None,
        }
    }

    /// Returns the columns of every table as (name, value).
    pub fn columns(&self) -> Vec<(String, f64)> {
        let named = |name: &str, value: f64| (name.to_owned(), value);
        let percentiles = self.percentiles.iter().map(|(percent, value)| (percentile_name(*percent), *value));
        let mut columns = vec![named("avg", self.avg), named("min", self.min)];
        columns.extend(percentiles);
        columns.extend([named("max", self.max), named("std", self.std)]);
        columns
    }
}

impl JsonSchema for MetricDistribution {
    fn schema_name() -> Cow<'static, str> {
        "MetricDistribution".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Statistics of one metric over many requests, in its unit",
            "properties": {
                "unit": {"type": "string"},
                "count": {"type": "integer", "minimum": 0, "description": "Number of values"},
                "avg": {"type": "number"},
                "min": {"type": "number"},
                "max": {"type": "number"},
                "std": {"type": "number", "description": "Standard deviation"},
                "sum": {"type": "number"},
                "tail_ratio": {"type": "number", "description": "p99 ÷ p50, for latencies"},
                "ci95": generator.subschema_for::<MetricConfidence>(),
            },
            "patternProperties": {PERCENTILE_PATTERN: {"type": "number"}},
            "additionalProperties": false,
            "required": ["unit", "count", "avg", "min", "max", "std", "sum"],
        })
    }
}

impl Serialize for MetricDistribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("unit", self.metric.unit().name())?;
        map.serialize_entry("count", &self.count)?;
        for (name, value) in self.columns() {
            map.serialize_entry(&name, &value)?;
        }
        map.serialize_entry("sum", &self.sum)?;
        if let Some(tail_ratio) = self.tail_ratio {
            map.serialize_entry("tail_ratio", &tail_ratio)?;
        }
        if let Some(confidence) = &self.confidence {
            map.serialize_entry("ci95", confidence)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::samples::Samples;

    #[test]
    fn p99_99_is_reported_where_ten_values_lie_above_it() {
        let last = |count: u64| {
            let mut samples = Samples::default();
            (0..count).for_each(|value| samples.push(value * 1_000_000));
            let of = MetricDistribution::of(ReportMetric::Ttft, samples.sorted().unwrap(), &PERCENTILES);
            of.percentiles.last().copied().unwrap()
        };
        assert_eq!(last(99_999).0, 99.9);
        assert_eq!(last(100_001), (99.99, 99_990.0));
    }
}

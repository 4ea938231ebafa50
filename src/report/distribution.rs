//! What the values of one number come to.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::metric::ReportMetric;
use crate::measure::samples::SortedSamples;

/// One number over many requests, in its outer unit.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricDistribution {
    /// Which number.
    pub metric: ReportMetric,
    /// Values.
    pub count: u64,
    /// Their mean.
    pub avg: f64,
    /// The least.
    pub min: f64,
    /// The percentiles, as (percent, value).
    pub percentiles: Vec<(f64, f64)>,
    /// The greatest.
    pub max: f64,
    /// Their standard deviation.
    pub std: f64,
    /// Their sum.
    pub sum: f64,
}

/// The name of a percentile, as in `p99.9`.
pub fn percentile_name(percent: f64) -> String {
    format!("p{percent}")
}

impl MetricDistribution {
    /// What sorted values come to, with these percentiles.
    pub(super) fn of(metric: ReportMetric, sorted: SortedSamples<'_>, percentiles: &[f64]) -> Self {
        let outside = |inside: f64| metric.unit().to_display(inside);
        Self {
            metric,
            count: sorted.count(),
            avg: outside(sorted.mean()),
            min: outside(sorted.min() as f64),
            percentiles: percentiles.iter().map(|percent| (*percent, outside(sorted.percentile(*percent)))).collect(),
            max: outside(sorted.max() as f64),
            std: outside(sorted.deviation()),
            sum: outside(sorted.sum() as f64),
        }
    }

    /// Its columns in every table, as (name, value).
    pub fn columns(&self) -> Vec<(String, f64)> {
        let named = |name: &str, value: f64| (name.to_owned(), value);
        let percentiles = self.percentiles.iter().map(|(percent, value)| (percentile_name(*percent), *value));
        let mut columns = vec![named("avg", self.avg), named("min", self.min)];
        columns.extend(percentiles);
        columns.extend([named("max", self.max), named("std", self.std)]);
        columns
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
        map.end()
    }
}

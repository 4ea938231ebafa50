//! 95 % intervals of a run's figures, by a moving-block bootstrap in time ([`crate::stats::bootstrap`]).

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::distribution::{PERCENTILE_PATTERN, percentile_name};
use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::estimate::{Estimate, mean, proportion};
use crate::stats::interval::{Interval, NotEnoughData};
use crate::stats::percentile_estimate::{inflation, percentiles};
use crate::stats::slice_histogram::HistogramSlices;
use crate::stats::time_slices::{SlicedValues, ValueSlices};

/// Seed of the resamples: equal records give equal intervals.
pub(super) const BOOTSTRAP_SEED: u64 = 0x5eed;

/// An interval in the display unit of its metric, or the reason why there is none.
type MaybeInterval = Result<Interval, NotEnoughData>;

/// How sure the figures of one metric are.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricConfidence {
    /// Effective sample size: the number of independent values with an equal variance of the mean.
    pub effective_count: f64,
    /// Interval of the mean.
    pub avg: MaybeInterval,
    /// Interval of each percentile, as (percent, interval).
    pub percentiles: Vec<(f64, MaybeInterval)>,
    /// Interval of p99 ÷ p50.
    pub tail_ratio: Option<MaybeInterval>,
}

/// Estimates of one metric of one run, for comparisons.
#[derive(Clone, Debug)]
pub struct MetricEstimates {
    /// Estimate of the mean.
    pub avg: Estimate,
    /// Estimates of percentiles, as (percent, estimate).
    pub percentiles: Vec<(f64, Estimate)>,
}

impl MetricEstimates {
    /// Estimates the mean and the percentiles; `None` without values.
    pub(super) fn of(values: &impl SlicedValues, percents: &[f64], bootstrap: &BlockBootstrap) -> Option<Self> {
        let avg = mean(values, bootstrap)?;
        let percentiles = percents.iter().copied().zip(percentiles(values, percents, bootstrap)).collect();
        Some(Self { avg, percentiles })
    }

    /// Estimate of one percentile, if it was requested.
    pub fn percentile(&self, percent: f64) -> Option<&Estimate> {
        self.percentiles.iter().find(|(of, _)| *of == percent).map(|(_, estimate)| estimate)
    }

    fn confidence(&self, metric: ReportMetric) -> MetricConfidence {
        let outside = |interval: MaybeInterval| {
            let display = |inside: f64| metric.unit().to_display(inside);
            interval.map(|interval| Interval { low: display(interval.low), high: display(interval.high) })
        };
        let tail = self.percentile(99.0).zip(self.percentile(50.0)).and_then(|(p99, p50)| p99.ratio(p50));
        MetricConfidence {
            effective_count: self.avg.effective_count,
            avg: outside(self.avg.interval()),
            percentiles: self.percentiles.iter().map(|(percent, of)| (*percent, outside(of.interval()))).collect(),
            tail_ratio: tail.map(|tail| tail.interval()),
        }
    }
}

/// Values of one metric in slices of time.
pub(super) fn metric_slices(points: &[RequestPoint], metric: ReportMetric) -> ValueSlices {
    let (first, last) = span(points);
    let value = |point: &RequestPoint| Some((point.started - first, point.value(metric)? as f64));
    ValueSlices::of_positions(points.iter().filter_map(value), last - first + 1)
}

/// First and last start.
fn span(points: &[RequestPoint]) -> (u64, u64) {
    let starts = || points.iter().map(|point| point.started);
    (starts().min().unwrap_or(0), starts().max().unwrap_or(0))
}

/// Confidence of a metric with one value per request; `None` without values.
pub(super) fn of_requests(
    points: &[RequestPoint],
    metric: ReportMetric,
    percents: &[f64],
    bootstrap: &BlockBootstrap,
) -> Option<MetricConfidence> {
    Some(MetricEstimates::of(&metric_slices(points, metric), percents, bootstrap)?.confidence(metric))
}

/// Confidence of ITL, which has a value per gap; `None` without values.
pub(super) fn of_gaps(
    gaps: &HistogramSlices,
    percents: &[f64],
    bootstrap: &BlockBootstrap,
) -> Option<MetricConfidence> {
    Some(MetricEstimates::of(gaps, percents, bootstrap)?.confidence(ReportMetric::Itl))
}

/// Estimates the share of requests that meet an SLO, by its index; `None` if it applies to none. `points` are in the
/// order of their starts.
pub(super) fn goodput(points: &[RequestPoint], slo: usize, bootstrap: &BlockBootstrap) -> Option<Estimate> {
    let met: Vec<bool> = points.iter().filter_map(|point| point.meets(slo)).collect();
    // With few misses the latencies show how they cluster.
    let slowest = [ReportMetric::TtftFromPlanned, ReportMetric::E2eFromPlanned]
        .map(|metric| inflation(&metric_slices(points, metric)))
        .into_iter()
        .fold(1.0, f64::max);
    proportion(&met, slowest, bootstrap)
}

impl JsonSchema for MetricConfidence {
    fn schema_name() -> Cow<'static, str> {
        "MetricConfidence".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let interval = json_schema!({
            "type": ["array", "null"],
            "description": "Both ends of a 95 % interval; null without enough data",
            "items": {"type": "number"},
            "minItems": 2,
            "maxItems": 2,
        });
        json_schema!({
            "type": "object",
            "properties": {
                "effective_count": {"type": "number", "description": "Effective sample size of the mean"},
                "avg": interval,
                "tail_ratio": interval,
            },
            "patternProperties": {PERCENTILE_PATTERN: interval},
            "additionalProperties": false,
            "required": ["effective_count", "avg"],
        })
    }
}

impl Serialize for MetricConfidence {
    /// `{"effective_count": 812.0, "avg": [low, high], "p50": [low, high], "p99": null, "tail_ratio": [low, high]}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ends = |interval: &MaybeInterval| interval.ok().map(|interval| [interval.low, interval.high]);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("effective_count", &self.effective_count)?;
        map.serialize_entry("avg", &ends(&self.avg))?;
        for (percent, interval) in &self.percentiles {
            map.serialize_entry(&percentile_name(*percent), &ends(interval))?;
        }
        if let Some(tail_ratio) = &self.tail_ratio {
            map.serialize_entry("tail_ratio", &ends(tail_ratio))?;
        }
        map.end()
    }
}

//! One metric of AIPerf's summary, as JSON and CSV.

use serde_json::{Value, json};

use super::super::tool_column::ToolColumn;
use super::super::tool_fields::ToolFields;

pub(super) const PERCENTILES: [u32; 9] = [1, 5, 10, 25, 50, 75, 90, 95, 99];

/// Returns the CSV's header line.
pub(super) fn csv_header() -> String {
    let names = MetricSummary::default().stats().into_iter().map(|(name, _)| name);
    format!("Metric,{}", names.collect::<Vec<_>>().join(","))
}

/// Statistics of one metric; absent ones are omitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MetricSummary {
    pub(super) avg: Option<f64>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) sum: Option<f64>,
    /// In the order of [`PERCENTILES`].
    pub(super) percentiles: [Option<f64>; PERCENTILES.len()],
    pub(super) std: Option<f64>,
    pub(super) count: Option<usize>,
}

impl MetricSummary {
    /// Summarizes a metric that has one value for the whole run.
    pub(super) fn single(value: f64) -> Self {
        Self { avg: Some(value), ..Self::default() }
    }

    /// Summarizes values of single requests.
    pub(super) fn of(column: &ToolColumn) -> Self {
        let stats = column.stats();
        Self {
            avg: Some(stats.mean()),
            min: Some(stats.min()),
            max: Some(stats.max()),
            sum: Some(stats.sum()),
            percentiles: PERCENTILES.map(|percent| Some(stats.percentile(percent.into()))),
            std: Some(stats.std()),
            count: Some(stats.count()),
        }
    }

    /// Summarizes values of single requests and counts each failure as an infinite value. Percentiles use the nearest
    /// rank, so they are values that occurred.
    pub(super) fn with_failures(column: &ToolColumn, failures: usize) -> Self {
        let stats = column.stats();
        let count = stats.count() + failures;
        let nearest = |percent: u32| {
            let rank = ((count - 1) as f64 * f64::from(percent) / 100.0).round_ties_even() as usize;
            if rank < stats.count() { stats.value_at_rank(rank) } else { f64::INFINITY }
        };
        Self {
            avg: Some(f64::INFINITY),
            min: Some(stats.min()),
            max: Some(f64::INFINITY),
            sum: Some(f64::INFINITY),
            percentiles: PERCENTILES.map(|percent| Some(nearest(percent))),
            std: None,
            count: Some(count),
        }
    }

    pub(super) fn has_percentiles(&self) -> bool {
        self.percentiles.iter().any(Option::is_some)
    }

    /// Lists the statistics by name, in the order of both CSV files.
    pub(super) fn stats(&self) -> Vec<(String, Option<f64>)> {
        let before = [("avg", self.avg), ("min", self.min), ("max", self.max), ("sum", self.sum)];
        let before = before.into_iter().map(|(name, value)| (name.to_owned(), value));
        let percentiles =
            PERCENTILES.iter().zip(self.percentiles).map(|(percent, value)| (format!("p{percent}"), value));
        before.chain(percentiles).chain([("std".to_owned(), self.std)]).collect()
    }

    /// Renders a JSON object; a value that is not finite becomes null.
    pub(super) fn json(&self, unit: &str) -> Value {
        let mut fields = ToolFields::default();
        fields.put("unit", json!(unit));
        let mut put = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                fields.put(name, json!(value));
            }
        };
        put("avg", self.avg);
        PERCENTILES.iter().zip(self.percentiles).for_each(|(percent, value)| put(&format!("p{percent}"), value));
        put("min", self.min);
        put("max", self.max);
        put("std", self.std);
        if let Some(count) = self.count {
            fields.put("count", json!(count));
        }
        if let Some(sum) = self.sum {
            fields.put("sum", json!(sum));
        }
        json!(fields)
    }

    /// Renders the CSV cells after the metric's name.
    pub(super) fn csv(&self) -> String {
        let cell = |(_, value): (String, Option<f64>)| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        self.stats().into_iter().map(cell).collect::<Vec<_>>().join(",")
    }
}

/// Returns the metric's name in the CSV.
pub(super) fn csv_name(header: &str, unit: &str) -> String {
    if ["count", "requests"].contains(&unit) { header.to_owned() } else { format!("{header} ({unit})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_taken_for_ever() {
        let summary = MetricSummary::with_failures(&ToolColumn((1..=8).map(f64::from).collect()), 2);
        assert_eq!(
            (summary.min, summary.max, summary.avg, summary.count),
            (Some(1.0), Some(f64::INFINITY), Some(f64::INFINITY), Some(10))
        );
        // Among ranks 0 to 9, p50 is at 4.5, which rounds to 4, and p90 is at 8.1.
        assert_eq!((summary.percentiles[4], summary.percentiles[6]), (Some(5.0), Some(f64::INFINITY)));
        assert_eq!(summary.json("ms")["p90"], Value::Null);
        assert!(
            summary.csv().starts_with("inf,1.00,inf,inf,1.00,1.00,2.00,3.00,5.00,8.00,inf,inf,inf,"),
            "{}",
            summary.csv()
        );
    }
}

//! Latency of each level of a sweep against the requests per second that it achieved.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::report::ascii_plot::{format_value, needs_log_scale};
use crate::report::metric::MetricUnit;
use crate::stats::interval::Interval;

/// A percentile in milliseconds, with its interval.
pub(in crate::report) type LevelPercentile = Option<(f64, Option<Interval>)>;

/// One level.
#[derive(Clone, Debug)]
pub(in crate::report) struct LevelPoint {
    /// Name.
    pub(in crate::report) name: String,
    /// Successes per second.
    pub(in crate::report) rate: f64,
    /// Median.
    pub(in crate::report) p50: LevelPercentile,
    /// 99th percentile.
    pub(in crate::report) p99: LevelPercentile,
    /// Neither saturated nor invalid.
    pub(in crate::report) is_sound: bool,
    /// Number of the series: levels of one series are joined.
    pub(in crate::report) series: usize,
}

/// Latencies of the levels, and what they are drawn with.
#[derive(Debug)]
pub(in crate::report) struct LoadLatency<'a> {
    /// Name of the metric.
    pub(in crate::report) label: &'a str,
    /// Levels.
    pub(in crate::report) levels: &'a [LevelPoint],
    /// Names of the series, in the order of their numbers.
    pub(in crate::report) series: &'a [String],
    /// Limits of the SLO in milliseconds.
    pub(in crate::report) limits: &'a [f64],
}

/// Draws the levels with the limits of the SLO; `None` unless two levels have values.
pub(in crate::report) fn chart(drawn: &LoadLatency<'_>) -> Option<Chart> {
    let LoadLatency { label, levels, series, limits } = *drawn;
    if levels.iter().filter(|level| level.p50.is_some()).count() < 2 {
        return None;
    }
    let value = |of: LevelPercentile| of.map(|(value, _)| value);
    let known = || levels.iter().flat_map(|level| [value(level.p50), value(level.p99)]).flatten();
    let (min, max) = (known().fold(f64::MAX, f64::min), known().fold(0.0, f64::max));
    let is_log = needs_log_scale(min, limits.iter().copied().fold(max, f64::max));
    let mut columns = vec![Column::new("requests/s", ChartUnit::Number, levels.iter().map(|level| level.rate))];
    for (name, of) in [("p50", (|level| level.p50) as fn(&LevelPoint) -> LevelPercentile), ("p99", |level| level.p99)] {
        let end = |end: fn(Interval) -> f64| levels.iter().map(move |level| of(level)?.1.map(end));
        columns.push(Column::with_gaps(name, ChartUnit::Millis, levels.iter().map(|level| value(of(level)))));
        columns.push(Column::with_gaps(format!("{name} low end"), ChartUnit::Millis, end(|interval| interval.low)));
        columns.push(Column::with_gaps(format!("{name} high end"), ChartUnit::Millis, end(|interval| interval.high)));
    }
    let flag = |holds: bool| f64::from(u8::from(holds));
    columns.push(Column::new(
        "neither saturated nor invalid",
        ChartUnit::Number,
        levels.iter().map(|level| flag(level.is_sound)),
    ));
    columns.push(Column::new("series", ChartUnit::Number, levels.iter().map(|level| level.series as f64)));
    let summary = format!(
        "Median and p99 of each level at the requests per second that it achieved, with 95 % intervals; p99 from {} to \
         {}.",
        format_value(levels.iter().filter_map(|level| value(level.p99)).fold(max, f64::min), MetricUnit::Time),
        format_value(max, MetricUnit::Time)
    );
    let scale = if is_log { " (logarithmic)" } else { "" };
    let names = levels.iter().map(|level| level.name.clone()).collect();
    let chart = Chart::new(ChartKind::Levels, format!("{label} against load{scale}"), summary, columns)
        .row_names("level", names)
        .x("requests/s", ChartUnit::Number, false)
        .y(ChartUnit::Millis, is_log)
        .limits(limits);
    Some(match series {
        [] | [_] => chart,
        // Names may contain anything, and an attribute is text.
        series => chart.attribute("series", serde_json::json!(series).to_string()),
    })
}

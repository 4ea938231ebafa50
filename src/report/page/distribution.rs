//! Distribution of one metric: bars of counts with marked percentiles, or the shares of two sides.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use super::grid::BinEdges;
use crate::report::ascii_plot::{format_percent, format_value, with_thousands};
use crate::report::metric::{MetricUnit, ReportMetric};
use crate::stats::samples::SortedSamples;

/// Bars of a distribution.
const BINS: usize = 60;
/// Percentiles that are marked.
const MARKED: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// Unit of a metric on an axis.
pub(super) const fn unit(metric: ReportMetric) -> ChartUnit {
    match metric.unit() {
        MetricUnit::Time => ChartUnit::Millis,
        MetricUnit::Tokens | MetricUnit::Rate => ChartUnit::Number,
    }
}

/// Draws the distribution of a metric; `None` if all values are zero.
pub(super) fn of_run(metric: ReportMetric, label: &str, sorted: SortedSamples<'_>) -> Option<Chart> {
    let bins = BinEdges::of(&[sorted], BINS)?;
    let counts = bins.counts(&sorted);
    let outside = |value: f64| metric.unit().to_display(value);
    let show = |value: f64| format_value(outside(value), metric.unit());
    let counted = if metric == ReportMetric::Itl { "token events" } else { "requests" };
    let marks: Vec<(f64, f64)> = MARKED
        .into_iter()
        // Fewer values than this have no such percentile of their own.
        .filter(|percent| sorted.count() as f64 * (100.0 - percent) >= 100.0)
        .map(|percent| (percent, sorted.percentile(percent)))
        .collect();
    let percentiles: Vec<String> =
        marks.iter().map(|(percent, value)| format!("p{percent} {}", show(*value))).collect();
    let below = sorted.up_to(bins.edges[0] as u64);
    let first_bin = match below {
        0 => String::new(),
        below if bins.is_log => {
            format!(" The first bar also has the {} values below {}.", with_thousands(below), show(bins.edges[0]))
        }
        _ => String::new(),
    };
    let summary = format!(
        "{} values from {} to {}{}{}.{first_bin}",
        with_thousands(sorted.count()),
        show(sorted.min() as f64),
        show(sorted.max() as f64),
        if percentiles.is_empty() { "" } else { "; " },
        percentiles.join(", ")
    );
    let edges = |from: usize| bins.edges[from..from + BINS].iter().map(|edge| outside(*edge));
    let columns = vec![
        Column::new("from", unit(metric), edges(0)),
        Column::new("to", unit(metric), edges(1)),
        Column::new(counted, ChartUnit::Number, counts.iter().map(|count| *count as f64)),
    ];
    let marks: Vec<Vec<f64>> = marks.iter().map(|(percent, value)| vec![*percent, outside(*value)]).collect();
    let scale = if bins.is_log { ", logarithmic" } else { "" };
    let chart = Chart::new(ChartKind::Bars, format!("{label}: distribution"), summary, columns)
        .x(&format!("{label}{scale}"), unit(metric), bins.is_log)
        .y(ChartUnit::Number, false)
        .block("marks", &marks);
    Some(if metric.unit() == MetricUnit::Tokens { chart.attribute("x-whole", "") } else { chart })
}

/// Draws the shares of two sides on one axis.
pub(in crate::report) fn of_sides(
    metric: ReportMetric,
    label: &str,
    sides: [(&str, SortedSamples<'_>); 2],
) -> Option<Chart> {
    let bins = BinEdges::of(&sides.map(|(_, sorted)| sorted), BINS)?;
    let outside = |value: f64| metric.unit().to_display(value);
    let show = |value: f64| format_value(outside(value), metric.unit());
    let summaries = sides.map(|(name, sorted)| {
        let [p50, p99] = [50.0, 99.0].map(|percent| show(sorted.percentile(percent)));
        format!("{name}: p50 {p50}, p99 {p99}, at most {}", show(sorted.max() as f64))
    });
    let busiest =
        sides.map(|(_, sorted)| bins.counts(&sorted).into_iter().max().unwrap_or(0) as f64 / sorted.count() as f64);
    let summary = format!(
        "{}. The fullest bin has {} of the values.",
        summaries.join("; "),
        format_percent(busiest[0].max(busiest[1]))
    );
    let mut columns = vec![Column::new("from", unit(metric), bins.edges.iter().map(|edge| outside(*edge)))];
    columns.extend(sides.map(|(name, sorted)| {
        let share = |count: u64| count as f64 / sorted.count() as f64 * 100.0;
        // The step of the last bin ends at the last edge.
        let shares = bins.counts(&sorted).into_iter().map(share).map(Some).chain([Some(0.0)]);
        Column::with_gaps(format!("{name}, share of values"), ChartUnit::Percent, shares)
    }));
    let scale = if bins.is_log { ", logarithmic" } else { "" };
    Some(
        Chart::new(ChartKind::Lines, format!("{label}: distribution"), summary, columns)
            .x(&format!("{label}{scale}"), unit(metric), bins.is_log)
            .y(ChartUnit::Percent, false)
            .attribute("stepped", ""),
    )
}

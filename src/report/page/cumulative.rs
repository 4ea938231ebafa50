//! Cumulative distributions on one axis: the share of values up to each value.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use super::distribution::unit;
use super::grid::BinEdges;
use crate::report::ascii_plot::format_value;
use crate::report::metric::ReportMetric;
use crate::stats::samples::SortedSamples;

/// Points of each curve.
const POINTS: usize = 240;

/// Draws curves of metrics with one unit, or of one metric of several sides. `None` if all values are zero.
pub(in crate::report) fn chart(title: &str, curves: &[(&str, ReportMetric, SortedSamples<'_>)]) -> Option<Chart> {
    let sorted: Vec<SortedSamples<'_>> = curves.iter().map(|(_, _, sorted)| *sorted).collect();
    let bins = BinEdges::of(&sorted, POINTS)?;
    let (_, metric, _) = *curves.first()?;
    let outside = |value: f64| metric.unit().to_display(value);
    let summaries: Vec<String> = curves
        .iter()
        .map(|(name, metric, sorted)| {
            let [p90, max] =
                [sorted.percentile(90.0), sorted.max() as f64].map(|value| format_value(outside(value), metric.unit()));
            format!("9 of 10 {name} are at most {p90}, all at most {max}")
        })
        .collect();
    let mut columns = vec![Column::new("up to", unit(metric), bins.edges.iter().map(|edge| outside(*edge)))];
    columns.extend(curves.iter().map(|(name, _, sorted)| {
        let share = |edge: &f64| sorted.up_to(*edge as u64) as f64 / sorted.count() as f64 * 100.0;
        Column::new(*name, ChartUnit::Percent, bins.edges.iter().map(share))
    }));
    let scale = if bins.is_log { ", logarithmic" } else { "" };
    Some(
        Chart::new(ChartKind::Lines, title, summaries.join("; ") + ".", columns)
            .x(&format!("value{scale}"), unit(metric), bins.is_log)
            .y(ChartUnit::Percent, false)
            .attribute("y-top", "100"),
    )
}

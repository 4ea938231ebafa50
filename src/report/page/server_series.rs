//! The servers' own figures over time, on the axis of the latencies.

use super::chart::{Chart, ChartUnit, Column};
use super::time_series::TimeAxis;
use crate::measure::server_metrics::{MetricKind, ServerMetric};
use crate::report::servers::{ServerSummary, aggregate_value};
use crate::report::source::ReportSource;
use crate::report::summarize_servers;

/// Figures of one unit, on one chart.
struct SeriesGroup {
    title: &'static str,
    unit: ChartUnit,
    /// Display units per unit of the figure.
    factor: f64,
    metrics: &'static [ServerMetric],
}

const GROUPS: [SeriesGroup; 6] = [
    SeriesGroup {
        title: "Server: requests",
        unit: ChartUnit::Number,
        factor: 1.0,
        metrics: &[ServerMetric::Running, ServerMetric::Waiting, ServerMetric::Preemptions],
    },
    SeriesGroup {
        title: "Server: KV cache and GPU",
        unit: ChartUnit::Percent,
        factor: 100.0,
        metrics: &[ServerMetric::KvUsage, ServerMetric::GpuUtilization],
    },
    SeriesGroup {
        title: "Server: tokens per second",
        unit: ChartUnit::Number,
        factor: 1.0,
        metrics: &[ServerMetric::PromptTokens, ServerMetric::GenerationTokens, ServerMetric::PrefixHits],
    },
    SeriesGroup {
        title: "Server: GPU memory in GiB",
        unit: ChartUnit::Number,
        factor: 1.0 / (1_u64 << 30) as f64,
        metrics: &[ServerMetric::GpuMemory],
    },
    SeriesGroup {
        title: "Server: power in W",
        unit: ChartUnit::Number,
        factor: 1.0,
        metrics: &[ServerMetric::GpuPower],
    },
    SeriesGroup {
        title: "Server: links of the GPUs in GiB/s",
        unit: ChartUnit::Number,
        factor: 1.0 / (1_u64 << 30) as f64,
        metrics: &[
            ServerMetric::PcieSent,
            ServerMetric::PcieReceived,
            ServerMetric::NvlinkSent,
            ServerMetric::NvlinkReceived,
        ],
    },
];

/// Draws what the servers reported; empty without scrapes.
pub(super) fn charts(axis: &TimeAxis, sources: &[ReportSource]) -> Vec<Option<Chart>> {
    let slices: Vec<Vec<ServerSummary>> = (0..axis.count())
        .map(|slice| {
            let (from, to) = axis.bounds(slice);
            let within = |at: i64| u64::try_from(at).is_ok_and(|at| (from..to).contains(&at));
            summarize_servers(sources, &within)
        })
        .collect();
    let scrapes: u64 = slices.iter().flatten().map(|server| server.scrapes).sum();
    GROUPS.iter().map(|group| (scrapes > 0).then(|| chart(axis, group, &slices, scrapes)).flatten()).collect()
}

fn chart(axis: &TimeAxis, group: &SeriesGroup, slices: &[Vec<ServerSummary>], scrapes: u64) -> Option<Chart> {
    let column = |metric: &ServerMetric| {
        let value = |(slice, servers): (usize, &Vec<ServerSummary>)| {
            let (from, to) = axis.bounds(slice);
            // Preemptions are rare, so their number is more informative than their rate.
            let is_rate = metric.kind() == MetricKind::Counter && *metric != ServerMetric::Preemptions;
            let per = if is_rate { (to - from) as f64 / 1e9 } else { 1.0 };
            aggregate_value(servers, *metric).map(|value| value * group.factor / per)
        };
        let values: Vec<Option<f64>> = slices.iter().enumerate().map(value).collect();
        values.iter().any(Option::is_some).then(|| Column::with_gaps(metric.label(), group.unit, values))
    };
    let columns: Vec<Column> = group.metrics.iter().filter_map(column).collect();
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    let summary = format!("{} as {scrapes} scrapes reported, in each slice ({}).", names.join(", "), axis.text());
    (!columns.is_empty()).then(|| axis.chart(group.title, summary, group.unit, columns))
}

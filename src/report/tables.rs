//! The tables of a report: metrics, their intervals, and slices or groups. The first row of each is its header.

use super::Report;
use super::RequestSummary;
use super::ascii_plot::{format_percent, format_value, with_thousands};
use super::distribution::{MetricDistribution, percentile_name};
use super::metric::ReportMetric;
use super::servers::{SLICE_FIGURES, ServerSummary, aggregate};
use crate::measure::server_metrics::ServerMetric;
use crate::stats::interval::{Interval, NotEnoughData};

/// Least share of gaps of 0 that is worth a sentence.
const MIN_ZERO_GAP_SHARE: f64 = 0.1;

/// Returns `true` if the requests had planned send times.
pub(super) fn has_planned_times(summary: &RequestSummary) -> bool {
    summary.metric(ReportMetric::TtftFromPlanned).is_some() || summary.metric(ReportMetric::E2eFromPlanned).is_some()
}

/// Returns `true` if a metric repeats a better-known one. Gaps equal ITL if events hold one token, and TTFO equals TTFT
/// without reasoning.
fn is_duplicate(summary: &RequestSummary, metric: &MetricDistribution) -> bool {
    let better = match metric.metric {
        ReportMetric::Gap => ReportMetric::Itl,
        ReportMetric::Ttfo => ReportMetric::Ttft,
        _ => return false,
    };
    let figures = |of: &MetricDistribution| (of.count, of.sum, of.min, of.max, of.std, of.percentiles.clone());
    summary.metric(better).is_some_and(|better| figures(better) == figures(metric))
}

/// Builds the table of metrics without duplicates. The first row is the header.
pub(super) fn latencies(summary: &RequestSummary, shown: &[f64]) -> Vec<Vec<String>> {
    let shown = &carried(summary, shown);
    let metrics = summary.metrics.iter().filter(|metric| !is_duplicate(summary, metric));
    let rows = metrics.map(|metric| row(metric.metric.label(has_planned_times(summary)), metric, shown));
    std::iter::once(header_row(shown)).chain(rows).collect()
}

/// Explains gaps of 0, if so many of them are that a figure shows it.
pub(super) fn zero_gaps(summary: &RequestSummary) -> Option<String> {
    let share = summary.zero_gap_share.filter(|share| *share >= MIN_ZERO_GAP_SHARE)?;
    Some(format!(
        "{:.1} % of the gaps between tokens are 0: these events came together, in one read. The server or the network \
         batches them, so ITL describes the batches; TPOT describes the pace.",
        share * 100.0
    ))
}

/// Percentiles that at least one metric carries.
fn carried(summary: &RequestSummary, shown: &[f64]) -> Vec<f64> {
    let has = |percent: &f64| summary.metrics.iter().any(|of| of.percentiles.iter().any(|(known, _)| known == percent));
    shown.iter().copied().filter(has).collect()
}

/// Builds the table of 95 % intervals: mean, percentiles, and the tail ratio p99 ÷ p50. `None` without intervals.
pub(super) fn confidence_table(summary: &RequestSummary, shown: &[f64]) -> Option<Vec<Vec<String>>> {
    let planned = has_planned_times(summary);
    let shown = &carried(summary, shown);
    let is_main = |metric: ReportMetric| match metric {
        ReportMetric::TtftFromPlanned | ReportMetric::E2eFromPlanned => planned,
        ReportMetric::Ttft | ReportMetric::E2e => !planned,
        ReportMetric::Itl | ReportMetric::Tpot => true,
        _ => false,
    };
    let mut rows = Vec::new();
    for distribution in summary.metrics.iter().filter(|of| is_main(of.metric)) {
        let Some(confidence) = &distribution.confidence else { continue };
        let unit = distribution.metric.unit();
        let cell = |interval: &Result<Interval, NotEnoughData>, show: &dyn Fn(f64) -> String| match interval {
            Ok(Interval { low, high }) => format!("{}–{}", show(*low), show(*high)),
            Err(_) => "too few".to_owned(),
        };
        let in_unit = |value: f64| format_value(value, unit);
        let mut row = vec![
            distribution.metric.label(planned).to_owned(),
            with_thousands(confidence.effective_count as u64),
            cell(&confidence.avg, &in_unit),
        ];
        let of = |percent: &f64| confidence.percentiles.iter().find(|(known, _)| known == percent);
        row.extend(
            shown.iter().map(|percent| of(percent).map_or("-".to_owned(), |(_, interval)| cell(interval, &in_unit))),
        );
        let ratio = |value: f64| format!("{value:.2}");
        row.push(confidence.tail_ratio.as_ref().map_or("-".to_owned(), |tail| cell(tail, &ratio)));
        rows.push(row);
    }
    let mut head = vec!["95 % interval".to_owned(), "effective n".into(), "avg".into()];
    head.extend(shown.iter().map(|percent| percentile_name(*percent)));
    head.push("p99/p50".to_owned());
    (!rows.is_empty()).then(|| std::iter::once(head).chain(rows).collect())
}

/// Returns the header of a table of metrics.
pub(super) fn header_row(shown: &[f64]) -> Vec<String> {
    let mut head = vec![String::new(), "count".into(), "avg".into(), "min".into()];
    head.extend(shown.iter().map(|percent| percentile_name(*percent)));
    head.extend(["max".to_owned(), "std".into()]);
    head
}

/// Returns one row of a table of metrics.
pub(super) fn row(name: &str, metric: &MetricDistribution, shown: &[f64]) -> Vec<String> {
    let unit = metric.metric.unit();
    let mut row = vec![name.to_owned(), with_thousands(metric.count)];
    row.extend([metric.avg, metric.min].map(|of| format_value(of, unit)));
    let of = |percent: &f64| metric.percentiles.iter().find(|(known, _)| known == percent);
    let dash = || "-".to_owned();
    row.extend(shown.iter().map(|percent| of(percent).map_or_else(dash, |(_, value)| format_value(*value, unit))));
    row.extend([metric.max, metric.std].map(|of| format_value(of, unit)));
    row
}

/// Dimension of a breakdown table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakdownKind {
    Slices,
    Groups,
}

/// One part: name, requests, and server metrics.
type BreakdownRow<'a> = (String, &'a RequestSummary, &'a [ServerSummary]);

/// Builds a breakdown table; `None` if the report has no such parts.
pub(super) fn breakdown_table(report: &Report, which: BreakdownKind) -> Option<Vec<Vec<String>>> {
    let slices = report.slices.iter().map(|slice| (format!("{}s", slice.from_s), &slice.summary, &*slice.servers));
    let groups = report.groups.iter().map(|group| {
        let values: Vec<&str> = group.by.values().map(String::as_str).collect();
        (values.join(" "), &group.summary, &[][..])
    });
    let (name, parts): (String, Vec<BreakdownRow<'_>>) = match which {
        BreakdownKind::Slices => ("from".to_owned(), slices.collect()),
        BreakdownKind::Groups => {
            let keys: Vec<&str> = report.groups.first().map(|group| group.by.keys().copied().collect())?;
            (keys.join(" "), groups.collect())
        }
    };
    let ttft = if has_planned_times(&report.whole) { ReportMetric::TtftFromPlanned } else { ReportMetric::Ttft };
    let e2e = if ttft == ReportMetric::Ttft { ReportMetric::E2e } else { ReportMetric::E2eFromPlanned };
    let columns = [
        (ttft, 50.0),
        (ttft, 99.0),
        (ReportMetric::Itl, 50.0),
        (ReportMetric::Itl, 99.0),
        (ReportMetric::Tpot, 50.0),
        (e2e, 50.0),
        (e2e, 99.0),
    ];
    let mut head = vec![name, "requests".into(), "success".into(), "req/s".into(), "output tok/s".into()];
    let columns: Vec<(ReportMetric, f64)> =
        columns.into_iter().filter(|column| percentile_of(&report.whole, *column).is_some()).collect();
    head.extend(columns.iter().map(|(metric, percent)| {
        let metric = match metric {
            metric if *metric == ttft => "TTFT",
            metric if *metric == e2e => "E2E",
            metric => metric.label(true),
        };
        format!("{metric} {}", percentile_name(*percent))
    }));
    head.extend(report.whole.goodput.iter().map(|goodput| goodput.slo.clone()));
    let figures = SLICE_FIGURES.into_iter().filter(|_| which == BreakdownKind::Slices);
    let figures: Vec<ServerMetric> = figures.filter(|figure| aggregate(&report.servers, *figure).is_some()).collect();
    head.extend(figures.iter().map(|figure| figure.label().to_owned()));
    let row =
        |(name, summary, servers): &BreakdownRow<'_>| {
            let success = summary.outcomes.get("success").copied().unwrap_or(0);
            let rate = &summary.throughput;
            let mut row = vec![name.clone(), with_thousands(summary.requests), with_thousands(success)];
            row.extend([format!("{:.2}", rate.requests), format!("{:.0}", rate.output_tokens)]);
            let dash = || "-".to_owned();
            row.extend(columns.iter().map(|column| {
                percentile_of(summary, *column).map_or_else(dash, |of| format_value(of, column.0.unit()))
            }));
            row.extend(summary.goodput.iter().map(|goodput| goodput.share.map_or_else(dash, format_percent)));
            row.extend(figures.iter().map(|figure| aggregate(servers, *figure).unwrap_or_else(dash)));
            row
        };
    (!parts.is_empty()).then(|| std::iter::once(head).chain(parts.iter().map(row)).collect())
}

fn percentile_of(summary: &RequestSummary, (metric, percent): (ReportMetric, f64)) -> Option<f64> {
    let percentiles = &summary.metric(metric)?.percentiles;
    percentiles.iter().find(|(of, _)| *of == percent).map(|(_, value)| *value)
}

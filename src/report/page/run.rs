//! Page of a run or a capture.

use super::Page;
use super::chart::{Chart, slo_limits};
use super::scatter::ScatterLabels;
use super::time_series::{MAX_SLICES, TimeAxis};
use super::{cumulative, distribution, heat_map, scatter, server_series, swim_lanes, time_series};
use crate::measure::slo::Metric;
use crate::report::Report;
use crate::report::accumulate::Accumulator;
use crate::report::ascii_plot::table_cell;
use crate::report::fidelity::text;
use crate::report::metric::{MetricUnit, ReportMetric};
use crate::report::request_point::RequestPoint;
use crate::report::tables::{
    BreakdownKind, breakdown_table, confidence_table, has_planned_times, latencies, zero_gaps,
};
use crate::report::text::lines;
use crate::report::{checklist, diagnosis, sessions, side_by_side, time_course};
use crate::stats::samples::SortedSamples;
use crate::stats::slice_histogram::HistogramColumns;

/// Data of the charts beyond the report.
#[derive(Debug)]
pub struct RunCharts<'a> {
    fold: &'a mut Accumulator,
    gaps: HistogramColumns,
}

/// Inter-token latencies over time. A report consumes those of its aggregate, so this comes before it.
pub fn gaps_over_time(fold: &Accumulator) -> HistogramColumns {
    fold.gaps.columns(MAX_SLICES)
}

impl<'a> RunCharts<'a> {
    /// Charts of the aggregate of a report.
    pub const fn new(fold: &'a mut Accumulator, gaps: HistogramColumns) -> Self {
        Self { fold, gaps }
    }

    fn latencies(&mut self, report: &Report) -> Vec<Option<Chart>> {
        let planned = has_planned_times(&report.whole);
        let metrics = latency_metrics(planned);
        let all = self.fold.total.samples.iter_mut();
        let sorted: Vec<(ReportMetric, SortedSamples<'_>)> = ReportMetric::ALL
            .into_iter()
            .zip(all)
            .filter(|(metric, _)| metrics.contains(metric))
            .filter_map(|(metric, samples)| Some((metric, samples.sorted()?)))
            .collect();
        let of = |metric: ReportMetric| sorted.iter().find(|(of, _)| *of == metric).copied();
        let curves: Vec<(&str, ReportMetric, SortedSamples<'_>)> = metrics
            .into_iter()
            .filter_map(of)
            .map(|(metric, sorted)| (metric.label(planned), metric, sorted))
            .collect();
        let single = |(label, metric, sorted): &(&str, ReportMetric, SortedSamples<'_>)| {
            distribution::of_run(*metric, label, *sorted)
        };
        let all = cumulative::chart("Share of values up to each latency", &curves);
        curves.iter().map(single).chain([all.map(Chart::full_width)]).collect()
    }

    /// Lengths of prompts and replies: whether the load is that of the reader.
    fn lengths(&mut self) -> [Option<Chart>; 2] {
        [ReportMetric::Input, ReportMetric::Output].map(|metric| {
            // A picture of one length shows nothing that its row does not.
            let sorted =
                self.fold.total.samples[metric as usize].sorted().filter(|sorted| sorted.min() < sorted.max())?;
            distribution::of_run(metric, metric.label(false), sorted)
        })
    }

    fn over_time(&self, report: &Report) -> Vec<Option<Chart>> {
        let points = &self.fold.points;
        let Some(axis) = window(points).map(|window| TimeAxis::of(window, points.len())) else { return Vec::new() };
        let planned = has_planned_times(&report.whole);
        let [ttft, _, _, e2e] = latency_metrics(planned);
        let slos = &self.fold.settings.slos;
        let limits = |is_of: fn(Metric) -> bool| slo_limits(slos.iter(), is_of);
        let latency = |metric: ReportMetric, is_of: fn(Metric) -> bool| {
            time_series::latency(&axis, points, (metric, metric.label(planned)), &limits(is_of))
        };
        let mut charts = vec![
            latency(ttft, |of| of == Metric::Ttft),
            time_series::itl(&axis, &self.gaps, &limits(|of| matches!(of, Metric::Itl(_)))),
            latency(e2e, |of| of == Metric::E2e),
            time_series::goodput(&axis, points, slos),
            time_series::requests(&axis, points, planned),
            time_series::in_flight(&axis, points),
            time_series::output_tokens(&axis, points),
        ];
        charts.extend(server_series::charts(&axis, &report.sources));
        charts.push(heat_map::chart(&self.gaps));
        charts
    }

    fn causes(&self) -> [Option<Chart>; 2] {
        let points = |x: fn(&RequestPoint) -> Option<u64>, y: ReportMetric| {
            let point =
                |point: &RequestPoint| Some((x(point)? as f64, MetricUnit::Time.to_display(point.value(y)? as f64)));
            self.fold.points.iter().filter_map(point).collect::<Vec<_>>()
        };
        let ttft = ScatterLabels { title: "TTFT against ISL", x: "prompt tokens", y: "TTFT" };
        let tpot = ScatterLabels {
            title: "ITL against batch: TPOT and requests in flight",
            x: "requests in flight at the send",
            y: "TPOT",
        };
        [
            scatter::chart(&ttft, &points(RequestPoint::isl, ReportMetric::Ttft)),
            scatter::chart(&tpot, &points(RequestPoint::in_flight, ReportMetric::Tpot)),
        ]
    }
}

/// The latencies of the charts: TTFT, ITL, TPOT and E2E, from the planned moment if there is one.
const fn latency_metrics(planned: bool) -> [ReportMetric; 4] {
    let (ttft, e2e) = match planned {
        true => (ReportMetric::TtftFromPlanned, ReportMetric::E2eFromPlanned),
        false => (ReportMetric::Ttft, ReportMetric::E2e),
    };
    [ttft, ReportMetric::Itl, ReportMetric::Tpot, e2e]
}

/// First start and last end.
fn window(points: &[RequestPoint]) -> Option<(u64, u64)> {
    let first = points.iter().map(|point| point.started).min()?;
    let last = points.iter().map(|point| point.ended().unwrap_or(point.sent())).max()?;
    Some((first, last))
}

/// Renders the page with these percentiles.
pub fn render(report: &Report, charts: &mut RunCharts<'_>, shown: &[f64]) -> String {
    let names: Vec<String> = report.sources.iter().map(|source| table_cell(&source.path)).collect();
    let mut page = Page::new(&format!("Streamgauge: {}", names.join(", ")));
    page.lines(report.context.lines());
    page.lines(lines(report));
    report.warnings.iter().for_each(|warning| page.warning(warning, &warning.text));
    page.table("Figures", &latencies(&report.whole, shown));
    zero_gaps(&report.whole).iter().for_each(|note| page.paragraph(note));
    if let Some(intervals) = confidence_table(&report.whole, shown) {
        page.table("95 % intervals", &intervals);
    }
    if let Some(beside) = text::production_table(report, shown) {
        page.table("Production and this run", &beside);
    }
    if let Some(bound) = &report.bandwidth_bound {
        page.heading("Bound of the memory bandwidth");
        page.lines(bound.lines());
    }
    if let Some(tools) = side_by_side::table(&report.side_by_side) {
        page.table("What each tool would have reported", &tools);
    }
    if let Some(sessions) = &report.sessions {
        page.heading(sessions::text::TITLE);
        page.lines(sessions::text::lines(sessions));
        page.table("Turns and times", &sessions::text::time_table(sessions));
        page.table("By turn", &sessions::text::turn_table(sessions));
    }
    page.heading("Diagnosis: what bounds the latencies");
    page.lines(diagnosis::lines(&report.diagnosis));
    for (name, part) in [
        ("Evidence", diagnosis::finding_table(&report.diagnosis)),
        ("Relations", diagnosis::relation_table(&report.diagnosis)),
    ] {
        part.iter().for_each(|part| page.table(name, part));
    }
    page.heading("Time: drift, warm-up and steady state");
    page.lines(time_course::lines(&report.time_course, &report.servers));
    time_course::trend_table(&report.time_course).iter().for_each(|trends| page.table("Trends", trends));
    page.charts("Lengths of prompts and replies", charts.lengths());
    page.charts("Latencies", charts.latencies(report));
    page.charts("Over time", charts.over_time(report));
    page.charts("What latency depends on", charts.causes());
    page.charts("Swim lanes", [swim_lanes::chart(&charts.fold.lanes, report.whole.requests)]);
    for server in &report.servers {
        page.table("Server", &server.table());
    }
    let fidelity = text::lines(report);
    if !fidelity.is_empty() {
        page.heading("Fidelity: what was planned, sent and achieved");
        page.lines(fidelity);
    }
    for (name, part) in [
        ("Slices", breakdown_table(report, BreakdownKind::Slices)),
        ("Groups", breakdown_table(report, BreakdownKind::Groups)),
    ] {
        part.iter().for_each(|part| page.table(name, part));
    }
    page.table("Checklist of an honest benchmark", &checklist::table(&report.checklist));
    page.finish()
}

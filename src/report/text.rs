//! A report as text: tables, and plots of latencies and load.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};

use super::accumulate::INVALID_STATUSES;
use super::ascii_plot::{bar, columns, format_percent, format_value, replace_unprintable, with_thousands};
use super::condition::ConditionResult;
use super::diagnosis::DiagnosisVerdict;
use super::distribution::{MetricDistribution, percentile_name};
use super::fidelity::text;
use super::metric::ReportMetric;
use super::servers::{SLICE_FIGURES, ServerSummary, aggregate};
use super::{PerGpuThroughput, Report, RequestSummary, checklist, diagnosis, sessions, side_by_side, time_course};
use crate::measure::server_metrics::ServerMetric;
use crate::stats::interval::{Interval, NotEnoughData};

/// Default percentiles that fit on a screen.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Width of the label column.
pub(super) const LABEL: usize = 13;
/// Least share of gaps of 0 that is worth a sentence.
const MIN_ZERO_GAP_SHARE: f64 = 0.1;
/// Width of the verdict column.
const DIAGNOSIS: usize = 19;
/// Lines of the load plot.
const HEIGHT: u64 = 4;
/// Maximum length of a bar, in columns.
const MAX_BAR_COLUMNS: usize = 50;

/// Size and character set of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct TextLayout {
    /// Columns.
    pub width: usize,
    /// `true` restricts output to ASCII.
    pub plain: bool,
}

/// Renders the report with these percentiles.
pub fn render(report: &Report, shown: &[f64], screen: TextLayout) -> String {
    let mut text = String::new();
    let mut put = |lines: Vec<(&str, String)>| {
        for (name, value) in lines {
            text += format!("{name:<LABEL$}{value}").trim_end();
            text.push('\n');
        }
    };
    put(report.context.lines());
    put(vec![("", String::new())]);
    put(lines(report));
    let fidelity = text::lines(report);
    if !fidelity.is_empty() {
        put(vec![("", String::new()), ("fidelity", "what was planned, sent and achieved".to_owned())]);
        put(fidelity);
    }
    text += &over_time(report, screen);
    if !report.whole.metrics.is_empty() {
        text += &format!("\n{}", aligned(&latencies(&report.whole, shown)));
        text += &zero_gaps(&report.whole).map_or(String::new(), |note| note + "\n");
    }
    if let Some(intervals) = confidence_table(&report.whole, shown) {
        text += &format!("\n{}", aligned(&intervals));
    }
    if let Some(beside) = text::production_table(report, shown) {
        text += &format!("\n{}", aligned(&beside));
    }
    for server in &report.servers {
        text += &format!("\n{}", aligned(&server.table()));
    }
    if let Some(bound) = &report.bandwidth_bound {
        text += "\nhardware: the bound of the memory bandwidth\n";
        text += &named_lines(bound.lines(), DIAGNOSIS);
    }
    if let Some(table) = side_by_side::table(&report.side_by_side) {
        text += &format!("\n{}", aligned(&table));
    }
    if let Some(sessions) = &report.sessions {
        text += "\nsessions: turns, model time and tool time\n";
        text += &named_lines(sessions::text::lines(sessions), LABEL);
        for table in [sessions::text::time_table(sessions), sessions::text::turn_table(sessions)] {
            text += &format!("\n{}", aligned(&table));
        }
    }
    text += "\ndiagnosis: what bounds the latencies\n";
    text += &named_lines(diagnosis::lines(&report.diagnosis), DIAGNOSIS);
    for table in [diagnosis::finding_table(&report.diagnosis), diagnosis::relation_table(&report.diagnosis)] {
        text += &table.map_or(String::new(), |table| format!("\n{}", aligned(&table)));
    }
    text += "\ntime: drift, warm-up and steady state\n";
    text += &named_lines(time_course::lines(&report.time_course, &report.servers), LABEL + 1);
    text +=
        &time_course::trend_table(&report.time_course).map_or(String::new(), |table| format!("\n{}", aligned(&table)));
    for (metric, bins) in &report.histograms {
        text += &histogram(metric.label(has_planned_times(&report.whole)), *metric, bins, screen);
    }
    text += &load(report, screen);
    for part in [breakdown_table(report, BreakdownKind::Slices), breakdown_table(report, BreakdownKind::Groups)]
        .into_iter()
        .flatten()
    {
        text += &format!("\n{}", aligned(&part));
    }
    text += "\nchecklist: ten questions of an honest benchmark\n";
    text += &named_lines(checklist::lines(&report.checklist), LABEL);
    for warning in &report.warnings {
        text += &format!("\nwarning: {}\n  advice: {}\n", replace_unprintable(&warning.text), warning.advice);
    }
    if screen.plain { to_ascii(text) } else { text }
}

/// Signs of this crate's own sentences, and their spelling in ASCII.
const SIGNS: [(char, &str); 8] =
    [('≤', "<="), ('µ', "u"), ('–', "-"), ('−', "-"), ('…', "..."), ('×', "x"), ('÷', "/"), ('²', "^2")];

fn to_ascii(text: String) -> String {
    SIGNS.iter().fold(text, |text, (sign, ascii)| text.replace(*sign, ascii))
}

/// Returns named lines; a line without a name continues the previous one.
pub(super) fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let whole = &report.whole;
    let mut lines = Vec::new();
    for source in &report.sources {
        let left_out = match source.outside_window {
            0 => String::new(),
            outside => format!(", {} of them in warm-up or cool-down and left out", with_thousands(outside)),
        };
        let to =
            if source.targets.is_empty() { String::new() } else { format!(" sent to {}", source.targets.join(", ")) };
        let name = if lines.is_empty() { "source" } else { "" };
        let by = source.tool.as_ref().map_or(String::new(), |tool| format!(" of {tool}"));
        lines.push((name, format!("{}: {} requests{by}{to}{left_out}", source.path, with_thousands(source.rows))));
    }
    if !report.filter.is_empty() {
        lines.push(("filter", format!("only requests with {}", report.filter)));
    }
    lines.extend(report.warm_up.as_ref().map(|warm_up| ("warm-up", warm_up_line(warm_up, has_planned_times(whole)))));
    if let Some(production) = &report.production {
        lines.push((
            "production",
            format!("{}: {} requests", production.path, with_thousands(production.summary.requests)),
        ));
    }
    if !report.uses_own_definitions() {
        lines.push(("definitions", format!("those of {}", report.definitions)));
    }
    lines.push(("requests", count_list(whole.outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count)))));
    let too_long = report.diagnosis.finding(DiagnosisVerdict::ContextWindow);
    // The statement replaces statuses of invalid requests.
    let is_explained = |status: &u16| {
        let invalid =
            INVALID_STATUSES.map(|status| whole.statuses.get(&status).copied().unwrap_or(0)).iter().sum::<u64>();
        let explained = too_long.and_then(|finding| finding.evidence.first()).map(|count| count.value as u64);
        INVALID_STATUSES.contains(status) && explained == Some(invalid)
    };
    let refused = whole.statuses.iter().filter(|(status, _)| **status >= 300 && !is_explained(status));
    let refused = refused.map(|(status, count)| format!("{} answered {status}", with_thousands(*count)));
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in report.sources.iter().flat_map(|source| &source.errors) {
        *errors.entry(name).or_default() += count;
    }
    let errors = errors.iter().map(|(name, count)| format!("{} {name}", with_thousands(*count)));
    let too_long = too_long.map(|finding| finding.statement.clone());
    let refused: Vec<String> = errors.chain(too_long).chain(refused).collect();
    if !refused.is_empty() {
        lines.push(("", refused.join(", ")));
    }
    let held_back: u64 = report.sources.iter().map(|source| source.held_back).sum();
    if held_back > 0 {
        lines.push((
            "",
            format!("{} held back by --max-in-flight; the wait is in their latency", with_thousands(held_back)),
        ));
    }
    let turns = || report.sources.iter().map(|source| source.later_turns);
    let verbatim = turns().map(|turns| turns.verbatim).sum();
    let synthesized = turns().map(|turns| turns.synthesized).sum();
    if (verbatim, synthesized) != (0, 0) {
        let value = format!(
            "{} with the real answers before them, {} with words instead",
            with_thousands(verbatim),
            with_thousands(synthesized)
        );
        lines.push(("later turns", value));
    }
    let rate = &whole.throughput;
    lines.push((
        "throughput",
        format!(
            "{:.2} requests/s, {:.0} input tokens/s, {:.0} output tokens/s, of successes in {:.1} s",
            rate.requests, rate.input_tokens, rate.output_tokens, whole.seconds
        ),
    ));
    if let Some(per_gpu) = &report.per_gpu {
        let PerGpuThroughput { gpus, output_tokens, total_tokens } = per_gpu;
        lines.push((
            "per GPU",
            format!("{output_tokens:.1} output tokens/s, {total_tokens:.1} total tokens/s, on {}", gpu_count(*gpus)),
        ));
    }
    lines.push(("tokens", tokens(whole)));
    for goodput in &whole.goodput {
        let share = goodput.share.map_or("-".to_owned(), |share| format_percent(share) + " of all");
        let interval = goodput.share_interval.map_or(String::new(), |Interval { low, high }| {
            format!(", 95 % interval {:.1}–{:.1} %", low * 100.0, high * 100.0)
        });
        let of_successes = goodput.share_of_successes.filter(|_| goodput.successes < goodput.counted);
        let of_successes = of_successes.map_or(String::new(), |share| {
            format!("; {} of {} successes", format_percent(share), with_thousands(goodput.successes))
        });
        lines.push((
            "goodput",
            format!(
                "{}: {} of {} met it ({share}{interval}{of_successes}), {:.2} requests/s, {:.0} tokens/s",
                goodput.slo,
                with_thousands(goodput.met),
                with_thousands(goodput.counted),
                goodput.requests_per_second,
                goodput.tokens_per_second
            ),
        ));
        if !goodput.missed.is_empty() {
            let missed = goodput.missed.iter().map(|(name, count)| format!("{name} {}", with_thousands(*count)));
            lines.push(("", format!("missed by: {}", missed.collect::<Vec<_>>().join(", "))));
        }
    }
    for (at, ConditionResult { condition, value, fails }) in report.conditions.iter().enumerate() {
        let verdict = if *fails { "FAILS" } else { "holds" };
        lines.push((if at == 0 { "conditions" } else { "" }, format!("{verdict}: {condition} ({value})")));
    }
    for (at, server) in report.servers.iter().enumerate() {
        let failed =
            if server.failed > 0 { format!(", {} failed", with_thousands(server.failed)) } else { String::new() };
        let name = if at == 0 { "servers" } else { "" };
        lines.push((name, format!("{}: {} scrapes{failed}", server.url, with_thousands(server.scrapes))));
    }
    lines.into_iter().map(|(name, value)| (name, replace_unprintable(&value))).collect()
}

fn count_list(counts: impl Iterator<Item = (String, u64)>) -> String {
    let list: Vec<String> = counts.map(|(name, count)| format!("{} {name}", with_thousands(count))).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

/// Summarizes the warm-up in one line.
fn warm_up_line(summary: &RequestSummary, planned: bool) -> String {
    let outcomes = count_list(summary.outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count)));
    let ttft = if planned { ReportMetric::TtftFromPlanned } else { ReportMetric::Ttft };
    let mean = |metric: ReportMetric| {
        let of = summary.metric(metric)?;
        Some(format!(", {} {} on average", metric.label(planned), format_value(of.avg, metric.unit())))
    };
    let latencies: String = [ttft, ReportMetric::Itl, ReportMetric::Tpot].into_iter().filter_map(mean).collect();
    format!("{outcomes}{latencies}; in nothing below")
}

fn tokens(summary: &RequestSummary) -> String {
    let tokens = &summary.tokens;
    let cached = match tokens.cached {
        0 => String::new(),
        cached => format!(" ({:.1} % from a cache)", cached as f64 / tokens.input.max(1) as f64 * 100.0),
    };
    let sources: Vec<&str> = tokens.sources.keys().copied().collect();
    let by = if sources.is_empty() { String::new() } else { format!(", counted by {}", sources.join(", ")) };
    format!("{} in{cached}, {} out{by}", with_thousands(tokens.input), with_thousands(tokens.output))
}

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

/// Renders lines by their names, in a column of `width`.
pub(super) fn named_lines(lines: Vec<(&str, String)>, width: usize) -> String {
    let line = |(name, text): (&str, String)| {
        format!("{name:<width$}{}", replace_unprintable(&text)).trim_end().to_owned() + "\n"
    };
    lines.into_iter().map(line).collect()
}

/// Aligns a table: names left, numbers right. The first row is the header.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    for (at, row) in rows.iter().enumerate() {
        let row: Vec<String> = row.iter().map(|cell| replace_unprintable(cell)).collect();
        _ = if at == 0 { table.set_header(row) } else { table.add_row(row) };
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn histogram(name: &str, metric: ReportMetric, bins: &[(f64, u64)], screen: TextLayout) -> String {
    let most = bins.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let mut text = format!("\n{name}\n");
    let room = screen.width.saturating_sub(LABEL + 9).min(MAX_BAR_COLUMNS);
    for (edge, count) in bins {
        let eighths = (*count as f64 / most as f64 * room as f64 * 8.0).ceil() as usize;
        let edge = format!("≤ {}", format_value(*edge, metric.unit()));
        text += format!("{edge:>width$} {} {}", bar(eighths, screen.plain), with_thousands(*count), width = LABEL - 1)
            .trim_end();
        text.push('\n');
    }
    text
}

/// Plots planned and sent requests per window.
fn over_time(report: &Report, screen: TextLayout) -> String {
    let Some(rate) = text::over_time(report) else { return String::new() };
    let most = rate.planned.iter().chain(&rate.sent).copied().max().unwrap_or(1).max(1);
    let line = |name: &str, counts: &[u64]| {
        let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
        let drawn = columns(&counts, most as f64, 1, screen.plain).concat();
        format!("{:<LABEL$}{name:<8} {drawn}", "").trim_end().to_owned() + "\n"
    };
    let heading = format!(
        "{:<LABEL$}requests in windows of {} s, at most {}:\n",
        "over time",
        rate.window_s,
        with_thousands(most)
    );
    heading + &line("planned", &rate.planned) + &line("sent", &rate.sent)
}

/// Plots requests in flight over time.
fn load(report: &Report, screen: TextLayout) -> String {
    let Some(load) = &report.in_flight else { return String::new() };
    let columns_of = load.over_time.len().min(screen.width.saturating_sub(LABEL));
    // The maximum that the text states, though a part of the time has a lower mean.
    let most = f64::from(load.max);
    if columns_of < 2 || most == 0.0 {
        return String::new();
    }
    let of = |at: usize| {
        let place = |at: usize| at * load.over_time.len() / columns_of;
        let windows = &load.over_time[place(at)..place(at + 1)];
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    let values: Vec<f64> = (0..columns_of).map(of).collect();
    let mut text = "\nin flight over time\n".to_owned();
    for (at, line) in columns(&values, most, HEIGHT, screen.plain).iter().enumerate() {
        let label = if at == 0 { format!("{most:.0}") } else { String::new() };
        text += format!("{label:>width$} {line}", width = LABEL - 1).trim_end();
        text.push('\n');
    }
    let end = if load.seconds < 10.0 { format!("{:.1}s", load.seconds) } else { format!("{:.0}s", load.seconds) };
    text + &format!("{:>width$} 0s{end:>rest$}\n", 0, width = LABEL - 1, rest = columns_of.saturating_sub(2))
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn gpu_count(gpus: impl Into<u64>) -> String {
    let gpus = gpus.into();
    format!("{} GPU{}", with_thousands(gpus), if gpus == 1 { "" } else { "s" })
}

/// Replaces unprintable characters and adds the period.
pub(super) fn sentence(text: &str) -> String {
    replace_unprintable(text) + "."
}

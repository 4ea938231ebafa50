//! A report as text: tables, and plots of latencies and load.

use std::collections::BTreeMap;

use super::accumulate::INVALID_STATUSES;
use super::ascii_plot::{bar, columns, format_percent, format_value, replace_unprintable, with_thousands};
use super::condition::ConditionResult;
use super::diagnosis::DiagnosisVerdict;
use super::fidelity::text;
use super::metric::ReportMetric;
use super::tables::{BreakdownKind, breakdown_table, confidence_table, has_planned_times, latencies, zero_gaps};
use super::text_layout::{LABEL, TextLayout, aligned, gpu_count, named_lines};
use super::{PerGpuThroughput, Report, RequestSummary, checklist, diagnosis, sessions, side_by_side, time_course};
use crate::stats::interval::Interval;

/// Default percentiles that fit on a screen.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Width of the verdict column.
const DIAGNOSIS: usize = 19;
/// Lines of the load plot.
const HEIGHT: u64 = 4;
/// Maximum length of a bar, in columns.
const MAX_BAR_COLUMNS: usize = 50;

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

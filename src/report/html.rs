//! A report as one self-contained page without scripts or network access; its charts are inline.

use std::fmt::Write as _;

use super::Report;
use super::ascii_plot::{format_value, table_cell};
use super::fidelity::text;
use super::metric::ReportMetric;
use super::text::{BreakdownKind, breakdown_table, confidence_table, has_planned_times, latencies, lines};

/// Chart size.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;

pub(super) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--soft:#5b6b7b;--line:#d5dde5;--fill:#2f7dc0;--page:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e4ebf2;--soft:#9aa9b8;--line:#344250;--fill:#63aee8;--page:#12181f}}\
body{margin:2rem auto;max-width:72rem;padding:0 1rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\
h1{font-size:1.4rem}h2{font-size:1.05rem;margin:2rem 0 .5rem}\
dl{display:grid;grid-template-columns:9rem 1fr;gap:.1rem 1rem}dt{color:var(--soft)}dd{margin:0}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}rect,polygon{fill:var(--fill)}polyline{fill:none;stroke:var(--ink);stroke-width:2}text{fill:var(--soft);font-size:11px}\
.warning{border-left:4px solid #c98a00;padding:.1rem .8rem;margin:.6rem 0}";

/// Renders the page with these percentiles.
pub fn render(report: &Report, shown: &[f64]) -> String {
    let names: Vec<String> = report.sources.iter().map(|source| table_cell(&source.path)).collect();
    let title = escaped(&format!("Streamgauge: {}", names.join(", ")));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <h1>{title}</h1>\n"
    );
    page += &definition_list(report.context.lines());
    page += &definition_list(lines(report));
    for warning in &report.warnings {
        let (text, advice) = (escaped(&warning.text), escaped(warning.advice));
        _ = writeln!(page, "<p class=\"warning\"><b>Warning:</b> {text}. <i>Advice:</i> {advice}.</p>");
    }
    page += &table("Figures", &latencies(&report.whole, shown));
    if let Some(intervals) = confidence_table(&report.whole, shown) {
        page += &table("95 % intervals", &intervals);
    }
    for server in &report.servers {
        page += &table("Server", &server.table());
    }
    let fidelity = text::lines(report);
    if !fidelity.is_empty() {
        page += "<h2>Fidelity: what was planned, sent and achieved</h2>\n";
        page += &definition_list(fidelity);
    }
    page += &text::production_table(report, shown)
        .map_or(String::new(), |beside| table("Production and this run", &beside));
    page += &rate(report);
    for (metric, bins) in &report.histograms {
        page += &histogram(metric.label(has_planned_times(&report.whole)), *metric, bins);
    }
    page += &load(report);
    for (name, part) in [
        ("Slices", breakdown_table(report, BreakdownKind::Slices)),
        ("Groups", breakdown_table(report, BreakdownKind::Groups)),
    ] {
        page += &part.map_or(String::new(), |part| table(name, &part));
    }
    page
}

pub(super) fn definition_list(lines: Vec<(&str, String)>) -> String {
    let line = |(name, told): (&str, String)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&told));
    format!("<dl>\n{}</dl>\n", lines.into_iter().map(line).collect::<String>())
}

/// Renders a table. The first row is the header.
pub(super) fn table(name: &str, rows: &[Vec<String>]) -> String {
    let mut text = format!("<h2>{name}</h2>\n<div class=\"wide\"><table>\n");
    for (at, row) in rows.iter().enumerate() {
        let cell = if at == 0 { "th" } else { "td" };
        let cells = row.iter().map(|of| format!("<{cell}>{}</{cell}>", escaped(&table_cell(of))));
        _ = writeln!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</table></div>\n"
}

/// Draws a histogram with each bin's edge below and its count above.
fn histogram(name: &str, metric: ReportMetric, bins: &[(f64, u64)]) -> String {
    let most = bins.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1) as f64;
    let step = WIDTH / bins.len().max(1) as f64;
    let mut bars = String::new();
    for (at, (edge, count)) in bins.iter().enumerate() {
        let (left, high) = (at as f64 * step, *count as f64 / most * HEIGHT);
        let (middle, top) = (left + step / 2.0, HEIGHT - high + 16.0);
        let edge = escaped(&format_value(*edge, metric.unit()));
        _ = write!(
            bars,
            "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{high:.1}\"/>",
            left + 1.0,
            step - 2.0
        );
        _ = write!(bars, "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{count}</text>", top - 4.0);
        _ = write!(bars, "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">≤ {edge}</text>", HEIGHT + 30.0);
    }
    svg_figure(name, &format!("requests or gaps by {name}"), &bars)
}

/// Draws requests in flight over time, with production's as a line.
fn load(report: &Report) -> String {
    let Some(load) = &report.in_flight else { return String::new() };
    let production = report.production.as_ref().and_then(|production| production.in_flight.as_ref());
    let (name, line) = match production {
        Some(production) => ("In flight over time; the line is production", &production.over_time[..]),
        None => ("In flight over time", &[][..]),
    };
    curves(name, "requests in flight over time", &load.over_time, line, load.seconds)
}

/// Draws sent requests over time, with planned ones as a line.
fn rate(report: &Report) -> String {
    let Some(rate) = text::over_time(report) else { return String::new() };
    let counts = |counts: &[u64]| counts.iter().map(|count| *count as f64).collect::<Vec<_>>();
    let (sent, planned) = (counts(&rate.sent), counts(&rate.planned));
    let seconds = rate.window_s as f64 * sent.len().max(planned.len()) as f64;
    let name = format!("Requests sent in windows of {} s; the line is the plan", rate.window_s);
    curves(&name, "requests planned and sent over time", &sent, &planned, seconds)
}

/// Draws an area over time and a line on top of it.
fn curves(name: &str, told: &str, area: &[f64], line: &[f64], seconds: f64) -> String {
    let most = area.iter().chain(line).copied().fold(0.0, f64::max);
    if most == 0.0 {
        return String::new();
    }
    let step = WIDTH / (area.len().max(line.len()) - 1).max(1) as f64;
    let bottom = HEIGHT + 16.0;
    let points = |values: &[f64]| -> String {
        let point =
            |(at, value): (usize, &f64)| format!("{:.1},{:.1} ", at as f64 * step, bottom - value / most * HEIGHT);
        values.iter().enumerate().map(point).collect()
    };
    let end = area.len().saturating_sub(1) as f64 * step;
    let over = if line.is_empty() { String::new() } else { format!("<polyline points=\"{}\"/>", points(line)) };
    let drawn = format!(
        "<polygon points=\"0,{bottom} {points}{end:.1},{bottom}\"/>{over}<text x=\"2\" y=\"10\">{most:.0}</text>\
         <text x=\"0\" y=\"{0}\">0s</text><text x=\"{WIDTH}\" y=\"{0}\" text-anchor=\"end\">{seconds:.0}s</text>",
        HEIGHT + 30.0,
        points = points(area)
    );
    svg_figure(name, told, &drawn)
}

fn svg_figure(name: &str, told: &str, drawn: &str) -> String {
    let high = HEIGHT + 36.0;
    format!(
        "<h2>{name}</h2>\n<svg role=\"img\" aria-label=\"{told}\" viewBox=\"0 0 {WIDTH} {high}\" width=\"{WIDTH}\" \
         height=\"{high}\">{drawn}</svg>\n"
    )
}

/// Escapes text for HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

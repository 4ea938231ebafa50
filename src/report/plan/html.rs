//! A plan as one self-contained page without scripts or network access; its chart is inline.

use std::fmt::Write as _;

use super::{CapacityPlan, PlanWindow, chart, tables};
use crate::report::html::{STYLE, definition_list, escaped, table};
use crate::report::text::sentence;

/// Rows of the table of windows; a page of a year stays small.
const MAX_ROWS: usize = 2_000;

const PLAN_STYLE: &str = "\
figure{margin:0}figcaption{color:var(--soft);font-size:.9rem;max-width:45rem}\
svg path{stroke:var(--line);fill:none}svg polygon{opacity:.45}\
@media(max-width:34rem){svg text{font-size:20px}dl{grid-template-columns:1fr}dd{margin:0 0 .5rem}}\
@media print{details{display:none}}";

/// Renders the page.
pub fn render(plan: &CapacityPlan) -> String {
    let title = escaped(&format!("Streamgauge plan: {}", plan.traffic.source));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}{PLAN_STYLE}</style>\n\
         <h1>{title}</h1>\n"
    );
    page += &definition_list(tables::lines(plan));
    for warning in &plan.warnings {
        let (text, advice) = (escaped(&sentence(&warning.text)), escaped(warning.advice));
        _ = writeln!(page, "<p class=\"warning\"><b>Warning:</b> {text} <i>Advice:</i> {advice}.</p>");
    }
    let chart = chart::svg(plan);
    if !chart.is_empty() {
        page += "<h2>Arrivals and replicas over time</h2>\n";
        page += &chart;
        page += &over_time(&plan.over_time);
    }
    page += &table("Levels of the sweep", &tables::levels(plan));
    page += &table("This plan and others", &tables::alternatives(plan));
    for effect in &plan.effects {
        page += &table(&format!("If {}", effect.event), &tables::effect(effect));
    }
    page += "<h2>Assumptions</h2>\n<ul>\n";
    for assumption in &plan.assumptions {
        _ = writeln!(page, "<li>{}</li>", escaped(&sentence(assumption)));
    }
    page + "</ul>\n"
}

/// The chart's values, so that they can be copied.
fn over_time(windows: &[PlanWindow]) -> String {
    let head = ["from s", "seconds", "requests", "replicas paid", "replicas serving"].map(str::to_owned).to_vec();
    let row = |window: &PlanWindow| {
        let (from, seconds) = (format!("{:.1}", window.from_s), format!("{:.1}", window.seconds));
        vec![from, seconds, window.requests.to_string(), window.replicas.to_string(), window.serving.to_string()]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(windows.iter().take(MAX_ROWS).map(row)).collect();
    let more = if windows.len() > MAX_ROWS { " (the first 2,000; --json has all)" } else { "" };
    let table = table("Windows", &rows);
    format!("<details><summary>Values of the chart{more}</summary>\n{table}</details>\n")
}

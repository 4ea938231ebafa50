//! A report as Markdown, for an issue or a pull request.

use super::Report;
use super::ascii_plot::{replace_unprintable, table_cell};
use super::fidelity::text;
use super::tables::{BreakdownKind, breakdown_table, confidence_table, latencies, zero_gaps};
use super::text::lines;
use super::text_layout::sentence;
use super::{checklist, diagnosis, sessions, side_by_side, time_course};

/// Renders the report with these percentiles.
pub fn render(report: &Report, shown: &[f64]) -> String {
    let mut text = String::new();
    text += &bullet_list(report.context.lines());
    text += "\n";
    text += &bullet_list(lines(report));
    text += &pipe_table(&latencies(&report.whole, shown));
    if let Some(intervals) = confidence_table(&report.whole, shown) {
        text += &pipe_table(&intervals);
    }
    report.servers.iter().for_each(|server| text += &pipe_table(&server.table()));
    let fidelity = text::lines(report);
    if !fidelity.is_empty() {
        text += &format!("\nFidelity: what was planned, sent and achieved\n\n{}", bullet_list(fidelity));
    }
    if let Some(beside) = text::production_table(report, shown) {
        text += &pipe_table(&beside);
    }
    for table in [breakdown_table(report, BreakdownKind::Slices), breakdown_table(report, BreakdownKind::Groups)]
        .into_iter()
        .flatten()
    {
        text += &pipe_table(&table);
    }
    if let Some(note) = zero_gaps(&report.whole) {
        text += &format!("\n{}\n", escaped(&note));
    }
    if let Some(bound) = &report.bandwidth_bound {
        text += &format!("\nHardware: the bound of the memory bandwidth\n\n{}", bullet_list(bound.lines()));
    }
    text += &side_by_side::table(&report.side_by_side).map_or(String::new(), |table| pipe_table(&table));
    if let Some(sessions) = &report.sessions {
        text += &format!("\n{}\n\n{}", sessions::text::TITLE, bullet_list(sessions::text::lines(sessions)));
        for table in [sessions::text::time_table(sessions), sessions::text::turn_table(sessions)] {
            text += &pipe_table(&table);
        }
    }
    text += "\nDiagnosis: what bounds the latencies\n\n";
    text += &bullet_list(diagnosis::lines(&report.diagnosis));
    for table in [diagnosis::finding_table(&report.diagnosis), diagnosis::relation_table(&report.diagnosis)] {
        text += &table.map_or(String::new(), |table| pipe_table(&table));
    }
    text += "\nTime: drift, warm-up and steady state\n\n";
    text += &bullet_list(time_course::lines(&report.time_course, &report.servers));
    text += &time_course::trend_table(&report.time_course).map_or(String::new(), |table| pipe_table(&table));
    text += &pipe_table(&checklist::table(&report.checklist));
    for warning in &report.warnings {
        text +=
            &format!("\n> **Warning:** {} *Advice:* {}.\n", escaped(&sentence(&warning.text)), escaped(warning.advice));
    }
    text
}

/// Formats named lines; a line without a name continues the previous one.
pub(super) fn bullet_list(lines: Vec<(&str, String)>) -> String {
    let line = |(name, text): (&str, String)| {
        let text = escaped(&text);
        if name.is_empty() { format!("  {text}\n") } else { format!("- **{name}** {text}\n") }
    };
    lines.into_iter().map(line).collect()
}

/// Formats a table: first row is the header, first column left-aligned, the others right-aligned.
pub(super) fn pipe_table(table: &[Vec<String>]) -> String {
    let mut text = "\n".to_owned();
    for (at, row) in table.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| escaped(&table_cell(cell))).collect();
        text += &format!("| {} |\n", cells.join(" | "));
        if at == 0 {
            text += &format!("|---{}|\n", "|---:".repeat(row.len() - 1));
        }
    }
    text
}

/// Escapes text for Markdown, HTML and terminals.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in replace_unprintable(text).chars() {
        match c {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
    }
    escaped
}

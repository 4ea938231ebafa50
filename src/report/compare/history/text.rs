//! A history of runs as text and Markdown.

use super::super::super::markdown::{bullet_list, pipe_table};
use super::super::super::text_layout::{TextLayout, aligned, named_lines};
use super::super::text::change_text;
use super::{FigureHistory, HistoryChange, MIN_RUNS, RunHistory};
use crate::trace_file::header::SIMULATED;

const LABEL: usize = 13;

/// Renders the history as text.
pub fn render(history: &RunHistory, layout: TextLayout) -> String {
    let mut text = named_lines(lines(history), LABEL);
    let changes = changes(history);
    if changes.len() > 1 {
        text += &format!("\n{}", aligned(&changes));
    }
    if layout.plain { text.replace('µ', "u") } else { text }
}

/// Renders the history as Markdown.
pub fn markdown(history: &RunHistory) -> String {
    let changes = changes(history);
    bullet_list(lines(history)) + &if changes.len() > 1 { pipe_table(&changes) } else { String::new() }
}

pub(super) fn lines(history: &RunHistory) -> Vec<(&'static str, String)> {
    let (first, last) = (history.name(0), history.name(history.runs.len().saturating_sub(1)));
    let mut lines = vec![("runs", format!("{}, from {first} to {last}", history.runs.len()))];
    let simulated = history.runs.iter().filter(|run| run.simulated).count();
    if simulated > 0 {
        lines.insert(0, ("simulated", format!("{simulated} of {} runs are {SIMULATED}", history.runs.len())));
    }
    if !history.left_out.is_empty() {
        lines.push(("left out", format!("{}: their load is not that of the newest run", history.left_out.join(", "))));
    }
    let regressions: Vec<&str> = history.new_regressions().map(|(figure, _)| &*figure.figure).collect();
    let verdict = match regressions.is_empty() {
        false => format!("REGRESSION in the newest runs: {}", regressions.join(", ")),
        true if history.runs.len() < MIN_RUNS => {
            format!("unknown: {} of {MIN_RUNS} runs that a change needs", history.runs.len())
        }
        true => "no regression in the newest runs".to_owned(),
    };
    lines.push(("verdict", verdict));
    lines
}

/// The table of changes. The first row is the header.
pub(super) fn changes(history: &RunHistory) -> Vec<Vec<String>> {
    let row = |figure: &FigureHistory, change: &HistoryChange| {
        let kind = match (change.is_regression, change.is_new) {
            (true, true) => "REGRESSION",
            (true, false) => "regression",
            (false, _) => "",
        };
        let of = figure.of;
        let relative = change_text(of, change.change);
        let label = figure.figure.clone();
        vec![
            label,
            of.format(change.before),
            of.format(change.after),
            relative,
            history.name(change.run),
            kind.to_owned(),
        ]
    };
    let head = ["changed", "before", "after", "change", "since", ""].map(str::to_owned).to_vec();
    let all = history.figures.iter().flat_map(|figure| figure.changes.iter().map(move |change| row(figure, change)));
    std::iter::once(head).chain(all).collect()
}

impl RunHistory {
    pub(super) fn name(&self, run: usize) -> String {
        let Some(run) = self.runs.get(run) else { return "-".to_owned() };
        run.date.as_ref().map_or_else(|| run.path.clone(), |date| format!("{} ({date})", run.path))
    }
}

//! Page of a history: the verdict, the changes, and each figure over the runs.

use super::super::super::metric::MetricUnit;
use super::super::super::page::Page;
use super::super::super::page::chart::{Chart, ChartKind, ChartUnit, Column, MAX_CHART_ROWS};
use super::super::ComparedFigure;
use super::text::{changes, lines};
use super::{FigureHistory, RunHistory};

/// Renders the page.
pub fn render(history: &RunHistory) -> String {
    let mut page = Page::new(&format!("Streamgauge: history of {} runs", history.runs.len()));
    page.lines(lines(history));
    let changes = changes(history);
    match changes.len() {
        1 => page.paragraph("No figure changed."),
        _ => page.table("Changes", &changes),
    }
    page.charts("Figures over the runs", history.figures.iter().map(|figure| chart(history, figure)));
    page.finish()
}

/// A figure of the newest runs; `None` unless two of them have it.
fn chart(history: &RunHistory, figure: &FigureHistory) -> Option<Chart> {
    let first = history.runs.len().saturating_sub(MAX_CHART_ROWS);
    let values = &figure.values[first..];
    if values.iter().flatten().count() < 2 {
        return None;
    }
    let (unit, scale) = match figure.of {
        of if of.is_share() => (ChartUnit::Percent, 100.0),
        ComparedFigure::Percentile(metric, _) if metric.unit() == MetricUnit::Time => (ChartUnit::Millis, 1.0),
        _ => (ChartUnit::Number, 1.0),
    };
    let scaled = |values: &[Option<f64>]| values.iter().map(|value| Some((*value)? * scale)).collect::<Vec<_>>();
    let numbers = (first..history.runs.len()).map(|run| (run + 1) as f64);
    let columns = vec![
        Column::new("run", ChartUnit::Number, numbers),
        Column::with_gaps("value", unit, scaled(values)),
        Column::with_gaps("mean between changes", unit, scaled(&means(figure)[first..])),
    ];
    let names = (first..history.runs.len()).map(|run| history.name(run)).collect();
    Some(
        Chart::new(ChartKind::Lines, figure.figure.clone(), summary(history, figure), columns)
            .row_names("path", names)
            .x("run, oldest first", ChartUnit::Number, false)
            .y(unit, false),
    )
}

/// The mean of the runs between two changes, at each of them.
fn means(figure: &FigureHistory) -> Vec<Option<f64>> {
    let known: Vec<f64> = figure.values.iter().flatten().copied().collect();
    let whole = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
    let mut means = vec![figure.changes.first().map_or(whole, |change| Some(change.before)); figure.values.len()];
    for change in &figure.changes {
        means[change.run..].fill(Some(change.after));
    }
    means
}

fn summary(history: &RunHistory, figure: &FigureHistory) -> String {
    let of = figure.of;
    let change = figure.changes.last().map(|last| {
        let (before, after) = (of.format(last.before), of.format(last.after));
        format!("It last changed at {}, from {before} to {after}.", history.name(last.run))
    });
    let change = change.unwrap_or_else(|| "No change is known.".to_owned());
    let direction = if of.is_cost() { "Less is better." } else { "More is better." };
    format!("{change} {direction}")
}

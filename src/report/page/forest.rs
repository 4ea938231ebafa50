//! Forest plot: the interval of each change.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::stats::interval::Interval;

/// The meaning of a change. The numbers are those of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum ForestVerdict {
    /// The interval contains the margin.
    Undecided = 0,
    /// Within the margin.
    NotWorse = 1,
    /// Beyond the margin.
    Worse = 2,
    /// Beyond the margin on the good side.
    Better = 3,
    /// Too few values for an interval.
    NoInterval = 4,
}

/// One row.
#[derive(Clone, Debug)]
pub(in crate::report) struct ForestRow {
    /// Name of the figure.
    pub(in crate::report) name: String,
    /// Value of the first side, in the unit of JSON.
    pub(in crate::report) before: f64,
    /// Value of the second side.
    pub(in crate::report) after: f64,
    /// Relative change, or difference of a share.
    pub(in crate::report) change: f64,
    /// Its interval.
    pub(in crate::report) interval: Option<Interval>,
    /// Its verdict.
    pub(in crate::report) verdict: ForestVerdict,
}

/// Draws the rows; `None` without any. A margin of 0.05 is 5 %.
pub(in crate::report) fn chart(title: &str, summary: String, rows: &[ForestRow], margin: f64) -> Option<Chart> {
    let percent = |of: &dyn Fn(&ForestRow) -> Option<f64>| {
        rows.iter().map(|row| of(row).map(|share| share * 100.0)).collect::<Vec<_>>()
    };
    let number = |of: fn(&ForestRow) -> f64| rows.iter().map(of).collect::<Vec<_>>();
    let columns = vec![
        Column::new("before", ChartUnit::Number, number(|row| row.before)),
        Column::new("after", ChartUnit::Number, number(|row| row.after)),
        Column::with_gaps("change", ChartUnit::Percent, percent(&|row| Some(row.change))),
        Column::with_gaps("low end", ChartUnit::Percent, percent(&|row| Some(row.interval?.low))),
        Column::with_gaps("high end", ChartUnit::Percent, percent(&|row| Some(row.interval?.high))),
        Column::new(
            "verdict: 0 undecided, 1 not worse, 2 worse, 3 better, 4 no interval",
            ChartUnit::Number,
            number(|row| f64::from(row.verdict as u8)),
        ),
    ];
    let names = rows.iter().map(|row| row.name.clone()).collect();
    (!rows.is_empty()).then(|| {
        Chart::new(ChartKind::Forest, title, summary, columns)
            .row_names("figure", names)
            .x("change of the second side from the first", ChartUnit::Percent, false)
            .y(ChartUnit::Number, false)
            .attribute("margin", (margin * 100.0).to_string())
            .full_width()
    })
}

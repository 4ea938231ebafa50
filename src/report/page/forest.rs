//! Forest plot: the interval of each change.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::stats::interval::Interval;

/// Intervals are drawn up to this many times the largest change, the margin, or 1 %. Two runs a side can have
/// intervals of millions of percent, beside which no change can be seen.
const MAX_DRAWN_TIMES: f64 = 4.0;
/// A change beyond this many times, as that from 0, is an arrow with its number, beside which the others can be seen.
const MAX_DRAWN_CHANGE: f64 = 10.0;

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
pub(in crate::report) fn chart(title: &str, mut summary: String, rows: &[ForestRow], margin: f64) -> Option<Chart> {
    let changes = rows.iter().map(|row| row.change.abs());
    let limit = MAX_DRAWN_TIMES * changes.filter(|change| *change <= MAX_DRAWN_CHANGE).fold(margin.max(0.01), f64::max);
    if rows.iter().any(|row| row.change.abs() > limit) {
        summary += " An arrow marks a change beyond the axis, with its number.";
    }
    let is_cut = |interval: Interval| interval.low < -limit || interval.high > limit;
    if rows.iter().filter_map(|row| row.interval).any(is_cut) {
        summary += &format!(" Intervals are drawn up to ±{:.0} %; the data has their ends.", limit * 100.0);
    }
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
            .attribute("limit", (limit * 100.0).to_string())
            .full_width()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(high: f64) -> String {
        let row = |change, high| ForestRow {
            name: "ttft.p50".to_owned(),
            before: 1.0,
            after: 1.0 + change,
            change,
            interval: Some(Interval { low: -0.1, high }),
            verdict: ForestVerdict::Undecided,
        };
        let chart = chart("Changes", "All.".to_owned(), &[row(0.5, 0.75), row(-0.25, high)], 0.05).unwrap();
        let mut page = crate::report::page::Page::new("t");
        page.charts("c", [Some(chart)]);
        page.finish()
    }

    #[test]
    fn a_change_from_0_leaves_the_axis_to_the_others() {
        let of = |change| ForestRow {
            name: "itl.p50".to_owned(),
            before: 0.0,
            after: change,
            change,
            interval: None,
            verdict: ForestVerdict::Worse,
        };
        let drawn = |changes: &[f64]| {
            let rows: Vec<ForestRow> = changes.iter().map(|change| of(*change)).collect();
            let mut page = crate::report::page::Page::new("t");
            page.charts("c", [chart("Changes", String::new(), &rows, 0.05)]);
            page.finish()
        };
        let (far, near) = (drawn(&[200_000.0, 0.5]), drawn(&[9.0, 0.5]));
        assert!(
            far.contains("data-limit=\"200\"") && far.contains("20000000") && far.contains("An arrow marks"),
            "{far}"
        );
        assert!(near.contains("data-limit=\"3600\"") && !near.contains("An arrow marks"), "{near}");
    }

    #[test]
    fn an_interval_of_millions_of_percent_is_drawn_cut_and_its_data_are_whole() {
        const NOTE: &str = "Intervals are drawn up to ±200 %; the data has their ends.";
        let (cut, whole) = (page(60_000.0), page(1.75));
        assert!(cut.contains(NOTE) && cut.contains("6000000") && cut.contains("data-limit=\"200\""), "{cut}");
        assert!(!whole.contains(NOTE) && whole.contains("175"), "{whole}");
    }
}

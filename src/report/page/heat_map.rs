//! Heat map of inter-token latencies over time.

use super::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::report::ascii_plot::{format_value, with_thousands};
use crate::report::metric::MetricUnit;
use crate::stats::slice_histogram::HistogramColumns;

/// Rows of the map. Together with [`super::time_series::MAX_SLICES`] they bound its cells.
const ROWS: i32 = 40;
/// Gaps of less than a 10,000th of the longest one share the lowest row: tokens that came in one read.
const MAX_RANGE: f64 = 1e4;

/// Draws the map; `None` without gaps of a measurable length.
pub(super) fn chart(gaps: &HistogramColumns) -> Option<Chart> {
    let values = || gaps.columns.iter().flat_map(|column| column.bins().map(|(value, _)| value));
    let max = values().fold(0.0, f64::max);
    let min = values().filter(|value| *value >= max / MAX_RANGE).fold(max, f64::min);
    if max <= 0.0 {
        return None;
    }
    // Equal gaps need a row with a height.
    let (low, high) = (min / 1.02, max * 1.02);
    let ratio = (high / low).powf(1.0 / f64::from(ROWS));
    let row = |value: f64| (((value / low).ln() / ratio.ln()) as i32).clamp(0, ROWS - 1);
    let edge = |row: i32| MetricUnit::Time.to_display(low * ratio.powi(row));
    let seconds = |column: usize| (gaps.from_nanos as f64 + column as f64 * gaps.column_nanos as f64) / 1e9;
    let (mut cells, mut below, mut all) = (Vec::new(), 0, 0);
    for (at, column) in gaps.columns.iter().enumerate() {
        let mut counts = [0_u64; ROWS as usize];
        for (value, count) in column.bins() {
            counts[row(value.max(low)) as usize] += u64::from(count);
            below += if value < low { u64::from(count) } else { 0 };
        }
        all += column.count();
        let filled = (0..ROWS).zip(counts).filter(|(_, count)| *count > 0);
        cells.extend(filled.map(|(row, count)| [seconds(at), seconds(at + 1), edge(row), edge(row + 1), count as f64]));
    }
    let shown = |value: f64| format_value(MetricUnit::Time.to_display(value), MetricUnit::Time);
    let lowest = match below {
        0 => String::new(),
        below => {
            format!(" The lowest row also has {} shorter gaps, of tokens that came together.", with_thousands(below))
        }
    };
    let summary = format!(
        "{} gaps between token events from {} to {}, each at the time of its later event. A darker cell has more of \
         them.{lowest}",
        with_thousands(all),
        shown(min),
        shown(max)
    );
    let column = |name: &str, unit, at: usize| Column::new(name, unit, cells.iter().map(|cell| cell[at]));
    let columns = vec![
        column("from", ChartUnit::Seconds, 0),
        column("to", ChartUnit::Seconds, 1),
        column("ITL from", ChartUnit::Millis, 2),
        column("ITL to", ChartUnit::Millis, 3),
        column("gaps", ChartUnit::Number, 4),
    ];
    Some(
        Chart::new(ChartKind::Heat, "ITL heat map over time", summary, columns)
            .x("time", ChartUnit::Seconds, false)
            .y(ChartUnit::Millis, true)
            .full_width(),
    )
}

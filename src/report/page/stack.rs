//! Parts of named groups, one upon the other.

use super::Page;
use super::chart::{Chart, ChartKind, ChartUnit, Column, MAX_CHART_ROWS};

/// Groups of one key, and the parts of each in hundredths.
#[derive(Clone, Debug)]
pub struct StackedGroups {
    /// Title of the chart.
    pub title: String,
    /// What the groups are, as in `pod`.
    pub key: String,
    /// Names of the groups, in the order of the bars.
    pub names: Vec<String>,
    /// Name of each part, from the bottom, and its value in each group; `None` if unknown.
    pub parts: Vec<(&'static str, Vec<Option<f64>>)>,
}

impl StackedGroups {
    fn chart(self, whole: &str) -> Chart {
        let Self { title, key, mut names, parts } = self;
        let left_out = names.len().saturating_sub(MAX_CHART_ROWS);
        names.truncate(MAX_CHART_ROWS);
        let order: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        let mut summary = format!("{whole}, from the bottom: {}.", order.join(", "));
        if left_out > 0 {
            summary += &format!(" The last {left_out} are left out.");
        }
        let column = |(name, values): (&'static str, Vec<Option<f64>>)| {
            Column::with_gaps(name, ChartUnit::Percent, values.into_iter().take(MAX_CHART_ROWS))
        };
        let chart = Chart::new(ChartKind::Stack, title, summary, parts.into_iter().map(column).collect());
        chart.x(&key, ChartUnit::Number, false).y(ChartUnit::Percent, false).row_names(&key, names).full_width()
    }
}

/// Renders a page of stacked bars, one chart for each key. `whole` is what the parts of a group add up to.
pub fn render(
    title: &str,
    lines: Vec<(&str, String)>,
    (heading, whole): (&str, &str),
    groups: impl Iterator<Item = StackedGroups>,
) -> String {
    let mut page = Page::new(title);
    page.lines(lines);
    page.charts(heading, groups.map(|groups| Some(groups.chart(whole))));
    page.finish()
}

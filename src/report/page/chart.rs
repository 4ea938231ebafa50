//! A chart: a table of numbers, a sentence that summarizes it, and how it is drawn.

use std::fmt::Write as _;

use super::elements::escaped;
use crate::measure::slo::{Metric, Slo};
use crate::report::ascii_plot::format_value;
use crate::report::metric::MetricUnit;

/// Rows of a chart. A longer series is thinned by its caller, which states it.
pub(in crate::report) const MAX_CHART_ROWS: usize = 5_000;
/// Rows of the table below a chart: a reader wants the shape, and the copy has all.
const MAX_TABLE_ROWS: usize = 500;

/// How the script draws a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum ChartKind {
    /// Lines over the first column.
    Lines,
    /// Bars between two edges.
    Bars,
    /// Cells of time and value.
    Heat,
    /// Points.
    Scatter,
    /// A bar for each request in lanes.
    Lanes,
    /// An interval for each named row.
    Forest,
    /// Percentiles of each level over its load.
    Levels,
    /// Speed of each level over its throughput.
    Pareto,
    /// Parts of each named row, one upon the other.
    Stack,
}

impl ChartKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Bars => "bars",
            Self::Heat => "heat",
            Self::Scatter => "scatter",
            Self::Lanes => "lanes",
            Self::Forest => "forest",
            Self::Levels => "levels",
            Self::Pareto => "pareto",
            Self::Stack => "stack",
        }
    }
}

/// Unit of an axis or a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::report) enum ChartUnit {
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
    /// Hundredths.
    Percent,
    /// A number, whose name states what is counted.
    #[default]
    Number,
}

impl ChartUnit {
    const fn name(self) -> &'static str {
        match self {
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::Percent => "%",
            Self::Number => "",
        }
    }
}

/// A column of numbers.
#[derive(Clone, Debug)]
pub(in crate::report) struct Column {
    /// Name, without the unit.
    pub(in crate::report) name: String,
    /// Unit.
    pub(in crate::report) unit: ChartUnit,
    /// One value for each row.
    pub(in crate::report) values: Vec<Option<f64>>,
}

impl Column {
    /// A column without gaps.
    pub(in crate::report) fn new(
        name: impl Into<String>,
        unit: ChartUnit,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        Self { name: name.into(), unit, values: values.into_iter().map(Some).collect() }
    }

    /// A column in which some rows have no value.
    pub(in crate::report) fn with_gaps(
        name: impl Into<String>,
        unit: ChartUnit,
        values: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        Self { name: name.into(), unit, values: values.into_iter().collect() }
    }

    fn title(&self) -> String {
        match self.unit {
            ChartUnit::Number => self.name.clone(),
            unit => format!("{} ({})", self.name, unit.name()),
        }
    }
}

/// Fixed limits of the SLOs on a metric in milliseconds, ascending.
pub(in crate::report) fn slo_limits<'a>(
    slos: impl IntoIterator<Item = &'a Slo>,
    is_of: impl Fn(Metric) -> bool,
) -> Vec<f64> {
    let limits = slos.into_iter().flat_map(|slo| slo.limits(&is_of));
    let mut limits: Vec<f64> = limits.map(|limit| MetricUnit::Time.to_display(limit.as_nanos() as f64)).collect();
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    limits
}

/// A chart. Its columns are those that the script of its kind expects.
#[derive(Clone, Debug)]
pub(in crate::report) struct Chart {
    kind: ChartKind,
    title: String,
    summary: String,
    columns: Vec<Column>,
    row_names: Option<(String, Vec<String>)>,
    is_full_width: bool,
    attributes: Vec<(&'static str, String)>,
    blocks: Vec<(&'static str, String)>,
}

impl Chart {
    /// A chart of a kind. `summary` states in a sentence what the chart shows.
    pub(in crate::report) fn new(
        kind: ChartKind,
        title: impl Into<String>,
        summary: impl Into<String>,
        columns: Vec<Column>,
    ) -> Self {
        Self {
            kind,
            title: title.into(),
            summary: summary.into(),
            columns,
            row_names: None,
            is_full_width: false,
            attributes: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Sets the horizontal axis.
    pub(in crate::report) fn x(self, label: &str, unit: ChartUnit, is_log: bool) -> Self {
        let chart = self.attribute("x-label", label).attribute("x-unit", unit.name());
        if is_log { chart.attribute("x-log", "") } else { chart }
    }

    /// Sets the vertical axis.
    pub(in crate::report) fn y(self, unit: ChartUnit, is_log: bool) -> Self {
        let chart = self.attribute("y-unit", unit.name());
        if is_log { chart.attribute("y-log", "") } else { chart }
    }

    /// Sets an instruction of the script.
    pub(in crate::report) fn attribute(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// Adds a block of rows of numbers.
    pub(in crate::report) fn block(mut self, name: &'static str, rows: &[Vec<f64>]) -> Self {
        let row = |row: &Vec<f64>| format!("[{}]", joined(row.iter().copied().map(Some)));
        let rows: Vec<String> = rows.iter().map(row).collect();
        self.blocks.push((name, format!("[{}]", rows.join(","))));
        self
    }

    /// Draws limits of an SLO, in the unit of the vertical axis, and states them in the summary.
    pub(in crate::report) fn limits(mut self, limits: &[f64]) -> Self {
        if !limits.is_empty() {
            let texts: Vec<String> = limits.iter().map(|limit| format_value(*limit, MetricUnit::Time)).collect();
            _ = write!(self.summary, " The SLO allows {}.", texts.join(", "));
        }
        self.block("limits", &[limits.to_vec()])
    }

    /// Names the rows.
    pub(in crate::report) fn row_names(mut self, heading: &str, names: Vec<String>) -> Self {
        self.row_names = Some((heading.to_owned(), names));
        self
    }

    /// Lets the chart take the whole width of the page.
    pub(in crate::report) fn full_width(mut self) -> Self {
        self.is_full_width = true;
        self
    }

    fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// Appends the figure. `number` makes its ids unique.
    pub(super) fn write(&self, page: &mut String, number: usize) {
        let class = if self.is_full_width { " class=\"full\"" } else { "" };
        let attribute = |(name, value): &(&str, String)| format!(" data-{name}=\"{}\"", escaped(value));
        let attributes: String = self.attributes.iter().map(attribute).collect();
        let (title, summary) = (escaped(&self.title), escaped(&self.summary));
        _ = writeln!(
            page,
            "<figure{class} id=\"chart-{number}\" data-kind=\"{kind}\"{attributes}>\n\
             <h3 id=\"title-{number}\">{title}</h3>\n<p id=\"summary-{number}\">{summary}</p>\n\
             <ul class=\"legend\" aria-hidden=\"true\"></ul>\n\
             <div class=\"plot\" role=\"img\" tabindex=\"0\" aria-labelledby=\"title-{number}\" \
             aria-describedby=\"summary-{number}\"></div>\n<output class=\"readout\" aria-live=\"polite\"></output>",
            kind = self.kind.name()
        );
        let of_rows = match self.rows() {
            rows if rows > MAX_TABLE_ROWS => format!("the first {MAX_TABLE_ROWS} of {rows} rows; the copy has all"),
            1 => "1 row".to_owned(),
            rows => format!("{rows} rows"),
        };
        _ = writeln!(
            page,
            "<div class=\"tools\"><details><summary>Data of this chart ({of_rows})</summary>\n{table}</details>\
             <button type=\"button\" class=\"copy\" aria-describedby=\"title-{number}\" hidden>Copy data</button></div>",
            table = self.table(&title)
        );
        let column = |column: &Column| format!("[{}]", joined(column.values.iter().copied()));
        let data: Vec<String> = self.columns.iter().map(column).collect();
        let data = [("data", format!("[{}]", data.join(",")))];
        for (name, numbers) in data.iter().chain(&self.blocks) {
            _ = writeln!(page, "<script type=\"application/json\" class=\"{name}\">{numbers}</script>");
        }
        *page += "</figure>\n";
    }

    fn table(&self, name: &str) -> String {
        let mut text = format!(
            "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Data: {name}\"><table>\n<thead><tr>"
        );
        if let Some((heading, _)) = &self.row_names {
            _ = write!(text, "<th scope=\"col\">{}</th>", escaped(heading));
        }
        for column in &self.columns {
            let (title, unit) = (escaped(&column.title()), column.unit.name());
            _ = write!(text, "<th scope=\"col\" class=\"value\" data-unit=\"{unit}\">{title}</th>");
        }
        text += "</tr></thead>\n<tbody>\n";
        for row in 0..self.rows().min(MAX_TABLE_ROWS) {
            text += "<tr>";
            if let Some((_, names)) = &self.row_names {
                _ = write!(
                    text,
                    "<th scope=\"row\">{}</th>",
                    names.get(row).map_or(String::new(), |name| escaped(name))
                );
            }
            for column in &self.columns {
                let value = column.values.get(row).copied().flatten();
                _ = write!(text, "<td>{}</td>", value.map_or(String::new(), number));
            }
            text += "</tr>\n";
        }
        text + "</tbody></table></div>\n"
    }
}

fn joined(values: impl Iterator<Item = Option<f64>>) -> String {
    let values: Vec<String> = values.map(|value| value.map_or("null".to_owned(), number)).collect();
    values.join(",")
}

/// Seven significant digits: a day in tens of milliseconds. JSON has no number that is not finite.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "null".to_owned();
    }
    format!("{value:.6e}").parse::<f64>().unwrap_or(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_valid_json() {
        let texts = [1.0 / 3.0, 86_399.987_654, 1e15, -0.000_012_5, f64::NAN, f64::INFINITY].map(number);
        assert_eq!(texts, ["0.3333333", "86399.99", "1000000000000000", "-0.0000125", "null", "null"]);
    }

    #[test]
    fn a_figure_has_its_numbers_in_a_block_and_its_names_escaped_in_a_table() {
        let columns = vec![
            Column::new("</script><script>", ChartUnit::Millis, [1.5]),
            Column::with_gaps("count", ChartUnit::Number, [None]),
        ];
        let chart =
            Chart::new(ChartKind::Lines, "\"><b>", "half < 2", columns).row_names("level", vec!["<i>".to_owned()]);
        let mut page = String::new();
        chart.write(&mut page, 7);
        assert!(page.contains("<script type=\"application/json\" class=\"data\">[[1.5],[null]]</script>"), "{page}");
        assert!(page.contains("data-unit=\"ms\">&lt;/script&gt;&lt;script&gt; (ms)</th>"), "{page}");
        assert!(page.contains("<th scope=\"row\">&lt;i&gt;</th><td>1.5</td><td></td>"), "{page}");
        assert!(page.contains("<h3 id=\"title-7\">&quot;&gt;&lt;b&gt;</h3>") && page.contains("half &lt; 2"), "{page}");
        assert_eq!(page.matches("<script").count(), 1);
    }
}

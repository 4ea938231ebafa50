//! Pages: one self-contained HTML file for runs, comparisons, sweeps, plans and the reuse of prefixes.
//!
//! ```text
//! run, compare::html, sweep::html, plan::html, stack -> one file per chart -> Chart -> Page -> HTML
//! ```
//!
//! A page needs no network. Its tables and sentences are complete without scripts. With scripts, charts are drawn by the
//! plot library of the live page from the data block of each figure. A data block holds numbers only; names stand, escaped,
//! in the table of the data. The policy of the page admits the scripts below by their digests, and no other script.
//!
//! # Size
//! Every chart has a bounded number of rows (`chart::MAX_CHART_ROWS`), whatever the number of requests, and states what
//! it left out. So a page of a million requests is as large as one of ten thousand.

pub(super) mod chart;
pub(super) mod cumulative;
pub(super) mod distribution;
pub(super) mod elements;
pub(super) mod forest;
pub(super) mod grid;
mod heat_map;
pub(super) mod load_latency;
pub(super) mod pareto;
pub mod run;
mod scatter;
mod server_series;
pub mod stack;
mod swim_lanes;
mod time_series;

use std::fmt::Write as _;

use super::warning::WarningText;
use chart::Chart;
use elements::{definition_list, escaped, table};

/// The plot library of the live page, as it was published.
const PLOT_LIBRARY: &str = include_str!("../../export/admin/page/uplot/uPlot.iife.min.js");
const PLOT_STYLE: &str = include_str!("../../export/admin/page/uplot/uPlot.min.css");
const STYLE: &str = include_str!("assets/page.css");
/// The drawing code, one file per kind of chart.
const SCRIPT: &str = concat!(
    include_str!("assets/plot.js"),
    include_str!("assets/lines.js"),
    include_str!("assets/bars.js"),
    include_str!("assets/heat.js"),
    include_str!("assets/scatter.js"),
    include_str!("assets/lanes.js"),
    include_str!("assets/forest.js"),
    include_str!("assets/levels.js"),
    include_str!("assets/stack.js"),
    include_str!("assets/start.js"),
);
/// SHA-256 digests of the two scripts: the policy admits what has them. A test keeps them true.
const LIBRARY_DIGEST: &str = "GcjUxq2Ikpp59K5J1vcWFWbf0Lo9FcxJXpdPeH63jx8=";
const SCRIPT_DIGEST: &str = "N0tGGxTofq+qeWFU7UtjepiocmlHdUABkrHZfyx8QyY=";

/// A page under construction.
#[derive(Debug)]
pub(super) struct Page {
    text: String,
    charts: usize,
}

impl Page {
    /// Begins a page. The title may contain names from files.
    pub(super) fn new(title: &str) -> Self {
        let title = escaped(title);
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'sha256-{LIBRARY_DIGEST}' 'sha256-{SCRIPT_DIGEST}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n"
        );
        _ = write!(text, "<style>{PLOT_STYLE}{STYLE}</style>\n</head>\n<body>\n");
        _ = write!(text, "<a class=\"skip\" href=\"#charts\">Skip to the charts</a>\n<h1>{title}</h1>\n");
        Self { text, charts: 0 }
    }

    /// Adds named lines.
    pub(super) fn lines(&mut self, lines: Vec<(&str, String)>) {
        self.text += &definition_list(lines);
    }

    /// Adds a heading.
    pub(super) fn heading(&mut self, name: &str) {
        _ = writeln!(self.text, "<h2>{}</h2>", escaped(name));
    }

    /// Adds a table with a heading. The first row is its header.
    pub(super) fn table(&mut self, name: &str, rows: &[Vec<String>]) {
        self.heading(name);
        self.text += &table(name, rows);
    }

    /// Adds a paragraph.
    pub(super) fn paragraph(&mut self, text: &str) {
        _ = writeln!(self.text, "<p>{}</p>", escaped(text));
    }

    /// Adds a list of sentences.
    pub(super) fn list(&mut self, items: impl Iterator<Item = String>) {
        let items: String = items.map(|item| format!("<li>{}</li>\n", escaped(&item))).collect();
        _ = write!(self.text, "<ul>\n{items}</ul>\n");
    }

    /// Adds a warning; `text` may be longer than that of the warning itself.
    pub(super) fn warning(&mut self, warning: &WarningText, text: &str) {
        let (text, advice) = (escaped(&super::text_layout::sentence(text)), escaped(warning.advice));
        _ = writeln!(self.text, "<p class=\"warning\"><b>Warning:</b> {text} <i>Advice:</i> {advice}.</p>");
    }

    /// Adds a section of charts; without charts nothing.
    pub(super) fn charts(&mut self, name: &str, charts: impl IntoIterator<Item = Option<Chart>>) {
        let charts: Vec<Chart> = charts.into_iter().flatten().collect();
        if charts.is_empty() {
            return;
        }
        let id = if self.charts == 0 { " id=\"charts\" tabindex=\"-1\"" } else { "" };
        _ = write!(self.text, "<h2{id}>{}</h2>\n<div class=\"charts\">\n", escaped(name));
        for chart in charts {
            self.charts += 1;
            chart.write(&mut self.text, self.charts);
        }
        self.text += "</div>\n";
    }

    /// Ends the page.
    pub(super) fn finish(mut self) -> String {
        if self.charts > 0 {
            self.text += "<footer><p>Drag over a chart to zoom in, and double-click to zoom out. The arrow keys select a \
                          row of a chart that has the focus.</p></footer>\n\
                          <noscript><p>The charts need scripts; the table below each has its data.</p></noscript>\n";
            _ = write!(self.text, "<script>{PLOT_LIBRARY}</script>\n<script>{SCRIPT}</script>\n");
        } else {
            self.text = self.text.replacen("<a class=\"skip\" href=\"#charts\">Skip to the charts</a>\n", "", 1);
        }
        self.text + "</body>\n</html>\n"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn sha256(text: &str) -> String {
        let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        sum.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap();
        let byte = |at: usize| u8::from_str_radix(&output[2 * at..2 * at + 2], 16).unwrap();
        STANDARD.encode((0..32).map(byte).collect::<Vec<_>>())
    }

    #[test]
    fn the_policy_admits_the_scripts_of_the_page_and_no_other() {
        assert_eq!(LIBRARY_DIGEST, sha256(PLOT_LIBRARY));
        assert_eq!(SCRIPT_DIGEST, sha256(SCRIPT));
        let page = Page::new("</title><script>alert(1)</script>").finish();
        assert!(!page.contains("<script"), "a page without charts needs none: {page}");
        assert!(page.contains("default-src 'none'") && !page.contains("script-src 'unsafe-inline'"));
    }

    #[test]
    fn the_scripts_fetch_nothing_and_make_no_elements_from_text() {
        for written in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "http", "</script"]
        {
            assert!(!SCRIPT.contains(written), "{written}");
        }
        assert!(!PLOT_LIBRARY.contains("</script") && !STYLE.contains("url(") && !STYLE.contains("@import"));
    }
}

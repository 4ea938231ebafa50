//! Shows the figures of a result file without requests: as text, Markdown, CSV or JSON.

use schemars::JsonSchema;
use serde::Serialize;

use super::ascii_plot::replace_unprintable;
use super::markdown::{bullet_list, pipe_table};
use super::peer_files::summary::{PeerSummary, statistic_names};
use super::text_layout::aligned;

/// Version of the JSON object.
const VERSION: u32 = 1;
/// Stated wherever the figures stand.
const NOTE: &str = "only a summary: no distribution";

/// Renders the figures as text.
pub fn text(summary: &PeerSummary) -> String {
    let mut text = String::new();
    for (name, value) in lines(summary) {
        text += &format!("{name:<13}{value}\n");
    }
    if !summary.figures.is_empty() {
        text += &format!("\n{}", aligned(&table(summary)));
    }
    text
}

/// Renders the figures as Markdown.
pub fn markdown(summary: &PeerSummary) -> String {
    let mut text = bullet_list(lines(summary));
    if !summary.figures.is_empty() {
        text += &pipe_table(&table(summary));
    }
    text
}

/// Renders the figures as CSV: `figure,unit,statistic,value`.
pub fn csv(summary: &PeerSummary) -> String {
    let mut text = "figure,unit,statistic,value\n".to_owned();
    for (name, value) in &summary.totals {
        text += &format!("{name},,total,{value}\n");
    }
    for figure in &summary.figures {
        for (statistic, value) in &figure.statistics {
            text += &format!("{},{},{statistic},{value}\n", figure.name, figure.unit);
        }
    }
    text
}

/// The figures as one JSON object.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PeerSummaryDocument<'a> {
    streamgauge_summary: u32,
    note: &'static str,
    #[serde(flatten)]
    summary: &'a PeerSummary,
}

/// Renders the figures as one JSON object.
pub fn json(summary: &PeerSummary) -> String {
    let document = PeerSummaryDocument { streamgauge_summary: VERSION, note: NOTE, summary };
    // Numbers, names and string keys always serialize.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

fn lines(summary: &PeerSummary) -> Vec<(&'static str, String)> {
    let facts = &summary.facts;
    let concurrency = facts.concurrency.map(|slots| format!("at most {slots} open"));
    let known = [
        ("source", Some(format!("{}: figures of {}, by its definitions", summary.path, facts.tool))),
        ("target", (!facts.targets.is_empty()).then(|| facts.targets.join(", "))),
        ("model", facts.model.clone()),
        ("arrivals", facts.arrivals.clone()),
        ("rate", facts.rate.clone()),
        ("concurrency", concurrency),
        ("note", Some(NOTE.to_owned())),
        ("remedy", Some(summary.remedy.clone())),
    ];
    let mut lines: Vec<(&str, String)> =
        known.into_iter().filter_map(|(name, value)| Some((name, replace_unprintable(&value?)))).collect();
    let totals = summary.totals.iter().enumerate();
    lines.extend(totals.map(|(at, (name, value))| (if at == 0 { "totals" } else { "" }, format!("{name} {value:.3}"))));
    lines
}

/// A column for every statistic that a figure has. The first row is the header.
fn table(summary: &PeerSummary) -> Vec<Vec<String>> {
    let has = |name: &&str| {
        summary.figures.iter().any(|figure| figure.statistics.iter().any(|(statistic, _)| statistic == name))
    };
    let names: Vec<&str> = statistic_names().filter(has).collect();
    let header = std::iter::once(String::new()).chain(names.iter().map(|name| (*name).to_owned())).collect();
    let rows = summary.figures.iter().map(|figure| {
        let value = |name: &&str| {
            let found = figure.statistics.iter().find(|(statistic, _)| statistic == name);
            found.map_or("-".to_owned(), |(_, value)| format!("{value:.3}"))
        };
        std::iter::once(format!("{} ({})", figure.name, figure.unit)).chain(names.iter().map(value)).collect()
    });
    std::iter::once(header).chain(rows).collect()
}

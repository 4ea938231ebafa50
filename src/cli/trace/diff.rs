//! The answer of `trace diff` for people: two columns of figures, and how far the rows are apart.

use crate::cli::terminal::{render_table, right_aligned_table};
use crate::measure::time::Gap;
use crate::report::ascii_plot::format_percent;
use crate::stats::length_histogram::DurationSummary;
use crate::trace::diff::{DiffSide, MOMENT_NANOS, TraceDiff};
use crate::trace::info::LengthSummary;

/// A figure's name, and what it is of a trace.
type DiffMetric = (&'static str, fn(&DiffSide) -> Option<String>);

const METRICS: &[DiffMetric] = &[
    ("requests", |side| Some(side.info.requests.to_string())),
    ("span", |side| Some(format!("{:.1} s", side.info.span_s))),
    ("requests per second", |side| side.info.rate.map(|rate| format!("{rate:.3}"))),
    ("CV of gaps", |side| side.info.burstiness.map(|of| format!("{:.2}", of.gap_cv))),
    ("input tokens, mean", |side| side.info.input.map(|of| format!("{:.1}", of.mean))),
    ("input tokens, p50", |side| tokens(side.info.input, |of| of.p50)),
    ("input tokens, p99", |side| tokens(side.info.input, |of| of.p99)),
    ("output tokens, mean", |side| side.info.output.map(|of| format!("{:.1}", of.mean))),
    ("output tokens, p50", |side| tokens(side.info.output, |of| of.p50)),
    ("output tokens, p99", |side| tokens(side.info.output, |of| of.p99)),
    ("prefix reuse, endless cache", |side| side.info.reuse.first().map(|cache| format_percent(cache.token_share))),
    ("prefix reuse, of the server", |side| side.cached_share.map(format_percent)),
    ("sessions", |side| side.info.sessions.map(|sessions| sessions.count.to_string())),
    ("think time, p50", |side| time(side.think, |of| of.p50_ms)),
    ("think time, p90", |side| time(side.think, |of| of.p90_ms)),
    ("aborted", |side| Some(side.info.aborted.to_string())),
    ("TTFT, p50", |side| time(side.ttft, |of| of.p50_ms)),
    ("TTFT, p99", |side| time(side.ttft, |of| of.p99_ms)),
    ("ITL, mean", |side| time(side.itl, |of| of.mean_ms)),
    ("ITL, p99", |side| time(side.itl, |of| of.p99_ms)),
];

/// Everything that was found, of traces that are called by these names.
pub(super) fn render(diff: &TraceDiff, names: [&str; 2]) -> String {
    let mut table = right_aligned_table(&["", "A", "B"]);
    for (name, of) in METRICS {
        let (a, b) = (of(&diff.a), of(&diff.b));
        if a.is_some() || b.is_some() {
            table.add_row([(*name).to_owned(), a.unwrap_or_else(unknown), b.unwrap_or_else(unknown)]);
        }
    }
    let mut text = format!("A  {}\nB  {}\n\n{}\n", names[0], names[1], render_table(&table));
    let (joined, by_turn, moment) = (diff.joined, diff.joined_by_turn, Gap::from_nanos(MOMENT_NANOS));
    text += &match by_turn {
        0 => format!("{joined} rows joined in order of time, within {moment} by length\n"),
        _ => format!(
            "{joined} rows joined: {by_turn} by session and turn, {} in order of time, within {moment} by length\n",
            joined - by_turn
        ),
    };
    for (skipped, name) in diff.skipped.iter().zip(["A", "B"]).filter(|(skipped, _)| **skipped > 0) {
        text += &format!("the first {skipped} rows of {name} have no counterpart and are left out of the comparison\n");
    }
    if let Some(error) = diff.arrival_error {
        let of = |millis| gap(millis).to_string();
        text += &format!(
            "arrival error  mean {}, p50 {}, p90 {}, p99 {}, max {}\n",
            of(error.mean_ms),
            of(error.p50_ms),
            of(error.p90_ms),
            of(error.p99_ms),
            of(error.max_ms)
        );
    }
    let over = &diff.over_time;
    text += &format!(
        "rate           {} of requests in another window of {} s\n",
        format_percent(over.displaced_share),
        over.window_s
    );
    for (name, of) in [("input tokens", diff.input), ("output tokens", diff.output)] {
        text += &of.map(|of| format!("{name:<15}{}\n", of)).unwrap_or_default();
    }
    text
}

fn tokens(of: Option<LengthSummary>, which: fn(LengthSummary) -> f64) -> Option<String> {
    of.map(|of| ((which(of) * 10.0).round() / 10.0).to_string())
}

fn time(of: Option<DurationSummary>, which: fn(DurationSummary) -> f64) -> Option<String> {
    of.map(|of| gap(which(of)).to_string())
}

fn gap(millis: f64) -> Gap {
    Gap::from_nanos((millis * 1e6) as u64)
}

fn unknown() -> String {
    "-".to_owned()
}

//! What a replay shows: figures in place on a terminal, a line at a time elsewhere, and the summary.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::measure::time::Gap;
use crate::replay::run::Progress;
use crate::replay::summary::{Lengths, Spread, Summary};

/// How much there is to do, where that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Whole {
    pub(super) requests: Option<u64>,
    pub(super) length: Option<Gap>,
}

/// Where the run stands, in one line.
pub(super) fn line(now: &Progress, whole: Whole) -> String {
    let summary = &now.summary;
    let of = whole.requests.map_or(String::new(), |requests| format!(" of {requests}"));
    format!(
        "{:.0} s{}: sent {}{of}, {} in flight, {} done, {} not successful, TTFT from planned p50 {} p99 {}, \
         ITL p50 {}, lag p99 {}",
        now.age.as_secs(),
        whole.length.map_or(String::new(), |length| format!(" of {:.0} s", length.as_secs())),
        now.sent,
        now.in_flight,
        summary.requests + summary.outside,
        failed(summary),
        shown(summary.ttft_from_planned, |spread| spread.p50),
        shown(summary.ttft_from_planned, |spread| spread.p99),
        shown(summary.itl, |spread| spread.p50),
        shown(summary.lag, |spread| spread.p99),
    )
}

/// The same, for a terminal.
pub(super) fn block(now: &Progress, whole: Whole) -> String {
    let mut text = line(now, whole).replacen(": ", "\n", 1).replace(", TTFT", "\nTTFT");
    for goodput in &now.summary.goodput {
        _ = write!(text, "\n{}: {} of {} met", goodput.slo, goodput.met, goodput.counted);
    }
    text + "\n"
}

/// The whole run, for people.
pub(super) fn summary(summary: &Summary, sent: u64) -> String {
    let mut text = String::new();
    let outcomes: Vec<String> = summary.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let mut row = |name: &str, value: String| _ = writeln!(text, "{name:<12}{value}");
    row("requests", format!("{sent} sent, {} in the figures: {}", summary.requests, outcomes.join(", ")));
    if summary.outside > 0 {
        row("", format!("{} in warm-up or cool-down", summary.outside));
    }
    let why = summary.troubles.iter().map(|(name, count)| format!("{count} {name}"));
    let refused = summary.statuses.iter().filter(|(status, _)| **status >= 300);
    let why: Vec<String> = why.chain(refused.map(|(status, count)| format!("{count} answered {status}"))).collect();
    if !why.is_empty() {
        row("", why.join(", "));
    }
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    row("rate", format!("{} /s planned, {} /s sent", rate(summary.planned_rate), rate(summary.sent_rate)));
    if summary.held > 0 {
        row("", format!("{} held back by --max-in-flight; the wait is in their latency", summary.held));
    }
    row("in flight", format!("{} at most", summary.most_in_flight));
    row("input", lengths(&summary.input) + &cached(summary));
    row("output", format!("{}, {:.0} tokens/s", lengths(&summary.output), summary.output_rate));
    for goodput in &summary.goodput {
        let share = goodput.met as f64 / goodput.counted.max(1) as f64 * 100.0;
        row(
            "goodput",
            format!(
                "{}: {} of {} met it from the planned moment ({share:.1} %), {:.2} /s",
                goodput.slo, goodput.met, goodput.counted, goodput.per_second
            ),
        );
    }
    text.push('\n');
    text + &latencies(summary)
}

fn lengths(lengths: &Lengths) -> String {
    let mut text = format!("{} tokens", lengths.tokens);
    if lengths.compared > 0 {
        let off = lengths.off as f64 / lengths.compared as f64;
        _ = write!(text, ", {} of {} as long as planned, off by {off:.1} on average", lengths.exact, lengths.compared);
    }
    text
}

fn cached(summary: &Summary) -> String {
    let share = summary.cached as f64 / summary.input.tokens.max(1) as f64 * 100.0;
    if summary.cached > 0 { format!(", {share:.1} % from the server's cache") } else { String::new() }
}

/// Requests that did not succeed, warm-up and cool-down left out.
fn failed(summary: &Summary) -> u64 {
    summary.requests - summary.outcomes.get("success").copied().unwrap_or(0)
}

fn latencies(summary: &Summary) -> String {
    let rows = [
        ("TTFT from planned", summary.ttft_from_planned),
        ("TTFT from sent", summary.ttft_from_sent),
        ("ITL", summary.itl),
        ("TPOT", summary.tpot),
        ("E2E from planned", summary.e2e_from_planned),
        ("E2E from sent", summary.e2e_from_sent),
        ("send lag", summary.lag),
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    table.set_header(["", "count", "mean", "p50", "p90", "p99", "p99.9", "max"]);
    for (name, spread) in rows {
        let Some(spread) = spread else { continue };
        let mut cells =
            vec![name.to_owned(), spread.count.to_string(), Gap::from_nanos(spread.mean as u64).to_string()];
        let values = [spread.p50, spread.p90, spread.p99, spread.p999, spread.max];
        cells.extend(values.map(|nanos| Gap::from_nanos(nanos).to_string()));
        table.add_row(cells);
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn shown(spread: Option<Spread>, which: fn(Spread) -> u64) -> String {
    spread.map_or("-".to_owned(), |spread| Gap::from_nanos(which(spread)).to_string())
}

//! The answer of `trace info` for people: figures, and pictures of rate and lengths.

use super::notes;
use crate::measure::time::Gap;
use crate::report::ascii_plot::{bar, columns, format_percent, table_cell, with_thousands};
use crate::report::text_layout::aligned;
use crate::trace::info::{LengthSummary, PrefixCacheStats, TraceInfo, TraceWindow};
use crate::trace_file::header::TraceHeader;

/// Width and colour support of stdout.
#[derive(Clone, Copy, Debug)]
pub(super) struct InfoScreen {
    width: usize,
    plain: bool,
}

/// Columns of the names of figures.
const LABEL: usize = 15;
/// Lines of the picture of the rate.
const RATE_PLOT_LINES: u64 = 4;

impl InfoScreen {
    pub(super) fn of_stdout(plain: bool) -> Self {
        Self { width: crate::cli::terminal::columns(), plain }
    }
}

/// Everything that was found.
pub(super) fn render(info: &TraceInfo, header: &TraceHeader, screen: &InfoScreen) -> String {
    let mut text = String::new();
    for (name, value) in lines(info, header) {
        text += &format!("{name:<LABEL$}{value}\n");
    }
    text += &rate(info, screen);
    text += &windows(info);
    text += &histograms(info, screen);
    for warning in &info.warnings {
        text += &format!("\nwarning: {}\n  advice: {}\n", warning.text(), warning.advice());
    }
    text
}

fn lines(info: &TraceInfo, header: &TraceHeader) -> Vec<(&'static str, String)> {
    let mut lines = vec![("requests", with_thousands(info.requests))];
    let rate = info.rate.map(|rate| format!(", {rate:.3} requests per second")).unwrap_or_default();
    lines.push(("span", format!("{}{rate}", span(info.span_s))));
    lines.extend(info.input.as_ref().map(|d| ("input tokens", distribution(d))));
    lines.extend(info.output.as_ref().map(|d| ("output tokens", distribution(d))));
    lines.extend(info.total.as_ref().map(|d| ("input + output", distribution(d))));
    if let Some(b) = &info.burstiness {
        let of = |value: Option<f64>| value.map_or("unknown".to_owned(), |value| format!("{value:.2}"));
        lines.push(("burstiness", format!("CV of gaps {:.2}; a Poisson process has 1", b.gap_cv)));
        lines.push(("", format!("dispersion {} at 1 s, {} at 10 s", of(b.dispersion_1s), of(b.dispersion_10s))));
        lines.push(("", format!("peak {} times the mean at 1 s, {} at 10 s", of(b.peak_1s), of(b.peak_10s))));
    }
    let mut header = header.clone();
    if let Some((blocks, size)) = header.blocks.as_mut().zip(info.fitting_block_size) {
        blocks.size = size;
    }
    lines.extend(notes::describe_blocks(&header).map(|blocks| ("prefixes", blocks)));
    lines.extend(info.reuse.iter().map(|cache| ("", reuse(cache))));
    lines.extend(info.hit_percent.as_ref().filter(|_| !info.reuse.is_empty()).map(|d| {
        let LengthSummary { p25, p50, p75, p90, .. } = *d;
        ("", format!("of single requests: p25 {p25:.0} %, p50 {p50:.0} %, p75 {p75:.0} %, p90 {p90:.0} %"))
    }));
    if let Some(sessions) = info.sessions {
        let about = if sessions.estimated { "about " } else { "" };
        let turns = sessions.requests as f64 / sessions.count.max(1) as f64;
        lines.push(("sessions", format!("{about}{}, {turns:.1} turns each", with_thousands(sessions.count))));
    }
    let list = |counts: Vec<(&str, u64)>| {
        let list: Vec<String> =
            counts.iter().map(|(name, n)| format!("{} {}", table_cell(name), with_thousands(*n))).collect();
        list.join(", ")
    };
    if !info.models.is_empty() {
        let mut models: Vec<(&str, u64)> = info.models.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        models.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let more = models.len().saturating_sub(8);
        models.truncate(8);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        lines.push(("models", list(models) + &more));
    }
    if !info.outcomes.is_empty() {
        lines.push(("outcomes", list(info.outcomes.iter().map(|(name, n)| (*name, *n)).collect())));
    }
    if info.aborted > 0 {
        lines.push(("aborted", format!("{} by their clients", with_thousands(info.aborted))));
    }
    lines
}

fn distribution(d: &LengthSummary) -> String {
    let LengthSummary { sum, mean, p25, p50, p75, p90, p99, max, .. } = *d;
    format!(
        "{} in all; mean {mean:.0}, p25 {}, p50 {}, p75 {}, p90 {}, p99 {}, max {}",
        with_thousands(sum),
        tenths(p25),
        tenths(p50),
        tenths(p75),
        tenths(p90),
        tenths(p99),
        with_thousands(max)
    )
}

/// A length to a tenth of a token, where it is not whole.
fn tenths(length: f64) -> String {
    let tenths = (length * 10.0).round() as u64;
    let whole = with_thousands(tenths / 10);
    if tenths.is_multiple_of(10) { whole } else { format!("{whole}.{}", tenths % 10) }
}

fn reuse(cache: &PrefixCacheStats) -> String {
    let whose =
        cache.blocks.map_or("an endless cache".to_owned(), |n| format!("a cache of {} blocks", with_thousands(n)));
    let sampled = match cache.sampled_one_of {
        1 => String::new(),
        n => format!(" (estimated from one id of {n})"),
    };
    format!(
        "{whose} has {:.1} % of tokens, {:.1} % in the mean of requests; {} of {} blocks{sampled}",
        cache.token_share * 100.0,
        cache.request_share * 100.0,
        with_thousands(cache.hit_blocks),
        with_thousands(cache.asked_blocks)
    )
}

/// The rate over time: columns of eighths of a line.
fn rate(info: &TraceInfo, screen: &InfoScreen) -> String {
    let windows = &info.rate_over_time;
    let drawn = windows.len().min(screen.width.saturating_sub(LABEL));
    if drawn < 2 {
        return String::new();
    }
    let (mut sums, mut rest) = (vec![(0_u64, 0_u64); drawn], info.span_s.ceil() as u64);
    for (at, count) in windows.iter().enumerate() {
        let (sum, seconds) = &mut sums[at * drawn / windows.len()];
        // The last window ends where the trace does.
        let of = info.rate_window_s.min(rest).max(1);
        rest = rest.saturating_sub(of);
        (*sum, *seconds) = (*sum + count, *seconds + of);
    }
    let rates: Vec<f64> = sums.iter().map(|(sum, seconds)| *sum as f64 / *seconds as f64).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mut text = "\nrequests per second over time\n".to_owned();
    for (at, line) in columns(&rates, most, RATE_PLOT_LINES, screen.plain).iter().enumerate() {
        let label = if at == 0 { format!("{most:.2}") } else { String::new() };
        text += format!("{label:>width$} {line}", width = LABEL - 1).trim_end();
        text.push('\n');
    }
    text +=
        &format!("{:>width$} 0s{:>rest$}\n", "0", span(info.span_s), width = LABEL - 1, rest = drawn.saturating_sub(2));
    text
}

/// The table by window; a trace within one window has none.
fn windows(info: &TraceInfo) -> String {
    if info.windows.len() < 2 {
        return String::new();
    }
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let row = |of: &TraceWindow| {
        let hits = of.hit_rate.filter(|_| !info.reuse.is_empty());
        let hits = hits.map_or("-".to_owned(), format_percent);
        let rate = format!("{:.3}", of.rate);
        vec![
            span(of.from_s as f64),
            with_thousands(of.requests),
            rate,
            number(of.input_mean),
            number(of.output_mean),
            hits,
        ]
    };
    let head = ["from", "requests", "req/s", "input mean", "output mean", "hit rate"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(info.windows.iter().map(row)).collect();
    format!("\n{}", aligned(&rows))
}

/// Lengths: a line per power of two.
fn histograms(info: &TraceInfo, screen: &InfoScreen) -> String {
    let mut text = String::new();
    for (name, bins) in [("input tokens", &info.input_histogram), ("output tokens", &info.output_histogram)] {
        let most = bins.iter().map(|(_, count)| *count).max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        text += &format!("\n{name}\n");
        let room = screen.width.saturating_sub(LABEL + 9).min(60);
        for (edge, count) in bins {
            let eighths = (*count as f64 / most as f64 * room as f64 * 8.0).ceil() as usize;
            let bar = bar(eighths, screen.plain);
            text += format!(
                "{:>width$} {bar} {}",
                format!("≤ {}", with_thousands(*edge)),
                with_thousands(*count),
                width = LABEL - 1
            )
            .trim_end();
            text.push('\n');
        }
    }
    if screen.plain { text.replace('≤', "<=") } else { text }
}

fn span(seconds: f64) -> String {
    match seconds {
        s if s >= 7_200.0 => format!("{:.1}h", s / 3_600.0),
        s if s >= 10.0 => format!("{s:.0}s"),
        s => Gap::from_nanos((s * 1e9) as u64).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_between_two_lengths_is_told_to_a_tenth() {
        assert_eq!([1_234.0, 1_234.04, 1_234.56, 0.5].map(tenths), ["1,234", "1,234", "1,234.6", "0.5"]);
    }

    #[test]
    fn a_span_is_told_as_closely_as_the_rate_beside_it() {
        let spans = [0.0625, 1.5, 9.5, 10.4, 3_537.0, 7_200.0].map(span);
        assert_eq!(spans, ["62.5ms", "1.50s", "9.50s", "10s", "3537s", "2.0h"]);
    }
}

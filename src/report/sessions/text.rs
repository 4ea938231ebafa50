//! Sessions of a report as lines and tables.

use super::{SessionSummary, TurnWaits};
use crate::report::ascii_plot::{format_percent, format_value, with_thousands};
use crate::report::metric::MetricUnit;
use crate::stats::length_histogram::DurationSummary;
use crate::stats::session_histograms::SessionDistributions;

/// Heading of the section.
pub(in crate::report) const TITLE: &str = "Sessions: turns, model time and tool time";

/// Returns named lines; a line without a name continues the previous one.
pub(in crate::report) fn lines(summary: &SessionSummary) -> Vec<(&'static str, String)> {
    let counted = |count: u64, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{} {one}s", with_thousands(count)),
    };
    let without = match summary.without_session {
        0 => String::new(),
        count => format!("; {} without a session", counted(count, "request")),
    };
    let all =
        format!("{} with {}{without}", counted(summary.sessions, "session"), counted(summary.requests, "request"));
    let mut lines = vec![("sessions", all)];
    if summary.began_before > 0 {
        let began = with_thousands(summary.began_before);
        lines.push(("", format!("{began} began before the first request here: their figures are lower bounds")));
    }
    if let Some(share) = summary.model_share {
        let [model, tool] = [share, 1.0 - share].map(format_percent);
        lines.push(("time", format!("{model} in the model, {tool} in tools and pauses")));
    }
    if let [Some(first), Some(later)] = summary.cached_shares().map(|share| share.map(format_percent)) {
        lines.push(("cache", format!("{first} of the prompt tokens of first turns, {later} of later turns")));
    }
    for (at, goodput) in summary.goodput.iter().enumerate() {
        let (met, counted) = (with_thousands(goodput.met), with_thousands(goodput.counted));
        let share = format_percent(goodput.share);
        let text = format!("{}: {met} of {counted} sessions met it in every turn ({share})", goodput.slo);
        lines.push((if at == 0 { "goodput" } else { "" }, text));
    }
    if let Some(agents) = &summary.agents {
        let text = format!(
            "{} in {}, at most {} in one; {} of the jobs' model time",
            counted(agents.sub_agents, "sub-agent"),
            counted(agents.jobs, "job"),
            with_thousands(agents.most_per_job),
            format_percent(agents.model_share)
        );
        lines.push(("sub-agents", text));
        let by = [(agents.by_row, "named by the row"), (agents.by_prompt, "by the prompt's prefix")];
        let missing = [(agents.without_parent, "with a parent that has no request here")];
        let known = by.into_iter().chain(missing).filter(|(count, _)| *count > 0);
        let known: Vec<String> = known.map(|(count, how)| format!("{} {how}", with_thousands(count))).collect();
        lines.push(("", format!("parents: {}", known.join(", "))));
        if agents.is_incomplete {
            lines.push(("", "more sessions than a report follows: sub-agents are missing".to_owned()));
        }
    }
    lines
}

/// Builds the table of turns and times. The first row is the header.
pub(in crate::report) fn time_table(summary: &SessionSummary) -> Vec<Vec<String>> {
    let header = ["", "count", "avg", "p50", "p90", "p99", "max"].map(str::to_owned).to_vec();
    let jobs = summary.agents.iter().flat_map(|agents| rows("job", &agents.job));
    std::iter::once(header).chain(rows("session", &summary.distributions)).chain(jobs).collect()
}

fn rows(of: &str, distributions: &SessionDistributions) -> Vec<Vec<String>> {
    let SessionDistributions { turns, model, tool, time_to_last_turn } = distributions;
    let time = |name: &str, time: &DurationSummary| {
        let DurationSummary { count, mean_ms, p50_ms, p90_ms, p99_ms, max_ms } = *time;
        let mut row = vec![format!("{of}: {name}"), with_thousands(count)];
        row.extend([mean_ms, p50_ms, p90_ms, p99_ms, max_ms].map(|value| format_value(value, MetricUnit::Time)));
        row
    };
    let number = |value: f64| format_value(value, MetricUnit::Tokens);
    let mut count = vec![format!("{of}: turns"), with_thousands(model.count)];
    count.extend([turns.mean, turns.p50, turns.p90].map(number));
    count.extend(["-".to_owned(), with_thousands(turns.max)]);
    vec![count, time("model time", model), time("tool time", tool), time("time to last turn", time_to_last_turn)]
}

/// Builds the table of positions in a session. The first row is the header.
pub(in crate::report) fn turn_table(summary: &SessionSummary) -> Vec<Vec<String>> {
    let header = ["turn", "requests", "prompt tokens", "cached", "TTFT p50"].map(str::to_owned).to_vec();
    let row = |TurnWaits { figures: turn, ttft_p50_ms }: &TurnWaits| {
        let dash = || "-".to_owned();
        vec![
            turn.turn.clone(),
            with_thousands(turn.requests),
            if turn.input_tokens > 0 { with_thousands(turn.input_tokens) } else { dash() },
            turn.cached_share.map_or_else(dash, format_percent),
            ttft_p50_ms.map_or_else(dash, |value| format_value(value, MetricUnit::Time)),
        ]
    };
    std::iter::once(header).chain(summary.by_turn.iter().map(row)).collect()
}

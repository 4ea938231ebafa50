//! A report as CSV with one line per number and five columns, so that any tool can filter it.
//!
//! The columns are `scope,metric,unit,stat,value`. The scope is `context` for what produced the results, `all`, `from=10s` for a slice, or the group's values as
//! in `model=a;status=200`. Counts, rates and goodput are metrics too. Runs add the scopes `fidelity` and `warm-up`,
//! and `production` with `--source`. Sessions with several turns have the scope `sessions`. Server metrics have the scope `server=URL`, or `from=10s;server=URL` in a slice.

use super::ascii_plot::replace_unprintable;
use super::context::ReportContext;
use super::distribution::{MetricDistribution, percentile_name};
use super::fidelity::Fidelity;
use super::servers::{ServerSummary, Trend};
use super::sessions::SessionSummary;
use super::{Report, RequestSummary};
use crate::stats::interval::Interval;

/// Renders the report.
pub fn render(report: &Report) -> String {
    let mut text = "scope,metric,unit,stat,value\n".to_owned();
    context(&mut text, &report.context);
    summary(&mut text, "all", &report.whole);
    report.servers.iter().for_each(|of| server(&mut text, &format!("server={}", of.url), of));
    if let Some(sessions) = &report.sessions {
        session_rows(&mut text, sessions);
    }
    if let Some(fidelity) = &report.fidelity {
        fidelity_rows(&mut text, fidelity);
    }
    if let Some(warm_up) = &report.warm_up {
        summary(&mut text, "warm-up", warm_up);
    }
    if let Some(production) = &report.production {
        summary(&mut text, "production", &production.summary);
    }
    for slice in &report.slices {
        summary(&mut text, &format!("from={}s", slice.from_s), &slice.summary);
        for of in &slice.servers {
            server(&mut text, &format!("from={}s;server={}", slice.from_s, of.url), of);
        }
    }
    for group in &report.groups {
        let values: Vec<String> = group.by.iter().map(|(key, value)| format!("{key}={value}")).collect();
        summary(&mut text, &values.join(";"), &group.summary);
    }
    text
}

/// One line per fact.
pub(super) fn context(text: &mut String, context: &ReportContext) {
    for (name, value) in context.facts() {
        *text += &format!("context,{},,,{}\n", name.key(), field(value));
    }
}

pub(super) fn summary(text: &mut String, scope: &str, summary: &RequestSummary) {
    let scope = field(scope);
    let mut line = |metric: &str, unit: &str, stat: &str, value: String| {
        *text += &format!("{scope},{},{unit},{},{value}\n", field(metric), field(stat));
    };
    line("requests", "requests", "count", summary.requests.to_string());
    for (outcome, count) in &summary.outcomes {
        line("requests", "requests", outcome, count.to_string());
    }
    for (status, count) in &summary.statuses {
        line("status", "requests", &status.to_string(), count.to_string());
    }
    line("window", "s", "length", summary.seconds.to_string());
    let throughput = &summary.throughput;
    for (stat, value) in [
        ("requests", throughput.requests),
        ("input tokens", throughput.input_tokens),
        ("output tokens", throughput.output_tokens),
        ("total tokens", throughput.total_tokens),
    ] {
        line("throughput", "1/s", stat, value.to_string());
    }
    for goodput in &summary.goodput {
        let name = format!("goodput {}", goodput.slo);
        line(&name, "requests", "met", goodput.met.to_string());
        line(&name, "requests", "counted", goodput.counted.to_string());
        if let Some(share) = goodput.share {
            line(&name, "1", "share", share.to_string());
        }
        line(&name, "1/s", "requests", goodput.requests_per_second.to_string());
        line(&name, "1/s", "tokens", goodput.tokens_per_second.to_string());
    }
    summary.metrics.iter().for_each(|metric| distribution(&mut line, metric.metric.key(), metric));
}

fn distribution(line: &mut impl FnMut(&str, &str, &str, String), name: &str, of: &MetricDistribution) {
    line(name, "values", "count", of.count.to_string());
    for (stat, value) in of.columns() {
        line(name, of.metric.unit().name(), &stat, value.to_string());
    }
    if let Some(confidence) = &of.confidence {
        let percentiles =
            confidence.percentiles.iter().map(|(percent, interval)| (percentile_name(*percent), *interval));
        line(name, "values", "effective count", confidence.effective_count.to_string());
        for (stat, interval) in std::iter::once(("avg".to_owned(), confidence.avg)).chain(percentiles) {
            if let Ok(Interval { low, high }) = interval {
                line(name, of.metric.unit().name(), &format!("{stat} low"), low.to_string());
                line(name, of.metric.unit().name(), &format!("{stat} high"), high.to_string());
            }
        }
    }
}

fn session_rows(text: &mut String, sessions: &SessionSummary) {
    let mut line = |metric: &str, unit: &str, stat: &str, value: String| {
        *text += &format!("sessions,{},{unit},{},{value}\n", field(metric), field(stat));
    };
    for (stat, count) in [
        ("count", sessions.sessions),
        ("began before", sessions.began_before),
        ("sub-agents", sessions.agents.as_ref().map_or(0, |agents| agents.sub_agents)),
    ] {
        line("sessions", "sessions", stat, count.to_string());
    }
    sessions.model_share.into_iter().for_each(|share| line("model time", "1", "share", share.to_string()));
    let of = &sessions.distributions;
    for (stat, value) in [("avg", of.turns.mean), ("p50", of.turns.p50), ("p90", of.turns.p90)] {
        line("turns", "requests", stat, value.to_string());
    }
    line("turns", "requests", "max", of.turns.max.to_string());
    let times = [("model time", of.model), ("tool time", of.tool), ("time to last turn", of.time_to_last_turn)];
    for (name, of) in times {
        let stats =
            [("avg", of.mean_ms), ("p50", of.p50_ms), ("p90", of.p90_ms), ("p99", of.p99_ms), ("max", of.max_ms)];
        stats.iter().for_each(|(stat, value)| line(name, "ms", stat, value.to_string()));
    }
    for goodput in &sessions.goodput {
        let name = format!("goodput {}", goodput.slo);
        line(&name, "sessions", "met", goodput.met.to_string());
        line(&name, "sessions", "counted", goodput.counted.to_string());
    }
    for turn in sessions.by_turn.iter().map(|turn| &turn.figures) {
        let name = format!("turn {}", turn.turn);
        line(&name, "requests", "count", turn.requests.to_string());
        turn.cached_share.into_iter().for_each(|share| line(&name, "1", "cached share", share.to_string()));
    }
}

fn fidelity_rows(text: &mut String, fidelity: &Fidelity) {
    let mut line = |metric: &str, unit: &str, stat: &str, value: String| {
        *text += &format!("fidelity,{metric},{unit},{stat},{value}\n");
    };
    let Fidelity { arrival_error, rate, isl, osl, prefix, think, aborts } = fidelity;
    if let Some(error) = arrival_error {
        distribution(&mut line, "arrival_error", error);
    }
    if let Some(rate) = rate {
        for (stat, value) in [("planned", rate.planned_per_second), ("sent", rate.sent_per_second)] {
            value.into_iter().for_each(|value| line("rate", "1/s", stat, value.to_string()));
        }
        line("rate", "1", "displaced_share", rate.displaced_share.to_string());
    }
    let abort_tokens = aborts.and_then(|aborts| aborts.tokens);
    for (name, of) in [("isl", isl), ("osl", osl), ("abort_tokens", &abort_tokens)] {
        let Some(of) = of else { continue };
        line(name, "values", "compared", of.compared.to_string());
        line(name, "1", "exact_share", of.exact_share.to_string());
        line(name, "tokens", "mean_error", of.mean_error.to_string());
        line(name, "tokens", "mean_absolute_error", of.mean_absolute_error.to_string());
        line(name, "1", "ks", of.ks.to_string());
    }
    if let Some(prefix) = prefix {
        line("prefix", "1", "offered_share", prefix.offered_share.to_string());
        prefix.cached_share.into_iter().for_each(|share| line("prefix", "1", "cached_share", share.to_string()));
    }
    for (stat, of) in think.iter().flat_map(|think| [("planned", think.planned), ("achieved", think.achieved)]) {
        for (name, value) in [("avg", of.mean_ms), ("p50", of.p50_ms), ("p90", of.p90_ms), ("max", of.max_ms)] {
            line("think", "ms", &format!("{stat} {name}"), value.to_string());
        }
    }
    for (stat, count) in aborts.iter().flat_map(|aborts| [("planned", aborts.planned), ("done", aborts.done)]) {
        line("aborts", "requests", stat, count.to_string());
    }
}

fn server(text: &mut String, scope: &str, server: &ServerSummary) {
    let scope = field(scope);
    let mut line = |metric: &str, unit: &str, stat: &str, value: f64| {
        *text += &format!("{scope},{metric},{unit},{stat},{value}\n");
    };
    line("scrapes", "scrapes", "count", server.scrapes as f64);
    line("scrapes", "scrapes", "failed", server.failed as f64);
    for (figure, went) in &server.figures {
        match *went {
            Trend::Level { unit, avg, min, max } => {
                let stats = [("avg", avg), ("min", min), ("max", max)];
                stats.iter().for_each(|(stat, value)| line(figure.label(), unit, stat, *value));
            }
            Trend::Counter { unit, total, per_second } => {
                line(figure.label(), unit, "total", total);
                line(figure.label(), &format!("{unit}/s"), "rate", per_second);
            }
        }
    }
    if let Some(rate) = server.prefix_hit_rate {
        line("prefix hit rate", "1", "share", rate);
    }
}

/// Formats a field on one line and quotes it if necessary. A field that a spreadsheet would read as a formula gets a
/// leading apostrophe.
pub(super) fn field(text: &str) -> String {
    let text = replace_unprintable(text);
    let text = if text.starts_with(['=', '+', '-', '@']) && text.len() > 1 { format!("'{text}") } else { text };
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_quoted_where_it_must_be() {
        assert_eq!(field("model=a"), "model=a");
        assert_eq!(field("model=a,b \"c\""), "\"model=a,b \"\"c\"\"\"");
        assert_eq!(field("=1+1"), "'=1+1");
        assert_eq!(field("a\n\u{1b}[2J\u{202e}b"), "a??[2J?b");
    }
}

//! The time section as lines and a table, shared by all formats for people.

use super::super::ascii_plot::format_percent;
use super::super::ascii_plot::format_value;
use super::super::metric::MetricUnit;
use super::super::servers::ServerSummary;
use super::{LoadEffect, SliceAdvice, SteadyState, TimeCourse};
use crate::stats::interval::Interval;

/// Returns named lines: windows, warm-up, steady state, and slices.
pub fn lines(course: &TimeCourse, servers: &[ServerSummary]) -> Vec<(&'static str, String)> {
    let mut lines = vec![("window", window(course, servers))];
    match &course.steady_state {
        None => lines.push(("steady state", "unknown: fewer than 200 requests".to_owned())),
        Some(steady) => lines.extend(steady_lines(steady)),
    }
    lines.extend(course.load_effect.map(|effect| ("load effect", load_effect(effect))));
    lines.extend(course.slice_advice.map(|advice| ("slices", slice_advice(advice))));
    lines
}

fn window(course: &TimeCourse, servers: &[ServerSummary]) -> String {
    let figures = format!("{:.1}–{:.1} s: from the first start to the last end", course.from_s, course.to_s);
    let of = |server: &ServerSummary| format!("{:.1}–{:.1} s", server.from_s, server.to_s);
    let mut covered: Vec<String> = servers.iter().filter(|server| server.scrapes > 0).map(of).collect();
    covered.dedup();
    match covered.is_empty() {
        true => figures,
        false => format!("{figures}; the servers' figures cover {}", covered.join(", ")),
    }
}

fn steady_lines(steady: &SteadyState) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    lines.push((
        "warm-up",
        match (steady.warm_up_s, steady.warm_up_metric) {
            (Some(until), Some(metric)) => format!(
                "ends at {until:.1} s by {metric}: its {} requests are in the figures; --warmup {:.0}s leaves them out",
                steady.warm_up_requests,
                until.ceil()
            ),
            _ if steady.found => "none found: the first requests are like the later ones".to_owned(),
            _ => "unknown: the run has no steady state to compare with".to_owned(),
        },
    ));
    lines.push((
        "steady state",
        match steady.found {
            true => format!("{:.1}–{:.1} s", steady.from_s, steady.to_s),
            false => "none found: a figure still changes at the middle of the run; measure longer".to_owned(),
        },
    ));
    lines
}

fn load_effect(effect: LoadEffect) -> String {
    let LoadEffect { slice_s, ms_per_request, interval, r_squared } = effect;
    let explained =
        format!("the requests of {slice_s:.1} s explain {} of the variance of TTFT", format_percent(r_squared));
    match interval {
        Some(Interval { low, high }) => {
            format!("{explained}: {ms_per_request:+.2} ms per further request, 95 % interval {low:+.2} to {high:+.2}")
        }
        None => explained,
    }
}

fn slice_advice(advice: SliceAdvice) -> String {
    let SliceAdvice { seconds, p99_seconds, requested_s, requests_per_slice, run_too_short } = advice;
    let mut text = match requested_s.zip(requests_per_slice) {
        Some((length, requests)) => {
            format!("{requests:.0} requests per slice of {length} s; means need {seconds} s, p99 needs {p99_seconds} s")
        }
        None => format!("--slice {seconds}s suits means, {p99_seconds}s suits p99"),
    };
    if run_too_short {
        text += "; the run is too short for ten of them";
    }
    text
}

/// Builds the table of trends; `None` without any. The first row is the header.
pub fn trend_table(course: &TimeCourse) -> Option<Vec<Vec<String>>> {
    let head = ["trend of the mean", "verdict", "per minute", "95 % interval", "over the steady state", "p"];
    let row = |trend: &super::FigureTrend| {
        let signed = |value: f64| {
            let sign = if value < 0.0 { "-" } else { "+" };
            sign.to_owned() + &format_value(value.abs(), MetricUnit::Time)
        };
        vec![
            trend.of.label(true).to_owned(),
            trend.verdict.label().to_owned(),
            signed(trend.per_minute),
            format!("{} to {}", signed(trend.interval.low), signed(trend.interval.high)),
            format!("{:+.1} %", trend.relative_rise * 100.0),
            format!("{:.3}", trend.p_value),
        ]
    };
    let rows: Vec<Vec<String>> = course.trends.iter().map(row).collect();
    (!rows.is_empty()).then(|| std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect())
}

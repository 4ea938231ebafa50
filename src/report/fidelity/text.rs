//! Fidelity as text lines and tables, shared by all formats for people.

use super::super::Report;
use super::super::ascii_plot::{format_percent, format_value, with_thousands};
use super::super::distribution::MetricDistribution;
use super::super::metric::{MetricUnit, ReportMetric};
use super::super::tables::{header_row, row};
use super::{AbortCounts, Fidelity, PrefixFidelity, RateFidelity, ThinkTimes};
use crate::stats::length_histogram::DurationSummary;

/// Metrics to compare: (production, run).
const PRODUCTION_METRICS: [(ReportMetric, ReportMetric); 4] = [
    (ReportMetric::Ttft, ReportMetric::TtftFromPlanned),
    (ReportMetric::Itl, ReportMetric::Itl),
    (ReportMetric::Tpot, ReportMetric::Tpot),
    (ReportMetric::E2e, ReportMetric::E2eFromPlanned),
];

/// Returns named lines; empty for a run without a plan.
pub(in crate::report) fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let Some(fidelity) = &report.fidelity else { return Vec::new() };
    let Fidelity { arrival_error, rate, isl, osl, prefix, think, aborts } = fidelity;
    let lines = [
        ("arrivals", arrival_error.as_ref().map(arrivals)),
        ("rate", rate.as_ref().map(rates)),
        ("in flight", in_flight(report)),
        ("ISL", isl.map(|of| of.to_string())),
        ("OSL", osl.map(|of| of.to_string())),
        ("prefixes", prefix.map(prefixes)),
        ("think time", think.map(think_times)),
        ("aborts", aborts.map(abort_counts)),
    ];
    lines.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

/// Returns the planned and sent rate if there is more than one window.
pub(in crate::report) fn over_time(report: &Report) -> Option<&RateFidelity> {
    report.fidelity.as_ref()?.rate.as_ref().filter(|rate| rate.planned.len().max(rate.sent.len()) > 1)
}

/// Builds the table of production's and the run's latencies. The first row is the header.
pub(in crate::report) fn production_table(report: &Report, shown: &[f64]) -> Option<Vec<Vec<String>>> {
    // Both sides need a percentile for a comparison.
    let shown: Vec<f64> = shown.iter().copied().filter(|percent| *percent <= 99.9).collect();
    let shown = &shown[..];
    let production = &report.production.as_ref()?.summary;
    let pair = |(theirs, ours): &(ReportMetric, ReportMetric)| {
        let (theirs, replayed) = (production.metric(*theirs)?, report.whole.metric(*ours)?);
        let name = ours.label(true);
        Some([row(&format!("{}, production", theirs.metric.label(false)), theirs, shown), row(name, replayed, shown)])
    };
    let rows: Vec<Vec<String>> = PRODUCTION_METRICS.iter().filter_map(pair).flatten().collect();
    (!rows.is_empty()).then(|| std::iter::once(header_row(shown)).chain(rows).collect())
}

fn arrivals(error: &MetricDistribution) -> String {
    let time = |time: f64| format_value(time, MetricUnit::Time);
    let percentiles = error.percentiles.iter().map(|(percent, of)| format!("p{percent} {}", time(*of)));
    let percentiles: Vec<String> = percentiles.collect();
    format!("later than planned by {}, at most {}", percentiles.join(", "), time(error.max))
}

fn rates(rate: &RateFidelity) -> String {
    let format_rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    format!(
        "{} requests/s planned, {} sent; {} of requests in another window of {} s",
        format_rate(rate.planned_per_second),
        format_rate(rate.sent_per_second),
        format_percent(rate.displaced_share),
        rate.window_s
    )
}

fn in_flight(report: &Report) -> Option<String> {
    let ours = report.in_flight.as_ref()?;
    let theirs = report.production.as_ref().and_then(|production| production.in_flight.as_ref());
    let theirs = theirs
        .map(|of| format!("; in production {:.1} on average, {} at most", of.mean, with_thousands(of.max.into())));
    // A source does not know how many requests the others have in flight.
    let apart = if report.sources.len() > 1 { " at each source by itself" } else { "" };
    let (max, theirs) = (with_thousands(ours.max.into()), theirs.unwrap_or_default());
    Some(format!("{:.1} on average, {max} at most{apart}{theirs}", ours.mean))
}

fn prefixes(prefix: PrefixFidelity) -> String {
    let cached = prefix.cached_share.map_or("the server reports no cached tokens".to_owned(), |share| {
        format!("{} from the server's cache", format_percent(share))
    });
    format!(
        "{} of prompt tokens sent before, in {} of {} blocks; {cached}",
        format_percent(prefix.offered_share),
        with_thousands(prefix.repeated_blocks),
        with_thousands(prefix.blocks)
    )
}

fn think_times(think: ThinkTimes) -> String {
    let times_of = |of: DurationSummary| [of.p50_ms, of.p90_ms, of.max_ms].map(|of| format_value(of, MetricUnit::Time));
    let ([p50, p90, max], [real_p50, real_p90, real_max]) = (times_of(think.planned), times_of(think.achieved));
    format!(
        "p50 {p50}, p90 {p90}, at most {max} planned; p50 {real_p50}, p90 {real_p90}, at most {real_max} achieved, of {}",
        with_thousands(think.planned.count)
    )
}

fn abort_counts(aborts: AbortCounts) -> String {
    let tokens = aborts.tokens.map_or(String::new(), |tokens| format!("; tokens {tokens}"));
    format!("{} planned, {} done{tokens}", with_thousands(aborts.planned), with_thousands(aborts.done))
}

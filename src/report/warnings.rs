//! Collects and ranks the warnings of a report.

use super::RequestSummary;
use super::accumulate::{RequestStats, UNKNOWN_OUTCOME};
use super::fidelity::Fidelity;
use super::metric::ReportMetric;
use super::saturation::{LoadSample, queue_growth, request_growth};
use super::servers::{ServerSummary, Trend};
use super::source::ReportSource;
use super::time_course::TimeCourse;
use super::warning::{MIN_TAIL_VALUES, ReportWarning};
use crate::measure::record::{CountSource, LaterTurns, Outcome};
use crate::measure::server_metrics::ServerMetric;
use crate::measure::time::Stamp;

/// Share of failed requests above which latencies describe only survivors.
const MAX_FAILED_SHARE: f64 = 0.01;
/// Send lag that visibly distorts a latency, as a share of it.
const MAX_LAG_SHARE: f64 = 0.05;
/// Share of prompt tokens that a cache may know beyond the run's own prefixes. A chat template stays below it.
const MAX_PRIOR_CACHE_SHARE: f64 = 0.25;
/// Mean tokens per event above which gaps are not inter-token latencies.
const MAX_TOKENS_PER_EVENT: f64 = 1.05;

/// Ids in the order of their weight: what makes figures wrong, what makes them misleading, what makes them uncertain.
const RANKS: [&str; 25] = [
    "empty",
    "not_valid",
    "without_run",
    "truncated",
    "stopped",
    "sampled",
    "no_output",
    "survivors_only",
    "sender_overloaded",
    "send_lag",
    "queue_grew",
    "saturation",
    "no_warmup",
    "warmup_in_prior_cache",
    "preempted",
    "closed_loop",
    "missing_token_counts",
    "multi_token_chunks",
    "lost_gaps",
    "estimated_tokens",
    "no_outcome",
    "no_shared_clock",
    "not_scraped",
    "too_few",
    "no_audit",
];

/// Collects the warnings for a report. `began` is the first send of a warm-up.
pub(super) fn collect(
    summary: &RequestSummary,
    (figures, load): (&mut RequestStats, &[LoadSample]),
    sources: &[ReportSource],
    (fidelity, began): (Option<&Fidelity>, Option<Stamp>),
    percentiles: &[f64],
) -> Vec<ReportWarning> {
    let mut warnings = Vec::new();
    if summary.requests == 0 {
        warnings.push(ReportWarning::Empty);
    }
    for source in sources {
        warnings.extend(source.simulated.then(|| ReportWarning::Simulated(source.path.clone())));
        let why = source.not_valid.iter();
        warnings.extend(why.map(|why| ReportWarning::NotValid { path: source.path.clone(), why: why.clone() }));
        let findings = source.uncertain.join("; ");
        warnings.extend((!findings.is_empty()).then_some(ReportWarning::SenderOverloaded(findings)));
        warnings.extend(source.stopped.then(|| ReportWarning::Stopped(source.path.clone())));
        warnings.extend(source.without_run.then(|| ReportWarning::WithoutRun(source.path.clone())));
        warnings.extend(source.truncated.iter().cloned().map(ReportWarning::Truncated));
        warnings.extend(source.sample.map(ReportWarning::Sampled));
    }
    if sources.len() > 1 && sources.iter().any(|source| source.started_unix_ns.is_none()) {
        warnings.push(ReportWarning::NoSharedClock);
    }
    for watched in sources.iter().flat_map(|source| &source.servers) {
        let url = || watched.url.clone();
        let server = ServerSummary::summarize(watched, &|_| true);
        let grew = queue_growth(&watched.waiting_requests());
        let preempted = match server.figures.get(&ServerMetric::Preemptions) {
            Some(Trend::Counter { total, .. }) if *total > 0.0 => Some(*total),
            _ => None,
        };
        let failed = Some(server.failed).filter(|failed| *failed > 0);
        let of = server.failed + server.scrapes;
        warnings.extend(grew.map(|growth| ReportWarning::QueueGrew { url: url(), growth }));
        warnings.extend(preempted.map(|times| ReportWarning::Preempted { url: url(), times }));
        warnings.extend(failed.map(|failed| ReportWarning::NotScraped { url: url(), failed, of }));
    }
    let runs = || sources.iter().filter(|source| source.run);
    let doubts = [
        figures.outcomes.get(UNKNOWN_OUTCOME).map(|rows| ReportWarning::NoOutcome(*rows)),
        runs().any(|run| !run.audited && !run.simulated).then_some(ReportWarning::NoAudit),
        runs().any(|run| run.closed_loop).then_some(ReportWarning::ClosedLoop),
        too_few(summary, percentiles),
        // Requested slots caused the lag, not the machine.
        send_lag(figures).filter(|_| !runs().any(|run| run.closed_loop || run.held_back > 0)),
        survivors_only(figures),
        without_output(figures),
        warmup_in_prior_cache(summary, sources, fidelity),
        multi_token_chunks(summary),
        missing_token_counts(figures),
        figures.sources.get(CountSource::Chunks.name()).map(|requests| ReportWarning::Estimated(*requests)),
        (figures.lost_gaps > 0).then_some(ReportWarning::LostGaps(figures.lost_gaps)),
        request_growth(load, began).map(ReportWarning::Saturation).filter(|_| !runs().any(|run| run.closed_loop)),
    ];
    warnings.extend(doubts.into_iter().flatten());
    // The server's own queue is the better evidence of the same cause.
    if warnings.iter().any(|warning| matches!(warning, ReportWarning::QueueGrew { .. })) {
        warnings.retain(|warning| !matches!(warning, ReportWarning::Saturation(_)));
    }
    ranked(warnings)
}

/// Sorts by weight, and keeps the first of equal warnings.
fn ranked(mut warnings: Vec<ReportWarning>) -> Vec<ReportWarning> {
    let rank = |warning: &ReportWarning| RANKS.iter().position(|name| *name == warning.name());
    warnings.sort_by_key(rank);
    let mut seen = Vec::new();
    warnings.retain(|warning| {
        let text = warning.text();
        let is_new = !seen.contains(&text);
        seen.push(text);
        is_new
    });
    warnings
}

/// Adds the warning of a warm-up in the figures.
pub(super) fn with_warm_up(mut warnings: Vec<ReportWarning>, course: &TimeCourse) -> Vec<ReportWarning> {
    let of = course.steady_state.as_ref().and_then(|steady| Some((steady.warm_up_s?, steady.warm_up_requests)));
    warnings.extend(of.map(|(until, requests)| ReportWarning::NoWarmup { until, requests }));
    ranked(warnings)
}

/// Returns the lowest percentile with too few values above it. Beyond p99 the table of intervals shows it, and nearly
/// every run would have the warning.
fn too_few(summary: &RequestSummary, percentiles: &[f64]) -> Option<ReportWarning> {
    let count = summary.metric(ReportMetric::E2e)?.count;
    let few = |percent: &f64| {
        *percent > 50.0 && *percent <= 99.0 && count as f64 * (100.0 - percent) / 100.0 < MIN_TAIL_VALUES - 1e-6
    };
    let percent = percentiles.iter().copied().filter(few).min_by(f64::total_cmp)?;
    Some(ReportWarning::TooFew { percent, count })
}

/// Independent of the shown percentiles.
fn send_lag(figures: &mut RequestStats) -> Option<ReportWarning> {
    let mut at =
        |metric: ReportMetric, percent: f64| Some(figures.samples[metric as usize].sorted()?.percentile(percent) / 1e6);
    let (lag, ttft) = (at(ReportMetric::Lag, 99.0)?, at(ReportMetric::Ttft, 50.0)?);
    (lag > ttft * MAX_LAG_SHARE).then_some(ReportWarning::SendLag { lag, ttft })
}

fn survivors_only(figures: &RequestStats) -> Option<ReportWarning> {
    let requests = figures.requests();
    let excused = [UNKNOWN_OUTCOME, Outcome::Success.name()];
    let failed = figures.outcomes.iter().filter(|(name, _)| !excused.contains(*name)).map(|(_, count)| count).sum();
    (failed as f64 > requests as f64 * MAX_FAILED_SHARE).then_some(ReportWarning::SurvivorsOnly { requests, failed })
}

fn without_output(figures: &RequestStats) -> Option<ReportWarning> {
    let (silent, of) = (figures.without_output, figures.successes());
    (silent as f64 > of as f64 * MAX_FAILED_SHARE).then_some(ReportWarning::WithoutOutput { silent, of })
}

/// Only for runs without later turns, which send the server's own responses back, and without warmed prefixes.
fn warmup_in_prior_cache(
    summary: &RequestSummary,
    sources: &[ReportSource],
    fidelity: Option<&Fidelity>,
) -> Option<ReportWarning> {
    let is_plain =
        |source: &ReportSource| source.run && !source.warm_prefixes && source.later_turns == LaterTurns::default();
    let cached = summary.tokens.cached as f64 / summary.tokens.input.max(1) as f64;
    let prefix = fidelity?.prefix.as_ref();
    let offered = prefix.map_or(0.0, |prefix| prefix.offered_share);
    (sources.iter().all(is_plain) && cached > offered + MAX_PRIOR_CACHE_SHARE)
        .then_some(ReportWarning::WarmupInPriorCache { cached, offered })
}

fn multi_token_chunks(summary: &RequestSummary) -> Option<ReportWarning> {
    let tokens = summary.metric(ReportMetric::TokensPerChunk)?.avg;
    (tokens > MAX_TOKENS_PER_EVENT).then_some(ReportWarning::MultiTokenChunks { tokens })
}

fn missing_token_counts(figures: &RequestStats) -> Option<ReportWarning> {
    let (tokens, events) = figures.missing_event_tokens;
    let tokens = tokens as f64 / events.max(1) as f64;
    (tokens > MAX_TOKENS_PER_EVENT).then_some(ReportWarning::MissingTokenCounts(tokens))
}

//! Warnings about misleading results. Every warning ends in advice.

use schemars::JsonSchema;
use serde::Serialize;

use super::RequestSummary;
use super::accumulate::{RequestStats, UNKNOWN_OUTCOME};
use super::fidelity::Fidelity;
use super::metric::ReportMetric;
use super::saturation::{LoadGrowth, LoadSample, queue_growth, request_growth};
use super::servers::{ServerSummary, Trend};
use super::source::ReportSource;
use super::time_course::TimeCourse;
use crate::measure::record::{CountSource, LaterTurns, Outcome};
use crate::measure::server_metrics::ServerMetric;
use crate::measure::time::{Gap, Stamp};
use crate::trace_file::header::SIMULATED;

/// Minimum number of values above a percentile; with fewer, another run would give a different value.
const MIN_TAIL_VALUES: f64 = 10.0;
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

/// A threat to the results.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportWarning {
    /// There are no requests.
    Empty,
    /// The run is the prediction of a twin.
    Simulated(String),
    /// The run declared itself invalid.
    NotValid {
        /// Path of the source.
        path: String,
        /// Reason.
        why: String,
    },
    /// The run skipped the self-test.
    NoAudit,
    /// The load generator itself distorts metrics: the findings of its self-test.
    SenderOverloaded(String),
    /// The run was stopped early.
    Stopped(String),
    /// A run's rows have no run file.
    WithoutRun(String),
    /// Part of a source is missing.
    Truncated(String),
    /// The capture kept this share of sessions.
    Sampled(f64),
    /// Of several sources, at least one has no wall-clock start.
    NoSharedClock,
    /// Rows without an outcome.
    NoOutcome(u64),
    /// The figures include a warm-up.
    NoWarmup {
        /// Its end, in seconds.
        until: f64,
        /// Requests that started in it.
        requests: u64,
    },
    /// The load was closed-loop: responses decided when requests were sent.
    ClosedLoop,
    /// Too few values lie above a percentile.
    TooFew {
        /// The percentile.
        percent: f64,
        /// Number of values.
        count: u64,
    },
    /// Requests were sent late.
    SendLag {
        /// p99 of the send lag, in milliseconds.
        lag: f64,
        /// p50 of TTFT, in milliseconds.
        ttft: f64,
    },
    /// Many requests failed and have no latency.
    SurvivorsOnly {
        /// Number of requests.
        requests: u64,
        /// Requests without a complete response.
        failed: u64,
    },
    /// Complete responses without any output.
    WithoutOutput {
        /// Number of such responses.
        silent: u64,
        /// Number of complete responses.
        of: u64,
    },
    /// The server's cache knew prompts that this run had not sent.
    WarmupInPriorCache {
        /// Share of prompt tokens from the cache.
        cached: f64,
        /// Share of prompt tokens sent before in this run.
        offered: f64,
    },
    /// Events contain several tokens.
    MultiTokenChunks {
        /// Mean tokens per event.
        tokens: f64,
    },
    /// Events contain several tokens (mean) but carry no counts.
    MissingTokenCounts(f64),
    /// Responses whose output tokens are estimated.
    Estimated(u64),
    /// Gaps that records do not contain.
    LostGaps(u64),
    /// The server's queue kept growing.
    QueueGrew {
        /// URL of the server.
        url: String,
        /// Growth of the queue.
        growth: LoadGrowth,
    },
    /// The server preempted running requests.
    Preempted {
        /// URL of the server.
        url: String,
        /// Number of preemptions.
        times: f64,
    },
    /// Some scrapes of a server returned no metrics.
    NotScraped {
        /// URL of the server.
        url: String,
        /// Scrapes without metrics.
        failed: u64,
        /// All scrapes.
        of: u64,
    },
    /// The number of open requests kept growing.
    Saturation(LoadGrowth),
}

/// A warning in text form.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WarningText {
    /// Stable id for scripts.
    pub warning: &'static str,
    /// The problem, in a sentence.
    pub text: String,
    /// Recommended action.
    pub advice: &'static str,
}

impl WarningText {
    pub(super) fn from_warning(warning: &ReportWarning) -> Self {
        Self { warning: warning.name(), text: warning.text(), advice: warning.advice() }
    }
}

impl ReportWarning {
    /// Returns the stable id for scripts.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Simulated(_) => "simulated",
            Self::NotValid { .. } => "not_valid",
            Self::NoAudit => "no_audit",
            Self::SenderOverloaded(_) => "sender_overloaded",
            Self::Stopped(_) => "stopped",
            Self::WithoutRun(_) => "without_run",
            Self::Truncated(_) => "truncated",
            Self::Sampled(_) => "sampled",
            Self::NoSharedClock => "no_shared_clock",
            Self::NoOutcome(_) => "no_outcome",
            Self::NoWarmup { .. } => "no_warmup",
            Self::ClosedLoop => "closed_loop",
            Self::TooFew { .. } => "too_few",
            Self::SendLag { .. } => "send_lag",
            Self::SurvivorsOnly { .. } => "survivors_only",
            Self::WithoutOutput { .. } => "no_output",
            Self::WarmupInPriorCache { .. } => "warmup_in_prior_cache",
            Self::MultiTokenChunks { .. } => "multi_token_chunks",
            Self::MissingTokenCounts(_) => "missing_token_counts",
            Self::Estimated(_) => "estimated_tokens",
            Self::LostGaps(_) => "lost_gaps",
            Self::QueueGrew { .. } => "queue_grew",
            Self::Preempted { .. } => "preempted",
            Self::NotScraped { .. } => "not_scraped",
            Self::Saturation(_) => "saturation",
        }
    }

    /// Describes the problem in a sentence.
    pub fn text(&self) -> String {
        match self {
            Self::Empty => "there are no requests".to_owned(),
            Self::Simulated(path) => format!("{path} is {SIMULATED}"),
            Self::NotValid { path, why } => format!("{path} is not valid: {why}"),
            Self::NoAudit => "no self-test ran, so the load generator's own share in the figures is unknown".to_owned(),
            Self::SenderOverloaded(finding) => format!("the pre-run self-test shows that {finding}"),
            Self::Stopped(path) => format!("{path} was stopped before its end"),
            Self::WithoutRun(path) => format!(
                "{path}: run.json is missing, so completeness and validity cannot be checked, and the figures include any \
                 warm-up"
            ),
            Self::Truncated(what) => format!("a part is missing: {what}"),
            Self::Sampled(share) => {
                format!(
                    "the capture kept {} % of the sessions: counts and rates are those of the sample",
                    share * 100.0
                )
            }
            Self::NoSharedClock => "not every source has a start time, so all start together".to_owned(),
            Self::NoOutcome(rows) => format!("{rows} rows have no outcome, and are in no latency"),
            Self::NoWarmup { until, requests } => {
                format!(
                    "the server was not warm until {until:.1} s, and {requests} requests of that time are in the figures"
                )
            }
            Self::ClosedLoop => {
                "the load was closed: a server that stalls is sent less, and latencies hide the wait".to_owned()
            }
            Self::TooFew { percent, count } => {
                format!(
                    "p{percent} of {count} values rests on fewer than {MIN_TAIL_VALUES}; another run may give quite another"
                )
            }
            Self::SendLag { lag, ttft } => {
                format!("requests were sent late: lag p99 {} against a TTFT of p50 {}", time(*lag), time(*ttft))
            }
            Self::SurvivorsOnly { requests, failed } => format!(
                "{failed} of {requests} requests ({:.1} %) have no complete answer, and are in no latency below",
                *failed as f64 / *requests as f64 * 100.0
            ),
            Self::WithoutOutput { silent, of } => {
                format!(
                    "{silent} of {of} whole answers have neither a token nor a count of tokens, and are in no TTFT \
                     below"
                )
            }
            Self::WarmupInPriorCache { cached, offered } => format!(
                "{:.1} % of prompt tokens came from the server's cache, and {:.1} % had been sent before in the run: the \
                 rest it knew from another, and did not have to compute",
                cached * 100.0,
                offered * 100.0
            ),
            Self::MultiTokenChunks { tokens } => format!(
                "events hold {tokens:.2} tokens on average: ITL shares a gap among them, and a client waits for whole gaps"
            ),
            Self::MissingTokenCounts(tokens) => format!(
                "events hold {tokens:.2} tokens on average and do not say how many each: ITL is from event to event, and \
                 longer than from token to token"
            ),
            Self::Estimated(requests) => {
                format!("output tokens of {requests} requests are a number of events, usually too low")
            }
            Self::LostGaps(gaps) => format!(
                "{gaps} gaps between tokens are not in the records: ITL leaves them out, and so does TPOT where the last \
                 token is unknown"
            ),
            Self::QueueGrew { url, growth } => format!(
                "more and more requests waited at {url}, {:.2} more each second: the longer it is sent to, the longer \
                 they will wait",
                growth.per_second
            ),
            Self::Preempted { url, times } => {
                format!(
                    "{url} put off {times:.0} requests that it had begun: its KV cache was full, and it did work twice"
                )
            }
            Self::NotScraped { url, failed, of } => {
                format!("{failed} of {of} times {url} could not be scraped, and the figures are of the other times")
            }
            Self::Saturation(growth) => format!(
                "more and more requests were open, {:.2} more each second: the server cannot keep up, and latencies \
                 depend on how long it lasted",
                growth.per_second
            ),
        }
    }

    /// Returns the recommended action.
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::Empty => "check the path, and whether warm-up leaves anything",
            Self::Simulated(_) => "read the twin's held-out error (`streamgauge twin fit`) beside each figure",
            Self::NotValid { .. } => "do not compare its figures; remove the cause and run again",
            Self::NoAudit => "leave out --no-audit",
            Self::SenderOverloaded(_) => "send from a machine with less to do, or send less",
            Self::Stopped(_) => "its figures are of what was sent until then",
            Self::WithoutRun(_) => "name the folder of the run; where that has none, the run did not end",
            Self::Truncated(_) => "its other rows are counted; look at what stopped the writer",
            Self::Sampled(_) => {
                "divide counts and rates by the share; percentiles and shares of goodput need no correction"
            }
            Self::NoSharedClock => "rates of several such sources mean something only if they did begin together",
            Self::NoOutcome(_) => "a capture, or a replay of the trace, knows",
            Self::NoWarmup { .. } => {
                "--warmup (replay, load) leaves them out; the section on time states where they end"
            }
            Self::ClosedLoop => "send at the trace's times, or with --rate, to see what users would wait",
            Self::TooFew { .. } => "send more requests, or read a lower percentile",
            Self::SendLag { .. } => "read the figures from planned; use more --workers, or another machine",
            Self::SurvivorsOnly { .. } => "judge by goodput, which counts them (--slo)",
            Self::WithoutOutput { .. } => "look with `streamgauge inspect` at what the server sends, and at --dialect",
            Self::WarmupInPriorCache { .. } => "take another --seed for every run, or begin with an empty cache",
            Self::MultiTokenChunks { .. } => "read the row `gap` for what a client sees",
            Self::MissingTokenCounts(_) => "read TPOT, which is of tokens",
            Self::Estimated(_) => "ask for usage: stream_options.include_usage, or --ask-usage at the proxy",
            Self::LostGaps(_) => "their TTFT and E2E are whole",
            Self::QueueGrew { .. } => {
                "send less, or give it more room (batch size, another replica); --slice shows the growth"
            }
            Self::Preempted { .. } => "give the KV cache more memory, or send fewer or shorter requests at once",
            Self::NotScraped { .. } => "run.json states the first failure",
            Self::Saturation(_) => "send less, or state how long it was sent; --slice shows the growth",
        }
    }
}

fn time(millis: f64) -> String {
    Gap::from_nanos((millis * 1e6) as u64).to_string()
}

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

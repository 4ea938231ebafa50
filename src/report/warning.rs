//! A warning about misleading results: what can be wrong, and the advice.

use schemars::JsonSchema;
use serde::Serialize;

use super::saturation::LoadGrowth;
use crate::measure::time::Gap;
use crate::trace_file::header::SIMULATED;

/// Minimum number of values above a percentile; with fewer, another run would give a different value.
pub(super) const MIN_TAIL_VALUES: f64 = 10.0;

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

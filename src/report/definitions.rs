//! Definitions of each metric: ours and those of other tools, taken from their source code.
//!
//! t₀ is the request's first byte, t₁ the first token event, tₗ the last, n the output tokens, *end* the end of the
//! response. All tools measure TTFT alike, except for which event counts as the first token (`streamgauge inspect
//! --explain`).
//!
//! | | `streamgauge` | `aiperf` 0.13 | `vllm` bench 0.33 | `sglang` bench 0.5.23 | `guidellm` 0.8 | `otel` GenAI 1.41 |
//! |---|---|---|---|---|---|---|
//! | TTFT | t₁ − t₀ | t₁ − t₀ | t₁ − t₀ | t₁ − t₀; of a reply that is no stream E2E | t₁ − t₀ | t₁ − t₀ |
//! | E2E | end − t₀ | tₗ − t₀ | tₗ − t₀ | end − t₀ | end − t₀ | end − t₀ |
//! | ITL | every gap ÷ tokens of the later event | per request (tₗ − t₁) ÷ (n − 1) | every gap, not divided | every gap, not divided | per request (tₗ − t₁) ÷ (n − 1), as often as n − 1 | – |
//! | TPOT | (tₗ − t₁) ÷ (n − tokens of the first event) | – | (tₗ − t₁) ÷ (n − 1) | (end − t₁) ÷ (n − 1) | (tₗ − t₀) ÷ n, as often as n; of a reply that is no stream E2E ÷ n | (end − t₁) ÷ (n − 1) |
//! | n | as counted | as counted | as counted | what was asked for, where the server sent no count | as counted | as counted |
//! | tokens/s per user | 1 ÷ TPOT | 1 ÷ ITL | – | – | – | – |
//! | window of rates | first planned moment to last end, of all | first t₀ to last end, of all | likewise | likewise | likewise | likewise |
//! | from planned | also | – | – | – | – | – |
//!
//! | | `genai-perf` | `llmperf` f1d6bed | `nim` guide | `databricks` guide | `mlperf` LoadGen b66003e |
//! |---|---|---|---|---|---|
//! | TTFT | t₁ − t₀ | t₁ − t₀ | t₁ − t₀ | t₁ − t₀ | t₁ − planned |
//! | E2E | tₗ − t₀ | end − t₀ | end − t₀ | end − t₀ | end − planned |
//! | ITL | per request (tₗ − t₁) ÷ (n − 1) | per request (tₗ − t₀) ÷ n: TTFT is in it | per request (end − t₁) ÷ (n − 1) | – | – |
//! | TPOT | – | – | – | (end − t₁) ÷ n | (end − t₁) ÷ (n − 1) |
//! | tokens/s per user | 1 ÷ ITL | – | 1 ÷ ITL | – | – |
//!
//! Databricks' guide writes E2E = TTFT + TPOT × n.
//!
//! LLMPerf counts tokens with Llama's tokenizer, whatever the model; here n is as counted.
//!
//! A metric that a tool does not have is absent under its definitions. So is a value that the tool reports as 0 because
//! there is none, for example the TPOT of a one-token response. AIPerf's ITL treats the first chunk as one token, as
//! AIPerf does without `--per-chunk-usage`. AIPerf counts a missing value as a missed objective; vLLM's tool counts it
//! as met.
//!
//! Some differences cannot be reproduced from records. AIPerf counts tokens with its own tokenizer, and its rates cover
//! a phase that begins some milliseconds before the first request. GuideLLM weights rates by time and reports
//! percentiles that occurred. vLLM's tool up to 0.32 counts every event with a choice as a token, including the role
//! and finish events. SGLang's tool divides gaps at its own `/generate`. The Python tools start their clocks before the
//! connection is made. `tests/report/tool_definitions.rs` reproduces AIPerf's and vLLM's own results from their records.

use super::metric::ReportMetric;
use super::request_view::RequestView;
use crate::measure::record::{CountSource, tpot};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::TokenEvent;

/// Maximum weight of one request's value, so that an invented token count cannot exhaust memory.
const MAX_WEIGHT: u64 = 1 << 16;

/// Set of metric definitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Definitions {
    /// The definitions of this crate ([`crate::measure`]).
    #[default]
    Streamgauge,
    /// AIPerf.
    Aiperf,
    /// `vllm bench serve`.
    Vllm,
    /// `sglang.bench_serving`.
    Sglang,
    /// GuideLLM.
    Guidellm,
    /// OpenTelemetry's GenAI conventions.
    Otel,
    /// GenAI-Perf, the predecessor of AIPerf.
    GenaiPerf,
    /// Ray's LLMPerf.
    Llmperf,
    /// NVIDIA's benchmarking guide for NIM.
    Nim,
    /// Databricks' guide to benchmarking an LLM endpoint.
    Databricks,
    /// MLPerf Inference's LoadGen.
    Mlperf,
}

/// Latencies of one request under a set of definitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestTimes {
    /// Time to first token.
    pub ttft: Option<Gap>,
    /// Time to first output.
    pub ttfo: Option<Gap>,
    /// Time per output token.
    pub tpot: Option<Gap>,
    /// Mean inter-token latency of the request, for definitions with one value per request.
    pub mean_itl: Option<Gap>,
    /// End-to-end latency.
    pub e2e: Option<Gap>,
}

impl Definitions {
    /// All definitions.
    pub const ALL: [Self; 11] = [
        Self::Streamgauge,
        Self::Aiperf,
        Self::Vllm,
        Self::Sglang,
        Self::Guidellm,
        Self::Otel,
        Self::GenaiPerf,
        Self::Llmperf,
        Self::Nim,
        Self::Databricks,
        Self::Mlperf,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Streamgauge => "streamgauge",
            Self::Aiperf => "aiperf",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Guidellm => "guidellm",
            Self::Otel => "otel",
            Self::GenaiPerf => "genai-perf",
            Self::Llmperf => "llmperf",
            Self::Nim => "nim",
            Self::Databricks => "databricks",
            Self::Mlperf => "mlperf",
        }
    }

    /// Returns `true` if latencies are also measured from the planned moment.
    pub fn use_planned_time(self) -> bool {
        self == Self::Streamgauge
    }

    /// Returns the moment from which latencies are measured; with [`Self::use_planned_time`], those of users.
    pub fn start(self, request: &RequestView) -> Stamp {
        match self {
            Self::Streamgauge | Self::Mlperf => request.started(),
            _ => request.sent,
        }
    }

    /// Returns the number of output tokens.
    pub fn tokens(self, request: &RequestView) -> Option<u64> {
        let reported = request.tokens.filter(|count| count.source <= CountSource::ContinuousUsage);
        let counted = request.tokens.map(|count| count.tokens);
        match self {
            Self::Sglang if reported.is_none() => request.max_tokens.or(counted),
            _ => counted,
        }
    }

    /// TPOT that an objective assumes for a request without one. `None` meets any objective; the maximum misses any.
    pub fn tpot_when_missing(self) -> Option<Gap> {
        (self == Self::Aiperf).then_some(Gap::from_nanos(u64::MAX))
    }

    /// Returns the ITL of one gap, or `None` if ITL has one value per request or is not defined.
    pub fn gap_value(self) -> Option<fn(&TokenEvent) -> Gap> {
        match self {
            Self::Streamgauge => Some(|event| event.latency().0),
            Self::Vllm | Self::Sglang => Some(|event| event.gap()),
            _ => None,
        }
    }

    /// Returns `true` if every request has at most one value of the metric.
    pub fn is_one_per_request(self, metric: ReportMetric) -> bool {
        match metric {
            ReportMetric::Itl | ReportMetric::Gap | ReportMetric::TokensPerChunk => false,
            ReportMetric::Tpot => self != Self::Guidellm,
            _ => true,
        }
    }

    /// Returns the end of the response.
    pub fn end(self, request: &RequestView) -> Option<Stamp> {
        match self {
            Self::Aiperf | Self::Vllm | Self::GenaiPerf if request.streamed => request.last,
            _ => request.ended,
        }
    }

    /// Computes the latencies, measured from `start`.
    pub fn times(self, request: &RequestView, start: Stamp) -> RequestTimes {
        let end = self.end(request);
        let e2e = end.map(|end| end.since(start));
        let tokens = self.tokens(request);
        let by_tokens = |time: Option<Gap>| divided(time?, tokens?);
        if !request.streamed {
            return match self {
                Self::Sglang => RequestTimes { ttft: e2e, e2e, ..RequestTimes::default() },
                Self::Guidellm => RequestTimes { tpot: by_tokens(e2e), e2e, ..RequestTimes::default() },
                _ => RequestTimes { e2e, ..RequestTimes::default() },
            };
        }
        let (first, last) = (request.first, request.last);
        let between = |from: Option<Stamp>, to: Option<Stamp>| Some(to?.since(from?));
        let per_token = |time: Option<Gap>| divided(time?, tokens?.checked_sub(1)?);
        let mut times = RequestTimes {
            ttft: between(Some(start), first),
            ttfo: between(Some(start), request.output),
            e2e,
            ..RequestTimes::default()
        };
        match self {
            Self::Streamgauge => {
                let events = request.lost_gaps.saturating_add(request.events.len() as u64 + 1);
                times.tpot = between(first, last)
                    .zip(tokens)
                    .and_then(|(decode, tokens)| tpot(decode, events, tokens, request.first_tokens));
            }
            Self::Aiperf | Self::GenaiPerf => times.mean_itl = per_token(between(first, last)),
            Self::Vllm => times.tpot = per_token(between(first, last)),
            Self::Sglang | Self::Otel | Self::Mlperf => times.tpot = per_token(between(first, end)),
            Self::Nim => times.mean_itl = per_token(between(first, end)),
            Self::Databricks => times.tpot = by_tokens(between(first, end)),
            Self::Llmperf => times.mean_itl = by_tokens(between(Some(start), last)),
            Self::Guidellm => {
                times.tpot = by_tokens(between(Some(start), last));
                times.mean_itl = per_token(between(first, last));
            }
        }
        times
    }

    /// Emits every metric of a successful request, in nanoseconds, tokens or millionths of tokens per second.
    pub fn measure(self, request: &RequestView, mut out: impl FnMut(ReportMetric, u64)) {
        let sent = if self.use_planned_time() { request.sent } else { self.start(request) };
        let times = self.times(request, sent);
        let mut one = |metric, value: Option<Gap>| {
            if let Some(value) = value {
                out(metric, value.as_nanos());
            }
        };
        one(ReportMetric::Ttft, times.ttft);
        one(ReportMetric::Ttfo, times.ttfo);
        one(ReportMetric::E2e, times.e2e);
        let tokens = self.tokens(request).unwrap_or(0);
        let weight = |tokens: u64| if self == Self::Guidellm { tokens.min(MAX_WEIGHT) } else { 1 };
        (0..weight(tokens)).for_each(|_| one(ReportMetric::Tpot, times.tpot));
        if let Some(planned) = request.planned.filter(|_| self.use_planned_time()) {
            let from_planned = self.times(request, planned);
            one(ReportMetric::TtftFromPlanned, from_planned.ttft);
            one(ReportMetric::E2eFromPlanned, from_planned.e2e);
        }
        match self.gap_value() {
            Some(value) => request.events.iter().for_each(|event| one(ReportMetric::Itl, Some(value(event)))),
            // Some have no mean ITL either.
            None => (0..weight(tokens.saturating_sub(1))).for_each(|_| one(ReportMetric::Itl, times.mean_itl)),
        }
        if request.streamed {
            request.events.iter().for_each(|event| one(ReportMetric::Gap, Some(event.gap())));
            one(ReportMetric::SecondToken, request.events.first().map(|event| event.gap()));
            one(ReportMetric::WorstGap, request.events.iter().map(|event| event.gap()).max());
            let chunks = request.events.iter().filter_map(|event| event.tokens());
            request
                .first_tokens
                .into_iter()
                .chain(chunks)
                .for_each(|tokens| out(ReportMetric::TokensPerChunk, tokens.into()));
        }
        let each = match self {
            Self::Streamgauge => times.tpot,
            Self::Aiperf | Self::GenaiPerf | Self::Nim => times.mean_itl,
            _ => None,
        };
        if let Some(each) = each.filter(|each| *each > Gap::ZERO) {
            out(ReportMetric::UserRate, (1e15 / each.as_nanos() as f64).round() as u64);
        }
        if let Some(tokens) = self.tokens(request) {
            out(ReportMetric::Output, tokens);
        }
        if let Some(tokens) = request.input {
            out(ReportMetric::Input, tokens);
        }
    }
}

/// Divides to the nearest nanosecond; `None` for a zero divisor.
fn divided(time: Gap, among: u64) -> Option<Gap> {
    (among > 0).then(|| Gap::from_nanos((time.as_nanos() as f64 / among as f64).round() as u64))
}

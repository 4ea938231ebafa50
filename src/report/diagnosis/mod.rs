//! The bounds of a run's latencies, in words, with the evidence beside each statement. Pure; one rule per file.
//!
//! A rule returns a [`Finding`] only if its evidence passes the thresholds that the finding prints. Without evidence
//! there is no finding. A run at one prompt length shows no slope, and a server that is not scraped has no queue time.
//!
//! | verdict | evidence | threshold |
//! |---|---|---|
//! | `prefill_bound` | prefill in TTFT by the server, else the slope of TTFT against prompt tokens | half of TTFT, lower end, and 5 steps |
//! | `queueing` | queue time in TTFT by the server, else the slope of TTFT against requests in flight | half of TTFT, lower end, and 5 steps |
//! | `decode_bound` | decode in E2E; TPOT against requests in flight | half of E2E, lower end; few prefills at a time; one pace |
//! | `scheduler_bound` | requests wait beside a free KV cache, or run on an idle GPU | 1 waits, cache below 80 %; GPU below 50 % |
//! | `cache_cold` | repeated prompt tokens that the cache did not hold | 25 % of prompt tokens |
//! | `client_bound` | send lag; TTFT that the server does not account for | 10 % of TTFT; half of TTFT |
//! | `handover` | the second token against the later ones | 3 times, lower end |
//! | `tail_without_load` | load and prompts of the slowest requests | p99 at 5 times p50, load within 10 % |
//! | `preempting` | preemptions by the server | 1 |
//! | `context_window` | tokens of refused requests against the server's limit | 1 request |
//!
//! A step is p10 of ITL: a step of decode without the prefill of another request in it. A request that finds an idle
//! server waits for one or two.
//!
//! The effect of the prefix cache is among the relations wherever requests have cached tokens.
//!
//! TTFT here is from the send time, without the load generator's own lag. Prompt tokens exclude those from the cache.
//! Findings are ordered by the share that they explain.

mod cache;
mod client;
mod context_window;
mod decode;
mod evidence;
mod handover;
mod preemption;
mod prefill;
mod queueing;
mod relations;
mod scheduler;
mod table;
mod tail;

use schemars::JsonSchema;
use serde::Serialize;

use super::request_point::RequestPoint;
use super::servers::ServerSummary;
pub use evidence::{Evidence, EvidenceUnit};
use relations::Relations;
pub use relations::TtftSplit;
pub use table::{finding_table, lines, relation_table};

/// A bound of a latency, or a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiagnosisVerdict {
    /// TTFT is mostly the processing of the prompt.
    PrefillBound,
    /// TTFT is mostly waiting for other requests.
    Queueing,
    /// E2E is mostly the generation of tokens.
    DecodeBound,
    /// The engine's scheduler or host, not the GPU, sets the pace.
    SchedulerBound,
    /// The prefix cache did not hold what was repeated.
    CacheCold,
    /// Time passes between the plan and the server.
    ClientBound,
    /// The step from prefill to decode takes long, as in disaggregated serving.
    Handover,
    /// The slowest requests met no more load than others.
    TailWithoutLoad,
    /// The server threw away work because its KV cache was full.
    Preempting,
    /// Requests were longer than the server's context window.
    ContextWindow,
}

impl DiagnosisVerdict {
    /// Returns the name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::PrefillBound => "prefill-bound",
            Self::Queueing => "queueing",
            Self::DecodeBound => "decode-bound",
            Self::SchedulerBound => "scheduler-bound",
            Self::CacheCold => "cache-cold",
            Self::ClientBound => "client-bound",
            Self::Handover => "slow handover",
            Self::TailWithoutLoad => "tail without load",
            Self::Preempting => "preempting",
            Self::ContextWindow => "context window",
        }
    }
}

/// A statement about the cause of a latency.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    /// The cause.
    pub verdict: DiagnosisVerdict,
    /// The statement in words.
    pub statement: String,
    /// Share of the latency that it explains, for the order of findings.
    pub share: f64,
    /// Figures that support it.
    pub evidence: Vec<Evidence>,
    /// The effect that users notice.
    pub symptom: &'static str,
    /// The next thing to measure or change.
    pub next_measurement: &'static str,
}

/// Facts that the rules need beside requests and servers.
#[derive(Clone, Debug, Default)]
pub struct DiagnosisFacts {
    /// Share of the prompt tokens that the run sent before.
    pub offered_prefix_share: Option<f64>,
    /// The server's limit on prompt and output tokens.
    pub max_model_len: Option<u64>,
    /// Prompt and output tokens of each request that the server refused as invalid.
    pub refused_tokens: Vec<u64>,
    /// Requests that the server refused as invalid, with or without known tokens.
    pub refused: u64,
    /// Slots, not planned times, decided when requests were sent.
    pub closed_loop: bool,
    /// p10 and p50 of ITL in seconds: a step without a prefill in it, and a usual one.
    pub itl_s: Option<(f64, f64)>,
}

/// The diagnosis of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// Measured relations, with or without a verdict.
    pub relations: Vec<Evidence>,
    /// Findings, those that explain most first.
    pub findings: Vec<Finding>,
}

/// Requests, servers and their relations: the input of a rule.
struct RuleInput<'a> {
    points: &'a [RequestPoint],
    servers: &'a [ServerSummary],
    facts: &'a DiagnosisFacts,
    relations: Relations,
}

impl RuleInput<'_> {
    /// Mean TTFT in steps of decode, with its threshold; `None` if either is unknown.
    fn ttft_steps(&self) -> Option<Evidence> {
        let steps = self.relations.ttft_s? / self.facts.itl_s?.0;
        steps.is_finite().then(|| Evidence::new("TTFT in steps", steps, EvidenceUnit::Ratio).at_least(MIN_STEPS))
    }
}

/// Mean TTFT in steps of decode, below which it is that of an idle server.
const MIN_STEPS: f64 = 5.0;

const RULES: [fn(&RuleInput<'_>) -> Option<Finding>; 10] = [
    prefill::diagnose,
    queueing::diagnose,
    decode::diagnose,
    scheduler::diagnose,
    cache::diagnose,
    client::diagnose,
    handover::diagnose,
    tail::diagnose,
    preemption::diagnose,
    context_window::diagnose,
];

impl Diagnosis {
    /// Diagnoses requests in the order of their starts.
    pub fn of(points: &[RequestPoint], servers: &[ServerSummary], facts: &DiagnosisFacts) -> Self {
        let input = RuleInput { points, servers, facts, relations: Relations::of(points, servers) };
        let mut findings: Vec<Finding> = RULES.iter().filter_map(|rule| rule(&input)).collect();
        findings.sort_by(|a, b| b.share.total_cmp(&a.share));
        let mut relations = input.relations.evidence();
        relations.extend(cache::effect(points, &input.relations));
        Self { relations, findings }
    }

    /// Returns the finding with this verdict.
    pub fn finding(&self, verdict: DiagnosisVerdict) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.verdict == verdict)
    }
}

//! The ten questions of an honest benchmark, answered from the records: met, not met, or unknown.
//!
//! | row | met if |
//! |---|---|
//! | warm-up | a warm-up was left out, or the first requests are like the later ones |
//! | open loop | planned times, not slots, decided when requests were sent |
//! | percentiles | p99 of TTFT has 20 values beyond it, so that it has an interval |
//! | realistic lengths | prompts and responses have different lengths |
//! | sweep | the run is a level of a sweep |
//! | duration | the figures cover 60 s |
//! | hardware | GPU and number of GPUs are stated |
//! | precision | the precision of the weights is stated |
//! | batch settings | `--meta` states the engine's flags, or the server reports settings of its batch |
//! | both phases | TTFT and TPOT were measured |

use schemars::JsonSchema;
use serde::Serialize;

use super::RequestSummary;
use super::ascii_plot::with_thousands;
use super::context::{FactName, ReportContext};
use super::engine_facts;
use super::metric::ReportMetric;
use super::source::ReportSource;
use super::time_course::TimeCourse;

/// Minimum length of the figures' window.
const MIN_SECONDS: f64 = 60.0;
/// Minimum standard deviation of lengths, as a share of their mean.
const MIN_LENGTH_SPREAD: f64 = 0.05;

/// Answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChecklistAnswer {
    /// The requirement is met.
    Met,
    /// It is not met.
    NotMet,
    /// The records do not show it.
    Unknown,
}

impl ChecklistAnswer {
    /// Returns the words for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::Unknown => "unknown",
        }
    }

    const fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }
}

/// One question with its answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ChecklistRow {
    /// Stable id.
    pub item: &'static str,
    /// The requirement, for people.
    pub requirement: &'static str,
    /// The answer.
    pub answer: ChecklistAnswer,
    /// The facts behind the answer.
    pub evidence: String,
}

/// Sources of the rows.
pub(super) struct ChecklistInput<'a> {
    /// Summary of all requests.
    pub summary: &'a RequestSummary,
    /// The load, the server and the machines.
    pub context: &'a ReportContext,
    /// The sources.
    pub sources: &'a [ReportSource],
    /// The run over time.
    pub course: &'a TimeCourse,
}

/// Answers the ten questions.
pub(super) fn rows(input: &ChecklistInput<'_>) -> Vec<ChecklistRow> {
    let row = |item, requirement, (answer, evidence): (ChecklistAnswer, String)| ChecklistRow {
        item,
        requirement,
        answer,
        evidence,
    };
    vec![
        row("warm_up", "the figures exclude a warm-up", input.warm_up()),
        row("open_loop", "requests were sent at planned times", input.open_loop()),
        row("percentiles", "percentiles rest on enough values", input.percentiles()),
        row("lengths", "prompts and responses have realistic lengths", input.lengths()),
        row("sweep", "several loads were measured", input.sweep()),
        row("duration", "the figures cover at least 60 s", input.duration()),
        row("hardware", "the hardware is stated", input.stated(&[FactName::Gpu, FactName::GpuCount])),
        row("precision", "the precision is stated", input.stated(&[FactName::Precision])),
        row("batch_settings", "the engine's batch settings are stated", input.batch_settings()),
        row("both_phases", "prefill and decode were measured", input.phases()),
    ]
}

/// Builds the table of the checklist. The first row is the header.
pub fn table(rows: &[ChecklistRow]) -> Vec<Vec<String>> {
    let head = ["checklist", "answer", "evidence"].map(str::to_owned).to_vec();
    let row =
        |row: &ChecklistRow| vec![row.requirement.to_owned(), row.answer.label().to_owned(), row.evidence.clone()];
    std::iter::once(head).chain(rows.iter().map(row)).collect()
}

/// Returns named lines: one line per question.
pub fn lines(rows: &[ChecklistRow]) -> Vec<(&'static str, String)> {
    rows.iter().map(|row| (row.answer.label(), format!("{}: {}", row.requirement, row.evidence))).collect()
}

type Answer = (ChecklistAnswer, String);

impl ChecklistInput<'_> {
    fn warm_up(&self) -> Answer {
        if let Some(until) = self.course.steady_state.as_ref().and_then(|steady| steady.warm_up_s) {
            return (ChecklistAnswer::NotMet, format!("the figures include a warm-up until {until:.1} s"));
        }
        let left_out: u64 = self.sources.iter().map(|source| source.outside_window).sum();
        if !self.sources.is_empty() && self.sources.iter().all(|source| source.warmed_up) {
            return (ChecklistAnswer::Met, format!("{} requests were left out", with_thousands(left_out)));
        }
        match &self.course.steady_state {
            Some(steady) if steady.found => {
                (ChecklistAnswer::Met, "the first requests are like the later ones".to_owned())
            }
            Some(_) => (ChecklistAnswer::NotMet, "a figure still changes at the middle of the run".to_owned()),
            None => (ChecklistAnswer::Unknown, "too few requests to find a warm-up".to_owned()),
        }
    }

    fn open_loop(&self) -> Answer {
        let runs = || self.sources.iter().filter(|source| source.run);
        let peers = || self.sources.iter().filter(|source| source.tool.is_some());
        let arrivals = || self.context.get(FactName::Arrivals).unwrap_or("a plan").to_owned();
        match () {
            () if self.sources.iter().any(|source| source.closed_loop) => {
                (ChecklistAnswer::NotMet, "slots decided when requests were sent".to_owned())
            }
            () if self.sources.iter().any(|source| source.held_back > 0) => {
                (ChecklistAnswer::NotMet, "--max-in-flight held requests back".to_owned())
            }
            () if runs().next().is_some() => (ChecklistAnswer::Met, arrivals()),
            () if peers().next().is_some() && self.context.get(FactName::Arrivals).is_none() => {
                (ChecklistAnswer::Unknown, "the file does not state the arrivals".to_owned())
            }
            () if peers().next().is_some() => (ChecklistAnswer::Met, arrivals()),
            () => (ChecklistAnswer::Met, "production's own arrivals".to_owned()),
        }
    }

    fn percentiles(&self) -> Answer {
        let ttft = [ReportMetric::TtftFromPlanned, ReportMetric::Ttft, ReportMetric::E2e];
        let Some(of) = ttft.into_iter().find_map(|metric| self.summary.metric(metric)) else {
            return (ChecklistAnswer::Unknown, "no request has a latency".to_owned());
        };
        let beyond = of.count as f64 / 100.0;
        let evidence = format!("{beyond:.0} of {} values lie beyond p99; 20 are needed", with_thousands(of.count));
        (ChecklistAnswer::of(beyond >= 20.0), evidence)
    }

    fn lengths(&self) -> Answer {
        let both = [ReportMetric::Input, ReportMetric::Output].map(|metric| self.summary.metric(metric));
        let [Some(isl), Some(osl)] = both else {
            return (ChecklistAnswer::Unknown, "the lengths are not known".to_owned());
        };
        let spread = |of: &super::distribution::MetricDistribution| of.std / of.avg;
        let varies = spread(isl).min(spread(osl)) >= MIN_LENGTH_SPREAD;
        let text = |name: &str, of: &super::distribution::MetricDistribution| {
            format!("{name} {}–{} tokens", with_thousands(of.min as u64), with_thousands(of.max as u64))
        };
        (ChecklistAnswer::of(varies), format!("{}, {}", text("ISL", isl), text("OSL", osl)))
    }

    fn sweep(&self) -> Answer {
        let of_sweep = |source: &ReportSource| source.command.iter().any(|word| word == "sweep");
        match () {
            () if self.sources.iter().any(of_sweep) => (ChecklistAnswer::Met, "a level of a sweep".to_owned()),
            () if self.sources.iter().any(|source| source.run) => {
                (ChecklistAnswer::NotMet, "one load; `streamgauge sweep` measures the curve".to_owned())
            }
            () => (ChecklistAnswer::Unknown, "the file has one load".to_owned()),
        }
    }

    fn duration(&self) -> Answer {
        let seconds = self.summary.seconds;
        (ChecklistAnswer::of(seconds >= MIN_SECONDS), format!("{seconds:.1} s"))
    }

    /// A fact without a statement is unknown.
    fn stated(&self, facts: &[FactName]) -> Answer {
        let missing: Vec<&FactName> = facts.iter().filter(|fact| self.context.get(**fact).is_none()).collect();
        if missing.is_empty() {
            let known: Vec<&str> = facts.iter().filter_map(|fact| self.context.get(*fact)).collect();
            return (ChecklistAnswer::Met, known.join(" × "));
        }
        let keys: Vec<String> = missing.iter().map(|fact| format!("--meta {}=…", fact.key())).collect();
        (ChecklistAnswer::Unknown, format!("not stated; {} states it", keys.join(" ")))
    }

    /// A server that reports other settings alone, as vLLM its `max_model_len`, leaves its batch unknown.
    fn batch_settings(&self) -> Answer {
        let (answer, evidence) = self.stated(&[FactName::EngineFlags]);
        if answer == ChecklistAnswer::Met && !self.sources.iter().all(engine_facts::state_batch_settings) {
            let what = format!("the server reports {evidence} alone; --meta engine_flags=… states the batch");
            return (ChecklistAnswer::Unknown, what);
        }
        (answer, evidence)
    }

    fn phases(&self) -> Answer {
        let has = |metric: ReportMetric| self.summary.metric(metric).is_some();
        match (has(ReportMetric::Ttft), has(ReportMetric::Tpot) || has(ReportMetric::Itl)) {
            (true, true) => (ChecklistAnswer::Met, "TTFT and TPOT".to_owned()),
            (true, false) => (ChecklistAnswer::NotMet, "TTFT, and no TPOT".to_owned()),
            (false, true) => (ChecklistAnswer::NotMet, "TPOT, and no TTFT".to_owned()),
            (false, false) if !has(ReportMetric::E2e) => {
                (ChecklistAnswer::Unknown, "no request has a complete response".to_owned())
            }
            (false, false) => {
                (ChecklistAnswer::NotMet, "neither TTFT nor TPOT: the responses were not streamed".to_owned())
            }
        }
    }
}

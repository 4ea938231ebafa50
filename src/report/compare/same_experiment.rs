//! Whether two sides are one experiment: what differs between them besides the figures.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::{FactName, UNKNOWN};
use super::super::engine_facts;
use super::super::metric::ReportMetric;
use super::super::peer_files::file_definitions::FileDefinitions;
use super::super::request_point::RequestPoint;
use super::ComparedRun;
use super::estimates::metric_of_samples;
use crate::stats::length_histogram::LengthHistogram;
use crate::stats::similarity::{KsTest, ks_test};

/// Kolmogorov-Smirnov distance from which two distributions of lengths are different workloads, if chance cannot
/// explain it.
const MAX_LENGTH_DISTANCE: f64 = 0.1;
/// p-value below which chance does not explain a distance.
const MAX_P_VALUE: f64 = 0.001;
/// Relative difference of request rates from which the loads differ.
const MAX_RATE_DIFFERENCE: f64 = 0.1;

/// Facts that differ from run to run of one experiment.
const PER_RUN: [FactName; 4] = [FactName::Date, FactName::Command, FactName::Duration, FactName::Seed];

/// A name, and the value of a run.
type RunValue = (&'static str, fn(&ComparedRun) -> &str);

/// Who measured, and what the latencies of the records are.
const MEASURES: [RunValue; 5] = [
    ("tool", |run| run.source.tool.as_deref().unwrap_or("Streamgauge")),
    ("TTFT and E2E begin", |run| match metric_of_samples(run, ReportMetric::E2eFromPlanned) {
        ReportMetric::E2eFromPlanned => "at the planned time",
        _ => definitions(run).begin,
    }),
    ("E2E ends", |run| definitions(run).e2e_end),
    ("ITL", |run| definitions(run).itl),
    ("TPOT divides by", |run| definitions(run).tpot_divisor),
];

const fn definitions(run: &ComparedRun) -> FileDefinitions {
    FileDefinitions::of(run.source.format)
}

/// A difference between the sides.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ExperimentDifference {
    /// What differs.
    pub what: String,
    /// Value of the first side.
    pub before: String,
    /// Value of the second side.
    pub after: String,
    /// The workload differs, so that any change may come from it.
    pub workload: bool,
}

/// Whether both sides are one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct WorkloadComparison {
    /// Every run sent the same plan: load, trace and seed.
    pub same_plan: bool,
    /// What differs.
    pub differences: Vec<ExperimentDifference>,
    /// Kolmogorov-Smirnov distance of the prompt lengths, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isl_distance: Option<f64>,
    /// Kolmogorov-Smirnov distance of the response lengths, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub osl_distance: Option<f64>,
}

impl WorkloadComparison {
    pub(super) fn of(before: &[ComparedRun], after: &[ComparedRun]) -> Self {
        let mut differences: Vec<ExperimentDifference> =
            FactName::ALL.into_iter().filter_map(|name| fact_difference(name, before, after)).collect();
        differences.extend(difference("token counts", token_sources(before), token_sources(after), false));
        differences.extend(MEASURES.into_iter().filter_map(|(what, of)| {
            let [before, after] = [before, after].map(|runs| listed(runs.iter().map(of).collect()));
            difference(what, before, after, false)
        }));
        let mut distance = |what: &str, of: PointLength| {
            let KsTest { distance, p_value } = ks_test(&histogram(before, of), &histogram(after, of))?;
            if distance > MAX_LENGTH_DISTANCE && p_value < MAX_P_VALUE {
                let mean = |runs| format!("{:.0} tokens on average", mean_length(runs, of));
                differences.extend(difference(what, mean(before), mean(after), true));
            }
            Some(distance)
        };
        let isl_distance = distance("ISL distribution", RequestPoint::isl);
        let osl_distance = distance("OSL distribution", RequestPoint::osl);
        let (rate_before, rate_after) = (request_rate(before), request_rate(after));
        if (rate_after / rate_before - 1.0).abs() > MAX_RATE_DIFFERENCE && !is_closed(before) && !is_closed(after) {
            let text = |rate: f64| format!("{rate:.2}/s");
            differences.extend(difference("request rate", text(rate_before), text(rate_after), true));
        }
        Self { same_plan: is_same_plan(before, after), differences, isl_distance, osl_distance }
    }

    /// Returns `true` if the workloads differ.
    pub fn is_different(&self) -> bool {
        self.differences.iter().any(|difference| difference.workload)
    }
}

/// `None` if both are equal.
fn difference(what: &str, before: String, after: String, workload: bool) -> Option<ExperimentDifference> {
    (before != after).then(|| ExperimentDifference { what: what.to_owned(), before, after, workload })
}

fn fact_difference(name: FactName, before: &[ComparedRun], after: &[ComparedRun]) -> Option<ExperimentDifference> {
    if PER_RUN.contains(&name) {
        return None;
    }
    let mut sides = [before, after].map(|runs| side_values(name, runs));
    if name == FactName::EngineFlags {
        let shared: Vec<&str> = sides[0].intersection(&sides[1]).copied().collect();
        sides.iter_mut().for_each(|side| side.retain(|flag| !shared.contains(flag)));
    }
    let captures = before.iter().chain(after).any(ComparedRun::is_capture);
    let workload = name.describes_load() && !captures;
    let [before, after] = sides.map(listed);
    difference(name.label(), before, after, workload)
}

fn listed(values: BTreeSet<&str>) -> String {
    if values.is_empty() { UNKNOWN.to_owned() } else { values.into_iter().collect::<Vec<_>>().join(", ") }
}

/// Values of a fact. Flags are one value each, because a server reports many and a change is of few.
fn side_values(name: FactName, runs: &[ComparedRun]) -> BTreeSet<&str> {
    let values = runs.iter().filter_map(|run| run.context.get(name));
    match name {
        FactName::EngineFlags => values.flat_map(engine_facts::split_flags).collect(),
        _ => values.collect(),
    }
}

fn token_sources(runs: &[ComparedRun]) -> String {
    let sources: BTreeSet<&str> = runs.iter().flat_map(|run| run.fold.total.sources.keys().copied()).collect();
    if sources.is_empty() { "none".to_owned() } else { sources.into_iter().collect::<Vec<_>>().join(", ") }
}

/// A length of a request, in tokens.
type PointLength = fn(&RequestPoint) -> Option<u64>;

fn histogram(runs: &[ComparedRun], of: PointLength) -> LengthHistogram {
    let mut histogram = LengthHistogram::default();
    runs.iter().flat_map(|run| &run.fold.points).filter_map(of).for_each(|length| histogram.take(length));
    histogram
}

fn mean_length(runs: &[ComparedRun], of: PointLength) -> f64 {
    let lengths = || runs.iter().flat_map(|run| &run.fold.points).filter_map(of);
    lengths().sum::<u64>() as f64 / lengths().count() as f64
}

/// Mean request rate of the runs, in requests per second.
fn request_rate(runs: &[ComparedRun]) -> f64 {
    let rate = |run: &ComparedRun| {
        let (first, last) = (run.fold.points.first()?.started, run.fold.points.last()?.started);
        (last > first).then(|| (run.fold.points.len() - 1) as f64 / ((last - first) as f64 / 1e9))
    };
    let rates: Vec<f64> = runs.iter().filter_map(rate).collect();
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn is_closed(runs: &[ComparedRun]) -> bool {
    runs.iter().any(|run| run.source.closed_loop)
}

fn is_same_plan(before: &[ComparedRun], after: &[ComparedRun]) -> bool {
    before.iter().chain(after).all(|run| have_one_plan(&before[0], run))
}

/// Whether each two runs in the same place have one plan.
pub(super) fn are_pairs(before: &[ComparedRun], after: &[ComparedRun]) -> bool {
    before.len() == after.len() && before.iter().zip(after).all(|(before, after)| have_one_plan(before, after))
}

/// Load, trace and seed are equal, and the plan does not depend on the server.
fn have_one_plan(one: &ComparedRun, other: &ComparedRun) -> bool {
    let (one, other) = (&one.source, &other.source);
    let known = one.load.arrivals.is_some() && !one.closed_loop && other.run;
    known
        && (&one.load, &one.trace, &one.trace_digest) == (&other.load, &other.trace, &other.trace_digest)
        && (one.seed, one.stretch, one.slots) == (other.seed, other.stretch, other.slots)
}

//! One level of a sweep at one target: its figures, its verdict, and the series that it belongs to.

use schemars::JsonSchema;
use serde::Serialize;

use super::file::SweepLevel;
use super::level_intervals;
use super::level_result::goal_results;
use super::level_runs::LevelRuns;
use super::level_verdict::LevelVerdict;
use super::objective::{self, ObjectiveResult};
use super::pareto;
use super::server_load::ServerLoad;
use crate::measure::slo::criteria::{Criteria, CriterionVerdict, ObservedShare, share_verdict};
use crate::report::RequestSummary;
use crate::report::confidence::MetricConfidence;
use crate::report::metric::ReportMetric;
use crate::report::saturation::LoadGrowth;

/// Flags that change how the load is sent and not what is sent: levels that differ only in them are comparable.
const LOAD_FLAGS: [&str; 8] =
    ["arrivals", "connections", "cooldown", "duration", "max-in-flight", "requests", "warmup", "workers"];

/// Summary of one level at one target.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LevelSummary {
    pub(super) level: SweepLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<&'static str>,
    pub(super) runs: u32,
    pub(super) sustained: bool,
    /// This machine did not send the level as planned, so that it shows nothing about the server.
    pub(super) not_measured: bool,
    /// Whether the level holds the goals; absent if it was not measured, or without goals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) meets: Option<bool>,
    /// Whether the 95 % interval decides that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sure: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<LevelVerdict>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) objectives: Vec<ObjectiveResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) growth: Option<LoadGrowth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_valid: Vec<String>,
    /// A goal is missed by its observed share, or judges no request.
    #[serde(skip)]
    pub(super) misses_shares: bool,
    pub(super) front: bool,
    pub(super) knee: bool,
    /// Metrics of the scraped servers.
    #[serde(skip_serializing_if = "ServerLoad::is_empty")]
    pub(super) servers: ServerLoad,
    /// Requests of a warm level whose shared prefix was gone from the cache; absent if no response has the count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evicted_prefixes: Option<u64>,
    #[serde(flatten)]
    pub(super) summary: RequestSummary,
    #[serde(skip)]
    pub(super) intervals: Vec<(ReportMetric, MetricConfidence)>,
}

impl LevelSummary {
    /// Judges the runs of a level.
    pub(super) fn of(
        mut runs: LevelRuns,
        summary: RequestSummary,
        goals: Option<&Criteria>,
        target: Option<&'static str>,
    ) -> Self {
        let growth = runs.growth();
        let not_valid: Vec<String> = runs.sources.iter().flat_map(|run| run.not_valid.clone()).collect();
        let shares = goals.map(|goals| goal_results(&mut runs.figures, &runs.slos, goals));
        let misses_shares = shares.iter().flatten().any(|seen| !seen.is_currently_met());
        let goals = goals.filter(|_| not_valid.is_empty());
        let seen = shares.filter(|_| goals.is_some());
        let verdict = seen.as_ref().and_then(|seen| LevelVerdict::of(seen, growth.is_some()));
        let surely_missed =
            |seen: &ObservedShare| share_verdict(seen.good, seen.of, seen.share) == CriterionVerdict::No;
        let sure = verdict.map(|verdict| match verdict {
            // One short level may look saturated by chance.
            LevelVerdict::Saturated => runs.is_surely_saturated() || seen.iter().flatten().any(surely_missed),
            verdict => verdict.is_sure(),
        });
        let objectives = goals.map_or_else(Vec::new, |goals| {
            objective::results(&mut runs.figures, (&runs.slos, &runs.objectives), goals, growth.is_some())
        });
        Self {
            target,
            runs: runs.runs,
            sustained: runs.sustained,
            not_measured: !not_valid.is_empty(),
            meets: verdict.map(LevelVerdict::holds),
            sure,
            verdict,
            objectives,
            growth,
            not_valid,
            misses_shares,
            front: false,
            knee: false,
            servers: ServerLoad::of(&runs.sources),
            evicted_prefixes: runs.evicted_prefixes(),
            intervals: level_intervals::intervals(&runs.points),
            level: runs.level,
            summary,
        }
    }

    pub(super) fn percentile(&self, metric: ReportMetric, percent: f64) -> Option<f64> {
        let percentiles = &self.summary.metric(metric)?.percentiles;
        percentiles.iter().find(|(of, _)| *of == percent).map(|(_, value)| *value)
    }

    pub(super) fn median(&self, metric: ReportMetric) -> Option<f64> {
        self.percentile(metric, 50.0)
    }

    /// Mean E2E from the planned moment, in milliseconds.
    pub(super) fn latency(&self) -> Option<f64> {
        Some(self.summary.metric(ReportMetric::E2eFromPlanned)?.avg)
    }

    /// Requests/s for their mean E2E.
    pub(super) fn power(&self) -> Option<f64> {
        self.latency().filter(|latency| *latency > 0.0).map(|latency| self.summary.throughput.requests / latency)
    }

    /// True if the level's latencies are those of a server that keeps up.
    pub(super) fn is_sound(&self) -> bool {
        self.growth.is_none() && !self.not_measured && self.successes() > 0
    }

    pub(super) fn successes(&self) -> u64 {
        self.summary.outcomes.get("success").copied().unwrap_or(0)
    }

    /// Requests without a complete response.
    pub(super) fn failed(&self) -> u64 {
        self.summary.requests - self.successes()
    }

    /// Name, with the target if there are two.
    pub(super) fn name(&self) -> String {
        match self.target {
            Some(target) => format!("{} ({target})", self.level.name),
            None => self.level.name.clone(),
        }
    }
}

/// Marks overloaded levels as missed: a server without any response, after a lower level of the series that had some.
pub(super) fn mark_overloaded(levels: &mut [LevelSummary], has_goals: bool) {
    for places in series(levels) {
        let answered = places.iter().position(|at| levels[*at].successes() > 0);
        for at in places.into_iter().skip(answered.map_or(usize::MAX, |at| at + 1)) {
            let level = &mut levels[at];
            if level.successes() == 0 && level.summary.requests > 0 {
                level.not_measured = false;
                (level.meets, level.sure) = (has_goals.then_some(false), has_goals.then_some(true));
                level.verdict = has_goals.then_some(LevelVerdict::Missed);
            }
        }
    }
}

/// Returns `true` if two levels differ only in their load.
pub(super) fn same_series(a: &LevelSummary, b: &LevelSummary) -> bool {
    let of = |point: &LevelSummary| (point.target, point.level.cache, point.level.rate.is_some());
    of(a) == of(b) && a.level.flags == b.level.flags
}

/// Returns `true` if two levels send the same requests to the same target, however they are sent.
pub(super) fn are_comparable(a: &LevelSummary, b: &LevelSummary) -> bool {
    let workload = |level: &LevelSummary| {
        let flags = level.level.flags.iter().filter(|(flag, _)| !LOAD_FLAGS.contains(&flag.as_str()));
        flags.map(|(flag, values)| (flag.clone(), values.clone())).collect::<Vec<_>>()
    };
    (a.target, a.level.cache) == (b.target, b.level.cache) && workload(a) == workload(b)
}

/// Places of the levels that are alike, in the order of the levels.
fn groups(levels: &[LevelSummary], alike: fn(&LevelSummary, &LevelSummary) -> bool) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in 0..levels.len() {
        match groups.iter_mut().find(|group| alike(&levels[group[0]], &levels[at])) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// Places of the levels of each series, ascending by load.
pub(super) fn series(levels: &[LevelSummary]) -> Vec<Vec<usize>> {
    let mut series = groups(levels, same_series);
    for places in &mut series {
        places.sort_by(|a, b| levels[*a].level.load().total_cmp(&levels[*b].level.load()));
    }
    series
}

/// Places of the levels of each workload.
pub(super) fn workloads(levels: &[LevelSummary]) -> Vec<Vec<usize>> {
    groups(levels, are_comparable)
}

/// Marks the Pareto front of each workload and the knee of each series.
pub(super) fn mark_front_and_knee(levels: &mut [LevelSummary]) {
    for workload in workloads(levels) {
        let sound = workload.into_iter().filter(|at| levels[*at].is_sound());
        let speed = |at: usize| Some((at, levels[at].median(ReportMetric::UserRate)?));
        let fast: Vec<(usize, f64)> = sound.filter_map(speed).collect();
        // A level alone is no front.
        if fast.len() < 2 {
            continue;
        }
        let points: Vec<_> =
            fast.iter().map(|(at, speed)| (levels[*at].summary.throughput.output_tokens, *speed)).collect();
        let best = pareto::pareto_front(&points);
        fast.iter().zip(best).for_each(|((at, _), best)| levels[*at].front = best);
    }
    for series in series(levels) {
        let measured: Vec<usize> = series.into_iter().filter(|at| !levels[*at].not_measured).collect();
        let power: Vec<Option<f64>> =
            measured.iter().map(|at| levels[*at].power().filter(|_| levels[*at].is_sound())).collect();
        if let Some(knee) = pareto::knee(&power) {
            levels[measured[knee]].knee = true;
        }
    }
}

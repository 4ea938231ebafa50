//! Report on a sweep: one point per level, aggregated from the records of its runs. Pure, except that it reads the
//! folder.
//!
//! ```text
//! DIR/sweep.json -> file -> Sweep -> text, json, csv, markdown, html
//! DIR/runs/*     -> level_result (aggregate of a run)
//! ```
//!
//! # Points
//!
//! A point combines all runs of a level at a target; in a search only the valid ones, if there are any. Values are
//! pooled, and rates use the sum of the runs' times. A level *meets* the goals if every goal is met by its observed
//! share. The load must also not have grown ([`super::saturation`]), and the load generator must have kept up.
//! *Offered* is the requested load. Achieved rates count successes until the last end.
//!
//! # Outstanding levels
//!
//! Levels of one series share a target and differ only in their load. Within a series [`pareto::pareto_front`] compares
//! output tokens/s with the median user's tokens/s, without levels that grew or are invalid. [`pareto::knee`] compares
//! successes/s with the mean E2E.
//!
//! # JSON
//! One object. `streamgauge_sweep_report` is the schema version. An absent key means unknown, never zero.
//!
//! | key | content |
//! |---|---|
//! | `path`, `plan`, `answer` | the folder, and the content of its `sweep.json` ([`mod@file`]) |
//! | `goals` | goals that levels are judged by |
//! | `levels[]` | `level` ([`mod@file`]), `target` (`A` or `B`, if there are two), `runs`, `sustained`, `meets`, `growth` (`per_second`, `t`), `not_valid`, `front`, `knee`, and every key of a report from `requests` to `metrics` |
//! | `differences[]` | of B from A: `level`, `metric`, `stat`, `a`, `b`, `change`, and `pairs`: the change in each pass |
//! | `warnings[]` | `warning`, `text`, `advice`, `levels` |

mod ab_diff;
mod export;
pub mod file;
pub mod html;
pub(super) mod level_result;
pub mod pareto;
mod text;

use std::path::Path;

use serde::Serialize;

use super::accumulate::RequestStats;
use super::confidence::MetricConfidence;
use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use super::saturation::LoadGrowth;
use super::source::ReportSource;
use super::warnings::{self, ReportWarning, WarningText};
use super::{PERCENTILES, RequestSummary};
use crate::measure::slo::criteria::{Criteria, ObservedShare};
use crate::measure::slo::{Slo, Slos};
use ab_diff::{TargetDifference, differences};
pub use export::{csv, markdown};
use file::{SearchOutcome, SweepFile, SweepLevel, SweepSpec};
use html::SweepChartFacts;
pub use level_result::{LevelResult, SweepError, read_run};
pub use text::render;

/// Schema version of the JSON object.
const VERSION: u32 = 1;
/// Default minimum goodput of a level, as a share.
pub(super) const DEFAULT_GOODPUT_GOAL: f64 = 0.95;
const TARGET_NAMES: [&str; 2] = ["A", "B"];

/// Options for judging and showing a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepReportOptions {
    /// SLOs that replace those of the runs.
    pub slos: Vec<Slo>,
    /// Minimum goodput of listed levels; replaces the sweep's own.
    pub min_goodput: Option<f64>,
    /// Percentiles in tables.
    pub percentiles: Vec<f64>,
    /// Computes the intervals that the page shows.
    pub has_intervals: bool,
}

impl SweepReportOptions {
    /// Selects the percentiles that fit on a screen.
    pub fn with_default_percentiles(self) -> Self {
        Self { percentiles: vec![50.0, 99.0], ..self }
    }
}

/// Report on a sweep. The module documents its keys.
#[derive(Debug, Serialize)]
pub struct Sweep {
    streamgauge_sweep_report: u32,
    path: String,
    plan: SweepSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<SearchOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goals: Option<String>,
    levels: Vec<LevelSummary>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<TargetDifference>,
    warnings: Vec<LevelWarning>,
    /// Percentiles in tables.
    #[serde(skip)]
    percentiles: Vec<f64>,
    #[serde(skip)]
    chart_facts: SweepChartFacts,
}

/// Summary of one level at one target.
#[derive(Debug, Serialize)]
struct LevelSummary {
    level: SweepLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
    runs: u32,
    sustained: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    meets: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<LoadGrowth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_valid: Vec<String>,
    front: bool,
    knee: bool,
    #[serde(flatten)]
    summary: RequestSummary,
    #[serde(skip)]
    intervals: Vec<(ReportMetric, MetricConfidence)>,
}

/// A warning with the levels that it applies to.
#[derive(Debug, Serialize)]
struct LevelWarning {
    #[serde(flatten)]
    warning: WarningText,
    levels: Vec<String>,
}

/// All runs of a level at a target.
struct LevelRuns {
    level: SweepLevel,
    target: usize,
    sustained: bool,
    runs: u32,
    figures: RequestStats,
    seconds: f64,
    slos: Slos,
    sources: Vec<ReportSource>,
    growth: Option<LoadGrowth>,
    /// Summary of each run.
    run_summaries: Vec<RequestSummary>,
    /// Requests of all runs, for intervals.
    points: Vec<RequestPoint>,
}

impl LevelRuns {
    fn new(level: SweepLevel, target: usize, slos: Slos) -> Self {
        Self {
            level,
            target,
            sustained: false,
            runs: 0,
            figures: RequestStats::default(),
            seconds: 0.0,
            slos,
            sources: Vec::new(),
            growth: None,
            run_summaries: Vec::new(),
            points: Vec::new(),
        }
    }

    fn is_valid(&self) -> bool {
        self.sources.iter().all(|run| run.not_valid.is_empty())
    }

    fn reset(&mut self) {
        let (level, slos) = (std::mem::take(&mut self.level), std::mem::take(&mut self.slos));
        *self = Self::new(level, self.target, slos);
    }
}

impl Sweep {
    /// Reads the runs listed in a sweep's file.
    ///
    /// # Errors
    /// Returns an error if a run cannot be read.
    pub fn read(folder: &Path, file: SweepFile, wanted: &SweepReportOptions) -> Result<Self, SweepError> {
        let percentiles = percentiles(&wanted.percentiles);
        let mut all: Vec<LevelRuns> = Vec::new();
        for run in file.runs {
            let mut one = read_run(&folder.join(&run.folder), &wanted.slos)?;
            let apart = RequestSummary::of(&mut one.figures, one.seconds, &one.slos, &percentiles);
            let same = |of: &LevelRuns| of.level.name == run.level.name && of.target == run.target;
            let at = all.iter().position(same).unwrap_or(all.len());
            if at == all.len() {
                all.push(LevelRuns::new(run.level, run.target, std::mem::take(&mut one.slos)));
            }
            let together = &mut all[at];
            // A search repeats invalid runs. If a repetition succeeded, only the valid runs count.
            if file.plan.search.is_some() {
                match (together.is_valid(), one.not_valid().is_empty()) {
                    (true, false) if together.runs > 0 => continue,
                    (false, true) => together.reset(),
                    _ => {}
                }
            }
            together.figures.merge(&one.figures);
            if wanted.has_intervals {
                html::append(&mut together.points, one.points);
            }
            together.seconds += one.seconds;
            together.sustained |= run.sustained;
            together.runs += 1;
            together.sources.push(one.source);
            together.growth = together.growth.or(one.growth);
            together.run_summaries.push(apart);
        }
        let least = wanted.min_goodput.or(file.goodput).unwrap_or(DEFAULT_GOODPUT_GOAL);
        let goals = goals(&file.plan, wanted, least, &all);
        all.sort_by(|a, b| {
            a.target.cmp(&b.target).then_with(|| load(&file.plan, &a.level).total_cmp(&load(&file.plan, &b.level)))
        });
        let differences = differences(&all);
        let chart_facts = SweepChartFacts::of(&all, goals.as_ref());
        let mut warnings = Vec::new();
        let points = all.into_iter().map(|mut together| {
            let seen =
                goals.as_ref().map(|goals| level_result::goal_results(&mut together.figures, &together.slos, goals));
            let summary = RequestSummary::of(&mut together.figures, together.seconds, &together.slos, &percentiles);
            let doubts = warnings::collect(
                &summary,
                (&mut together.figures, &[]),
                &together.sources,
                (None, None),
                &wanted.percentiles,
            );
            let doubts = doubts.into_iter().chain(together.growth.map(ReportWarning::Saturation));
            collect_warnings(&mut warnings, doubts, &together.level.name);
            let not_valid: Vec<String> = together.sources.iter().flat_map(|run| run.not_valid.clone()).collect();
            let kept = |seen: Vec<ObservedShare>| {
                seen.iter().all(ObservedShare::is_currently_met) && together.growth.is_none() && not_valid.is_empty()
            };
            LevelSummary {
                target: (file.plan.targets.len() > 1).then(|| TARGET_NAMES[together.target.min(1)]),
                runs: together.runs,
                sustained: together.sustained,
                meets: seen.map(kept),
                growth: together.growth,
                front: false,
                knee: false,
                level: together.level,
                not_valid,
                summary,
                intervals: html::intervals(&together.points),
            }
        });
        let mut levels: Vec<LevelSummary> = points.collect();
        mark_front_and_knee(&mut levels);
        Ok(Self {
            streamgauge_sweep_report: VERSION,
            path: folder.display().to_string(),
            plan: file.plan,
            answer: file.answer,
            goals: goals.map(|goals| goals.to_string()),
            levels,
            differences,
            warnings,
            percentiles: wanted.percentiles.clone(),
            chart_facts,
        })
    }

    /// Renders the report as one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns `true` if every run is valid.
    pub fn is_valid(&self) -> bool {
        self.levels.iter().all(|point| point.not_valid.is_empty())
    }

    /// Returns `true` if any level's goodput is below `least`, a share of 1.
    pub fn is_below(&self, least: f64) -> bool {
        let goodput =
            |point: &LevelSummary| point.summary.goodput.iter().any(|of| of.share.is_none_or(|share| share < least));
        self.levels.iter().any(goodput)
    }
}

/// Adds the percentiles that the JSON always has to the shown ones.
fn percentiles(shown: &[f64]) -> Vec<f64> {
    let mut all = [&PERCENTILES[..], shown].concat();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Returns the goals: those of the search, or goodput of the SLOs. SLOs given now replace the sweep's.
fn goals(plan: &SweepSpec, wanted: &SweepReportOptions, least: f64, all: &[LevelRuns]) -> Option<Criteria> {
    let sought = plan.search.as_ref().filter(|_| wanted.slos.is_empty());
    let judged = all.iter().any(|of| of.slos.iter().next().is_some());
    let of_goodput = || judged.then(|| Criteria::of_goodput(least));
    sought.and_then(|sought| sought.goals.parse().ok()).or_else(of_goodput)
}

/// Returns the sort key of a level: its position in the plan, or its load in a search.
fn load(plan: &SweepSpec, level: &SweepLevel) -> f64 {
    let listed = plan.levels.iter().position(|of| of.name == level.name);
    listed.map_or(level.load(), |at| at as f64)
}

/// Returns `true` if two levels differ only in their load.
fn same_series(a: &LevelSummary, b: &LevelSummary) -> bool {
    let of = |point: &LevelSummary| (point.target, point.level.cache, point.level.rate.is_some());
    of(a) == of(b) && a.level.flags == b.level.flags
}

fn mark_front_and_knee(levels: &mut [LevelSummary]) {
    for first in 0..levels.len() {
        let series: Vec<usize> = (first..levels.len()).filter(|at| same_series(&levels[first], &levels[*at])).collect();
        if (0..first).any(|before| same_series(&levels[before], &levels[first])) {
            continue;
        }
        let sound = |at: &&usize| levels[**at].growth.is_none() && levels[**at].not_valid.is_empty();
        let speed = |at: &usize| Some((*at, levels[*at].median(ReportMetric::UserRate)?));
        let fast: Vec<(usize, f64)> = series.iter().filter(sound).filter_map(speed).collect();
        let points: Vec<_> =
            fast.iter().map(|(at, speed)| (levels[*at].summary.throughput.output_tokens, *speed)).collect();
        let mut by_load = series;
        by_load.sort_by(|a, b| levels[*a].level.load().total_cmp(&levels[*b].level.load()));
        let power =
            |at: &usize| (levels[*at].summary.throughput.requests, levels[*at].latency().unwrap_or(f64::INFINITY));
        let knee = pareto::knee(&by_load.iter().map(power).collect::<Vec<_>>());
        let best = pareto::pareto_front(&points);
        fast.iter().zip(best).for_each(|((at, _), best)| levels[*at].front = best);
        if let Some(knee) = knee {
            levels[by_load[knee]].knee = true;
        }
    }
}

impl LevelSummary {
    fn percentile(&self, metric: ReportMetric, percent: f64) -> Option<f64> {
        percentile_of(&self.summary, metric, percent)
    }

    fn median(&self, metric: ReportMetric) -> Option<f64> {
        self.percentile(metric, 50.0)
    }

    /// Mean E2E from the planned moment, in milliseconds.
    fn latency(&self) -> Option<f64> {
        Some(self.summary.metric(ReportMetric::E2eFromPlanned)?.avg)
    }
}

fn percentile_of(summary: &RequestSummary, metric: ReportMetric, percent: f64) -> Option<f64> {
    let percentiles = &summary.metric(metric)?.percentiles;
    percentiles.iter().find(|(of, _)| *of == percent).map(|(_, value)| *value)
}

/// Merges a level's warnings into the list, so that each warning lists its levels.
fn collect_warnings(all: &mut Vec<LevelWarning>, doubts: impl Iterator<Item = ReportWarning>, level: &str) {
    for doubt in doubts {
        match all.iter_mut().find(|known| known.warning.warning == doubt.name()) {
            Some(known) if known.levels.iter().any(|known| known == level) => {}
            Some(known) => known.levels.push(level.to_owned()),
            None => {
                all.push(LevelWarning { warning: WarningText::from_warning(&doubt), levels: vec![level.to_owned()] })
            }
        }
    }
}

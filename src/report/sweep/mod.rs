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
//! share and the load did not grow ([`super::saturation`]). It is *sure* if the 95 % interval of the share decides, or if
//! more than one short run grew. A level that this machine did not send as planned is *not measured*: it neither meets nor
//! misses. *Offered* is the requested load. Achieved rates count successes until the last end.
//!
//! # Outstanding levels
//!
//! Levels of one series share a target and differ only in their load. Levels of one workload send the same requests,
//! however they are sent. Within a workload [`pareto::pareto_front`] compares output tokens/s with the median user's
//! tokens/s; within a series [`pareto::knee`] compares successes/s with the mean E2E. Saturated levels and those that were
//! not measured are never in the front or the knee. `operating_point` selects the level to operate at.
//!
//! # JSON
//! One object. `streamgauge_sweep_report` is the schema version. An absent key means unknown, never zero.
//!
//! | key | content |
//! |---|---|
//! | `context` | as in a report; where levels differ, a fact has each value |
//! | `path`, `plan`, `answer`, `ended_at` | the folder, and the content of its `sweep.json` ([`mod@file`]) |
//! | `goals` | goals that levels are judged by |
//! | `levels[]` | `level` ([`mod@file`]), `target` (`A` or `B`, if there are two), `runs`, `sustained`, `not_measured`, `meets`, `sure`, `verdict`, `objectives[]`, `growth` (`per_second`, `t`), `not_valid`, `front`, `knee`, `servers` (`kv_usage`, `gpu_utilization`, `preemptions`), `evicted_prefixes`, and every key of a report from `requests` to `metrics` |
//! | `expectations[]` | of rows: `level`, `expect`, `verdict` (`confirmed`, `refuted`, `undecided`), `evidence` |
//! | `objectives[]` | how far each objective holds alone: `objective`, `target`, `series`, `holds_to`, `missed_at`, `sure` |
//! | `operating_points[]` | `kind` (`user`, `balanced`, `cost`, `peak`, `collapse`), `level`, `series`, `output_tokens_per_second`, `user_tokens_per_second` |
//! | `cache_pairs[]` | warm against cold: `cold`, `warm`, `figures[]`, `evicted_prefixes` |
//! | `loop_curves[]` | open and closed levels of one workload: `metric`, `points[]` |
//! | `comparison` | of B against A: `winner`, and `levels[]` with the objects of `compare` |
//! | `warnings[]` | `warning`, `text`, `advice`, `levels` |

mod cache_pair;
mod decision;
pub mod expectation;
mod export;
pub mod file;
pub mod html;
mod level_intervals;
pub(super) mod level_result;
mod level_runs;
mod level_summary;
pub mod level_verdict;
mod loop_curve;
mod objective;
mod objective_limit;
mod operating_point;
pub mod pareto;
mod server_load;
mod sweep_series;
mod text;

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::accumulate::AccumulatorSettings;
use super::compare::level_comparison::{LevelComparisons, LevelComparisonsDocument, LevelSides};
use super::compare::{ComparisonSettings, DEFAULT_MARGIN};
use super::context::ReportContext;
use super::warning::{ReportWarning, WarningText};
use super::warnings;
use super::{PERCENTILES, RequestSummary};
use crate::measure::slo::criteria::Criteria;
use crate::measure::slo::{Slo, Slos};
use cache_pair::{CachePair, cache_pairs};
use expectation::{ExpectationResult, expectations};
pub use export::{csv, markdown};
use file::{SearchOutcome, SweepFile, SweepLevel, SweepSpec};
use html::SweepChartFacts;
pub use level_result::{LevelResult, SweepError, read_run};
use level_runs::LevelRuns;
use level_summary::{LevelSummary, mark_front_and_knee, mark_overloaded};
use loop_curve::{LoopCurve, loop_curves};
use objective_limit::ObjectiveLimit;
use operating_point::{OperatingPoint, operating_points};
use sweep_series::SweepSeries;
pub use text::render;

/// Schema version of the JSON object.
const VERSION: u32 = 1;
/// Default minimum goodput of a level, as a share.
pub const DEFAULT_GOODPUT_GOAL: f64 = 0.95;
const TARGET_NAMES: [&str; 2] = ["A", "B"];

/// Options for judging and showing a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepReportOptions {
    /// SLOs that replace those of the runs.
    pub slos: Vec<Slo>,
    /// Goals of listed levels; replace the sweep's own.
    pub goals: Option<Criteria>,
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
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sweep {
    streamgauge_sweep_report: u32,
    /// Facts of all levels; where levels differ, a fact has each value.
    context: ReportContext,
    path: String,
    plan: SweepSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<SearchOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goals: Option<String>,
    levels: Vec<LevelSummary>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    expectations: Vec<ExpectationResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objectives: Vec<ObjectiveLimit>,
    operating_points: Vec<OperatingPoint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cache_pairs: Vec<CachePair>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loop_curves: Vec<LoopCurve>,
    /// Target B against target A.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LevelComparisonsDocument<'static>>")]
    comparison: Option<Value>,
    #[serde(skip)]
    targets: Option<LevelComparisons>,
    warnings: Vec<LevelWarning>,
    /// Percentiles in tables.
    #[serde(skip)]
    percentiles: Vec<f64>,
    #[serde(skip)]
    chart_facts: SweepChartFacts,
    #[serde(skip)]
    series: Vec<SweepSeries>,
}

/// A warning with the levels that it applies to.
#[derive(Debug, Serialize, JsonSchema)]
struct LevelWarning {
    #[serde(flatten)]
    warning: WarningText,
    levels: Vec<String>,
}

impl Sweep {
    /// Reads the runs listed in a sweep's file.
    ///
    /// # Errors
    /// Returns an error if a run cannot be read.
    pub fn read(folder: &Path, file: SweepFile, options: &SweepReportOptions) -> Result<Self, SweepError> {
        let percentiles = percentiles(&options.percentiles);
        let targets = compare_targets(folder, &file, options)?;
        let expectations = expectations(folder, &file, &comparison_slos(&file, options))?;
        let (mut all, mut models) = (Vec::<LevelRuns>::new(), BTreeSet::new());
        let listed = options.goals.clone().unwrap_or_else(|| file.listed_goals());
        for run in file.runs {
            let mut one = read_run(&folder.join(&run.folder), &options.slos, &listed)?;
            models.append(&mut one.models);
            let same = |of: &LevelRuns| of.level.name == run.level.name && of.target == run.target;
            let at = all.iter().position(same).unwrap_or(all.len());
            if at == all.len() {
                let prefix = shared_prefix(&file.plan, &run.level);
                all.push(LevelRuns::new(run.level, run.target, prefix));
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
            together.add(one, run.sustained, options.has_intervals);
        }
        let goals = goals(&file.plan, options, listed, &all);
        all.sort_by(|a, b| {
            a.target.cmp(&b.target).then_with(|| load(&file.plan, &a.level).total_cmp(&load(&file.plan, &b.level)))
        });
        let seconds = all.iter().map(|level| level.seconds).sum();
        let context = ReportContext::of(all.iter().flat_map(|level| &level.sources), &models, seconds);
        let chart_facts = SweepChartFacts::of(&all, goals.as_ref());
        let mut warnings = Vec::new();
        let two = file.plan.targets.len() > 1;
        let summarize = |mut together: LevelRuns| {
            let summary = RequestSummary::of(&mut together.figures, together.seconds, &together.slos, &percentiles);
            let (doubts, growth) = (&options.percentiles, together.growth());
            let doubts =
                warnings::collect(&summary, (&mut together.figures, &[]), &together.sources, (None, None), doubts);
            let doubts = doubts.into_iter().chain(growth.map(ReportWarning::Saturation));
            collect_warnings(&mut warnings, doubts, &together.level.name);
            let target = two.then(|| TARGET_NAMES[together.target.min(1)]);
            LevelSummary::of(together, summary, goals.as_ref(), target)
        };
        let mut levels: Vec<LevelSummary> = all.into_iter().map(summarize).collect();
        mark_overloaded(&mut levels, goals.is_some());
        mark_front_and_knee(&mut levels);
        let series = SweepSeries::all(&levels, &file.plan.flags);
        let goals = goals.map(|goals| goals.to_string());
        Ok(Self {
            streamgauge_sweep_report: VERSION,
            context,
            path: folder.display().to_string(),
            plan: file.plan,
            answer: file.answer,
            ended_at: file.ended_at,
            expectations,
            objectives: objective_limit::limits(&levels, &series),
            operating_points: operating_points(&levels, &series, goals.is_some()),
            goals,
            cache_pairs: cache_pairs(&levels),
            loop_curves: loop_curves(&levels),
            comparison: targets.as_ref().map(|compared| json!(compared.document())),
            targets,
            levels,
            warnings,
            percentiles: options.percentiles.clone(),
            chart_facts,
            series,
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

    /// Returns `true` if a level misses its goals by the observed shares.
    pub fn misses_goals(&self) -> bool {
        self.levels.iter().any(|level| level.misses_shares)
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
fn goals(plan: &SweepSpec, options: &SweepReportOptions, listed: Criteria, all: &[LevelRuns]) -> Option<Criteria> {
    let sought = plan.search.as_ref().filter(|_| options.slos.is_empty());
    let judged = all.iter().any(|of| of.slos.iter().next().is_some()) || listed.gaps().next().is_some();
    sought.and_then(|sought| sought.goals.parse().ok()).or_else(|| judged.then_some(listed))
}

/// Returns the sort key of a level: its position in the plan, or its load in a search.
fn load(plan: &SweepSpec, level: &SweepLevel) -> f64 {
    let listed = plan.levels.iter().position(|of| of.name == level.name);
    listed.map_or(level.load(), |at| at as f64)
}

/// Length of the prefix that the level's prompts share, if it is warm.
fn shared_prefix(plan: &SweepSpec, level: &SweepLevel) -> Option<u64> {
    let flags = level.flags.get("shared-prefix").or_else(|| plan.flags.get("shared-prefix"));
    flags.filter(|_| level.cache == file::CacheState::Warm)?.first()?.parse().ok()
}

/// Compares the passes of both targets, level by level.
fn compare_targets(
    folder: &Path,
    file: &SweepFile,
    options: &SweepReportOptions,
) -> Result<Option<LevelComparisons>, SweepError> {
    if file.plan.targets.len() < 2 {
        return Ok(None);
    }
    let sides = file.plan.levels.iter().map(|level| {
        let [before, after] = [0, 1].map(|target| file.level_runs(folder, &level.name, target));
        LevelSides { level: level.name.clone(), before, after }
    });
    let settings = ComparisonSettings { margin: DEFAULT_MARGIN, although_different: false, conditions: Vec::new() };
    let slos = comparison_slos(file, options);
    let of_run = || AccumulatorSettings { slos: slos.clone(), ..AccumulatorSettings::default() };
    Ok(Some(LevelComparisons::read(sides.collect(), &settings, of_run)?))
}

/// The SLOs given now, or those of the sweep.
fn comparison_slos(file: &SweepFile, options: &SweepReportOptions) -> Slos {
    let own = file.plan.flags.get("slo").into_iter().flatten().filter_map(|text| text.parse().ok());
    let slos = if options.slos.is_empty() { own.collect() } else { options.slos.clone() };
    Slos::new(slos).unwrap_or_default()
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

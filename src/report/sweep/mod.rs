//! What a sweep came to: one point for each level, from the records of its runs. A pure fold of its folder.
//!
//! ```text
//! DIR/sweep.json -> file -> Sweep -> text, json, csv, markdown
//! DIR/runs/*     -> measured (the fold of a run)
//! ```
//!
//! # What is in a point
//! All runs of a level at a target together (of a search the valid ones, where there are any): values of all of them, and rates over the sum of their times. A level *meets*
//! the goals if each is met by the share that was seen, and the load neither grew ([`super::growth`]) nor was more than the
//! machine could send. *Offered* is what was asked for; what was achieved is of successes, and over a time that goes on to
//! the last end.
//!
//! # Which levels stand out
//! Those of one series (a target, and levels that differ in their load alone) are held against each other:
//! [`front::front`] of output tokens/s and the median user's tokens/s, without levels that grew or are not valid; and
//! [`front::knee`] of successes/s and the mean E2E.
//!
//! # JSON
//! One object. `streamgauge_sweep_report` is the version of its shape; a key that is absent is unknown, never zero.
//!
//! | key | what |
//! |---|---|
//! | `path`, `plan`, `answer` | the folder, and what its `sweep.json` says ([`mod@file`]) |
//! | `goals` | what levels are judged by |
//! | `levels[]` | `level` ([`mod@file`]), `target` (`A`, `B` where there are two), `runs`, `sustained`, `meets`, `growth` (`per_second`, `t`), `not_valid`, `front`, `knee`, and every key of a report from `requests` to `metrics` |
//! | `differences[]` | of B against A: `level`, `metric`, `stat`, `a`, `b`, `change`, and `pairs`: the change of each pass by itself |
//! | `warnings[]` | `warning`, `text`, `advice`, `levels` |

pub mod file;
pub mod front;
mod measured;
mod text;
mod versus;
mod words;

use std::path::Path;

use serde::Serialize;

use super::fold::Figures;
use super::growth::Growth;
use super::metric::Metric;
use super::source::Source;
use super::warnings::{self, Told, Warning};
use super::{PERCENTILES, Summary};
use crate::measure::slo::goals::{Goals, Seen};
use crate::measure::slo::{Slo, Slos};
use file::{Answer, File, Level, Plan};
pub use measured::{Measured, SweepError, measured};
pub use text::render;
use versus::{Difference, differences};
pub use words::{csv, markdown};

/// The version of the JSON object.
const VERSION: u32 = 1;
/// The goodput that a level must have where nobody says.
const USUAL_GOAL: f64 = 0.95;
/// Two targets.
const TARGETS: [&str; 2] = ["A", "B"];

/// How a sweep is judged and shown.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Objectives instead of those that its runs were judged by.
    pub slos: Vec<Slo>,
    /// The goodput that a level must have where nothing was looked for, instead of what the sweep says.
    pub least: Option<f64>,
    /// The percentiles that tables show.
    pub percentiles: Vec<f64>,
}

impl Wanted {
    /// The percentiles that a screen has room for.
    pub fn with_usual_percentiles(self) -> Self {
        Self { percentiles: vec![50.0, 99.0], ..self }
    }
}

/// A sweep. See the module for the keys.
#[derive(Debug, Serialize)]
pub struct Sweep {
    streamgauge_sweep_report: u32,
    path: String,
    plan: Plan,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goals: Option<String>,
    levels: Vec<Point>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    differences: Vec<Difference>,
    warnings: Vec<Doubt>,
    /// The percentiles of tables.
    #[serde(skip)]
    shown: Vec<f64>,
}

/// One level at one target.
#[derive(Debug, Serialize)]
struct Point {
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
    runs: u32,
    sustained: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    meets: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<Growth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_valid: Vec<String>,
    front: bool,
    knee: bool,
    #[serde(flatten)]
    summary: Summary,
}

/// A doubt about some levels.
#[derive(Debug, Serialize)]
struct Doubt {
    #[serde(flatten)]
    told: Told,
    levels: Vec<String>,
}

/// All runs of a level at a target.
struct Together {
    level: Level,
    target: usize,
    sustained: bool,
    runs: u32,
    figures: Figures,
    seconds: f64,
    slos: Slos,
    sources: Vec<Source>,
    growth: Option<Growth>,
    /// Each run by itself.
    apart: Vec<Summary>,
}

impl Together {
    fn new(level: Level, target: usize, slos: Slos) -> Self {
        Self {
            level,
            target,
            sustained: false,
            runs: 0,
            figures: Figures::default(),
            seconds: 0.0,
            slos,
            sources: Vec::new(),
            growth: None,
            apart: Vec::new(),
        }
    }

    fn is_valid(&self) -> bool {
        self.sources.iter().all(|run| run.not_valid.is_empty())
    }

    fn forget(&mut self) {
        let (level, slos) = (std::mem::take(&mut self.level), std::mem::take(&mut self.slos));
        *self = Self::new(level, self.target, slos);
    }
}

impl Sweep {
    /// Reads the runs that a sweep's file lists.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn read(folder: &Path, file: File, wanted: &Wanted) -> Result<Self, SweepError> {
        let percentiles = percentiles(&wanted.percentiles);
        let mut all: Vec<Together> = Vec::new();
        for run in file.runs {
            let mut one = measured(&folder.join(&run.folder), &wanted.slos)?;
            let apart = Summary::of(&mut one.figures, one.seconds, &one.slos, &percentiles);
            let same = |of: &Together| of.level.name == run.level.name && of.target == run.target;
            let at = all.iter().position(same).unwrap_or(all.len());
            if at == all.len() {
                all.push(Together::new(run.level, run.target, std::mem::take(&mut one.slos)));
            }
            let together = &mut all[at];
            // A search makes what is not valid again; where that has worked only the valid ones count.
            if file.plan.search.is_some() {
                match (together.is_valid(), one.not_valid().is_empty()) {
                    (true, false) if together.runs > 0 => continue,
                    (false, true) => together.forget(),
                    _ => {}
                }
            }
            together.figures.join(&one.figures);
            together.seconds += one.seconds;
            together.sustained |= run.sustained;
            together.runs += 1;
            together.sources.push(one.source);
            together.growth = together.growth.or(one.growth);
            together.apart.push(apart);
        }
        let least = wanted.least.or(file.goodput).unwrap_or(USUAL_GOAL);
        let goals = goals(&file.plan, wanted, least, &all);
        all.sort_by(|a, b| {
            a.target.cmp(&b.target).then_with(|| load(&file.plan, &a.level).total_cmp(&load(&file.plan, &b.level)))
        });
        let differences = differences(&all);
        let mut warnings = Vec::new();
        let points = all.into_iter().map(|mut together| {
            let seen = goals.as_ref().map(|goals| measured::seen(&mut together.figures, &together.slos, goals));
            let summary = Summary::of(&mut together.figures, together.seconds, &together.slos, &percentiles);
            let doubts =
                warnings::of(&summary, &mut together.figures, &together.sources, (None, None), &wanted.percentiles);
            let doubts = doubts.into_iter().chain(together.growth.map(Warning::Saturation));
            gather(&mut warnings, doubts, &together.level.name);
            let not_valid: Vec<String> = together.sources.iter().flat_map(|run| run.not_valid.clone()).collect();
            let kept = |seen: Vec<Seen>| {
                seen.iter().all(Seen::looks_kept) && together.growth.is_none() && not_valid.is_empty()
            };
            Point {
                target: (file.plan.targets.len() > 1).then(|| TARGETS[together.target.min(1)]),
                runs: together.runs,
                sustained: together.sustained,
                meets: seen.map(kept),
                growth: together.growth,
                front: false,
                knee: false,
                level: together.level,
                not_valid,
                summary,
            }
        });
        let mut levels: Vec<Point> = points.collect();
        stand_out(&mut levels);
        Ok(Self {
            streamgauge_sweep_report: VERSION,
            path: folder.display().to_string(),
            plan: file.plan,
            answer: file.answer,
            goals: goals.map(|goals| goals.to_string()),
            levels,
            differences,
            warnings,
            shown: wanted.percentiles.clone(),
        })
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether all its runs are.
    pub fn is_valid(&self) -> bool {
        self.levels.iter().all(|point| point.not_valid.is_empty())
    }

    /// Whether goodput of any level is less than `least`, a share of 1.
    pub fn falls_short(&self, least: f64) -> bool {
        let goodput = |point: &Point| point.summary.goodput.iter().any(|of| of.share.is_none_or(|share| share < least));
        self.levels.iter().any(goodput)
    }
}

/// Those that are shown, and those that are always there.
fn percentiles(shown: &[f64]) -> Vec<f64> {
    let mut all = [&PERCENTILES[..], shown].concat();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// What levels are judged by: what the sweep looked for, or goodput of its SLOs; of those that are given now, if any are.
fn goals(plan: &Plan, wanted: &Wanted, least: f64, all: &[Together]) -> Option<Goals> {
    let sought = plan.search.as_ref().filter(|_| wanted.slos.is_empty());
    let judged = all.iter().any(|of| of.slos.iter().next().is_some());
    let of_goodput = || judged.then(|| Goals::of_goodput(least));
    sought.and_then(|sought| sought.goals.parse().ok()).or_else(of_goodput)
}

/// By what levels are put in order; rows of a matrix keep theirs.
fn load(plan: &Plan, level: &Level) -> f64 {
    let listed = plan.levels.iter().position(|of| of.name == level.name);
    listed.map_or(level.load(), |at| at as f64)
}

/// Levels that differ in their load alone.
fn is_of(a: &Point, b: &Point) -> bool {
    let of = |point: &Point| (point.target, point.level.cache, point.level.rate.is_some());
    of(a) == of(b) && a.level.flags == b.level.flags
}

fn stand_out(levels: &mut [Point]) {
    for first in 0..levels.len() {
        let series: Vec<usize> = (first..levels.len()).filter(|at| is_of(&levels[first], &levels[*at])).collect();
        if (0..first).any(|before| is_of(&levels[before], &levels[first])) {
            continue;
        }
        let sound = |at: &&usize| levels[**at].growth.is_none() && levels[**at].not_valid.is_empty();
        let speed = |at: &usize| Some((*at, levels[*at].median(Metric::UserRate)?));
        let fast: Vec<(usize, f64)> = series.iter().filter(sound).filter_map(speed).collect();
        let points: Vec<_> =
            fast.iter().map(|(at, speed)| (levels[*at].summary.throughput.output_tokens, *speed)).collect();
        let mut by_load = series;
        by_load.sort_by(|a, b| levels[*a].level.load().total_cmp(&levels[*b].level.load()));
        let power =
            |at: &usize| (levels[*at].summary.throughput.requests, levels[*at].latency().unwrap_or(f64::INFINITY));
        let knee = front::knee(&by_load.iter().map(power).collect::<Vec<_>>());
        let best = front::front(&points);
        fast.iter().zip(best).for_each(|((at, _), best)| levels[*at].front = best);
        if let Some(knee) = knee {
            levels[by_load[knee]].knee = true;
        }
    }
}

impl Point {
    fn percentile(&self, metric: Metric, percent: f64) -> Option<f64> {
        told(&self.summary, metric, percent)
    }

    fn median(&self, metric: Metric) -> Option<f64> {
        self.percentile(metric, 50.0)
    }

    /// Mean E2E from planned, in milliseconds.
    fn latency(&self) -> Option<f64> {
        Some(self.summary.metric(Metric::E2eFromPlanned)?.avg)
    }
}

fn told(summary: &Summary, metric: Metric, percent: f64) -> Option<f64> {
    let percentiles = &summary.metric(metric)?.percentiles;
    percentiles.iter().find(|(of, _)| *of == percent).map(|(_, value)| *value)
}

/// Adds the doubts about a level to those about the others.
fn gather(all: &mut Vec<Doubt>, doubts: impl Iterator<Item = Warning>, level: &str) {
    for doubt in doubts {
        match all.iter_mut().find(|known| known.told.warning == doubt.name()) {
            Some(known) if known.levels.iter().any(|known| known == level) => {}
            Some(known) => known.levels.push(level.to_owned()),
            None => all.push(Doubt { told: Told::of(&doubt), levels: vec![level.to_owned()] }),
        }
    }
}

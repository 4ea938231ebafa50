//! A sweep's folder as levels of one replica.

use std::collections::BTreeSet;
use std::path::Path;

use super::measured_level::{LevelFold, LevelWithoutResult, MeasuredLevel};
use super::objective::{PlanObjective, criteria};
use crate::measure::slo::Slo;
use crate::measure::slo::criteria::Criteria;
use crate::report::context::ReportContext;
use crate::report::sweep::file::{SweepFile, SweepLevel};
use crate::report::sweep::{DEFAULT_GOODPUT_GOAL, SweepError, read_run};

/// A sweep cannot be planned with.
#[derive(Debug, thiserror::Error)]
pub enum MeasuredSweepError {
    /// A run cannot be read.
    #[error(transparent)]
    Run(#[from] SweepError),
    /// Two targets.
    #[error("{0}: the sweep compares two targets; remedy: plan with a sweep of one target, which is one replica")]
    TwoTargets(String),
    /// Levels differ in more than their load.
    #[error(
        "{sweep}: its levels differ in more than their load; remedy: choose a series by one of its levels, with --series {}",
        names.join(" or --series ")
    )]
    SeveralSeries {
        /// Folder.
        sweep: String,
        /// Name of the first level of each series.
        names: Vec<String>,
    },
    /// The chosen level does not exist.
    #[error("{sweep}: no run is of a level {name}; remedy: choose --series {}", names.join(" or --series "))]
    UnknownSeries {
        /// Folder.
        sweep: String,
        /// The name that was given.
        name: String,
        /// Name of the first level of each series.
        names: Vec<String>,
    },
    /// Nothing to judge by.
    #[error("{0}: the sweep has no SLO; remedy: state with --slo what a good request is, e.g. 'chat: ttft<=500ms'")]
    NoSlo(String),
    /// Criteria that need an SLO have none, or two SLOs share a name.
    #[error("--slo: {0}")]
    Objectives(String),
}

/// Levels of one replica, ascending by rate.
#[derive(Clone, Debug)]
pub struct MeasuredSweep {
    /// Folder.
    pub path: String,
    /// Goals that the levels are judged by.
    pub goals: String,
    /// SLOs that the goals count, if any.
    pub slos: Vec<String>,
    /// Levels that show something about the server.
    pub levels: Vec<MeasuredLevel>,
    /// The others.
    pub left_out: Vec<LevelWithoutResult>,
    /// True if levels were a number of requests at a time, without arrivals.
    pub is_closed_loop: bool,
    /// True if the sweep ended.
    pub is_finished: bool,
    /// GPUs of the replica, by `--meta gpu_count`.
    pub gpus: Option<u32>,
    /// The load, the server and the machines of its runs.
    pub context: ReportContext,
}

impl MeasuredSweep {
    /// Reads the runs of a sweep. Without objectives, those of the sweep judge. `series` is a level of the series to read.
    ///
    /// # Errors
    /// Returns an error if a run cannot be read, or if the levels are not those of one replica.
    pub fn read(
        folder: &Path,
        file: &SweepFile,
        objectives: &[PlanObjective],
        series: Option<&str>,
    ) -> Result<Self, MeasuredSweepError> {
        let path = folder.display().to_string();
        if file.plan.targets.len() > 1 {
            return Err(MeasuredSweepError::TwoTargets(path));
        }
        let file = &one_series(&path, file, series)?;
        let goals = goals(file, objectives).map_err(MeasuredSweepError::Objectives)?;
        let slos: Vec<Slo> = objectives.iter().flat_map(PlanObjective::slos).collect();
        let mut folds: Vec<(String, LevelFold)> = Vec::new();
        let (mut sources, mut models, mut seconds) = (Vec::new(), BTreeSet::new(), 0.0);
        let (mut gpus, mut shown, mut has_slo) = (None, Vec::new(), goals.gaps().next().is_some());
        for run in &file.runs {
            let mut result = read_run(&folder.join(&run.folder), &slos, &goals)?;
            sources.push(result.source.clone());
            models.append(&mut result.models);
            seconds += result.seconds;
            gpus = gpus.or_else(|| result.source.meta.get("gpu_count")?.parse().ok());
            has_slo |= result.slos.iter().next().is_some();
            shown = result
                .slos
                .iter()
                .filter(|slo| goals.share_of(slo.name()).is_some())
                .map(ToString::to_string)
                .collect();
            let at = folds.iter().position(|(name, _)| *name == run.level.name).unwrap_or(folds.len());
            if at == folds.len() {
                folds.push((run.level.name.clone(), LevelFold::default()));
            }
            folds[at].1.add(result, run.sustained, &goals);
        }
        if !has_slo {
            return Err(MeasuredSweepError::NoSlo(path));
        }
        let is_closed_loop = folds.iter().any(|(_, fold)| fold.is_closed_loop());
        let (mut levels, mut left_out) = (Vec::new(), Vec::new());
        for (name, fold) in folds {
            match fold.finish(name, &goals) {
                Ok(level) => levels.push(level),
                Err(level) => left_out.push(level),
            }
        }
        levels.sort_by(|a: &MeasuredLevel, b| a.rate.total_cmp(&b.rate));
        let is_run = |level: &SweepLevel| file.runs.iter().any(|run| run.level.name == level.name);
        let is_finished = match file.plan.search {
            Some(_) => file.answer.is_some(),
            None => file.ended_at.is_some() || file.plan.levels.iter().all(is_run),
        };
        let context = ReportContext::of(&sources, &models, seconds);
        let goals = goals.to_string();
        Ok(Self { path, goals, slos: shown, levels, left_out, is_closed_loop, is_finished, gpus, context })
    }
}

/// The objectives as one set of criteria; without any, those of the sweep.
fn goals(file: &SweepFile, objectives: &[PlanObjective]) -> Result<Criteria, String> {
    if objectives.is_empty() {
        let searched = file.plan.search.as_ref().and_then(|search| search.goals.parse().ok());
        return Ok(searched.unwrap_or_else(|| file.listed_goals()));
    }
    criteria(objectives, file.listed_goals().goodput().unwrap_or(DEFAULT_GOODPUT_GOAL))
}

/// The sweep with the levels of one series, which differ in their load only.
fn one_series(path: &str, file: &SweepFile, chosen: Option<&str>) -> Result<SweepFile, MeasuredSweepError> {
    let series = |level: &SweepLevel| (level.cache, level.rate.is_some(), level.flags.clone());
    let mut names: Vec<(_, String)> = Vec::new();
    for run in &file.runs {
        if names.iter().all(|(of, _)| *of != series(&run.level)) {
            names.push((series(&run.level), run.level.name.clone()));
        }
    }
    let list = || names.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
    let of = match chosen {
        Some(name) => match file.runs.iter().find(|run| run.level.name == name) {
            Some(run) => Some(series(&run.level)),
            None => {
                let (sweep, name) = (path.to_owned(), name.to_owned());
                return Err(MeasuredSweepError::UnknownSeries { sweep, name, names: list() });
            }
        },
        None if names.len() > 1 => {
            return Err(MeasuredSweepError::SeveralSeries { sweep: path.to_owned(), names: list() });
        }
        None => None,
    };
    let mut file = file.clone();
    if let Some(of) = of {
        file.runs.retain(|run| series(&run.level) == of);
        file.plan.levels.retain(|level| series(level) == of);
    }
    Ok(file)
}

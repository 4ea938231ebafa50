//! How far each objective holds in a series of levels. Pure.
//!
//! An objective holds to a level if it holds there and at all lower levels of the series that were measured.

use schemars::JsonSchema;
use serde::Serialize;

use super::level_summary::LevelSummary;
use super::level_verdict::LevelVerdict;
use super::sweep_series::SweepSeries;

/// The highest level to which an objective holds in a series.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ObjectiveLimit {
    /// The objective.
    pub(super) objective: String,
    /// `A` or `B`, if there are two targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<&'static str>,
    /// Properties of the levels that the other series lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) series: Option<String>,
    /// The highest level that holds it; absent if the lowest misses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holds_to: Option<String>,
    /// The lowest level that misses it; absent if all hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missed_at: Option<String>,
    /// True if the 95 % intervals of both levels decide.
    pub(super) sure: bool,
}

/// The limits of all objectives, in every series of at least two levels.
pub(super) fn limits(levels: &[LevelSummary], all: &[SweepSeries]) -> Vec<ObjectiveLimit> {
    let mut limits = Vec::new();
    for series in all {
        let measured: Vec<&LevelSummary> =
            series.places.iter().map(|at| &levels[*at]).filter(|level| !level.not_measured).collect();
        let Some(first) = measured.first().filter(|_| measured.len() > 1) else { continue };
        for (at, objective) in first.objectives.iter().enumerate() {
            let verdict = |level: &&&LevelSummary| level.objectives.get(at).and_then(|of| of.verdict);
            let holds = |level: &&&LevelSummary| verdict(level).is_some_and(LevelVerdict::holds);
            let (held, missed) =
                (measured.iter().take_while(holds).last(), measured.iter().find(|level| !holds(level)));
            let sure = |level: &&LevelSummary| verdict(&level).is_some_and(LevelVerdict::is_sure);
            limits.push(ObjectiveLimit {
                objective: objective.objective.clone(),
                target: first.target,
                series: series.name.clone(),
                holds_to: held.map(|level| level.level.offered()),
                missed_at: missed.map(|level| level.level.offered()),
                sure: held.is_none_or(sure) && missed.is_none_or(|level| sure(level) || level.sure == Some(true)),
            });
        }
    }
    limits
}

impl ObjectiveLimit {
    /// Describes the limit.
    pub(super) fn text(&self) -> String {
        let names = self.target.into_iter().chain(self.series.as_deref());
        let of: String = names.map(|name| format!("{name}: ")).collect();
        let sure = if self.sure { "" } else { ", not sure" };
        match (&self.holds_to, &self.missed_at) {
            (Some(held), Some(missed)) => format!("{of}{} holds to {held}, not to {missed}{sure}", self.objective),
            (Some(held), None) => format!("{of}{} holds to {held} at least{sure}", self.objective),
            (None, Some(missed)) => format!("{of}{} does not hold at {missed}{sure}", self.objective),
            (None, None) => format!("{of}{}: unknown", self.objective),
        }
    }
}

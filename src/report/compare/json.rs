//! A comparison as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    ChangeConditionResult, Comparison, ComparisonMethod, FigureChange, GroupChange, LoadFactor, SimulatedSides,
    WorkloadComparison,
};
use crate::stats::change::Verdict;

/// Version of the JSON object.
const VERSION: u32 = 1;

/// A comparison as one JSON object. A change of 0.05 is 5 % more; of a share, 5 points.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ComparisonDocument<'a> {
    streamgauge_comparison: u32,
    before: &'a [String],
    after: &'a [String],
    simulated: SimulatedSides,
    margin: f64,
    method: ComparisonMethod,
    workload: &'a WorkloadComparison,
    /// Null where the workloads differ.
    verdict: Option<Verdict>,
    /// What both sides have.
    figures: Vec<FigureDocument<'a>>,
    /// Figures that only one side has; with any the verdict is never `not_worse`.
    one_sided: &'a [String],
    factors: &'a [LoadFactor],
    conditions: &'a [ChangeConditionResult],
    groups: &'a [GroupChange],
}

#[derive(Debug, Serialize, JsonSchema)]
struct FigureDocument<'a> {
    figure: &'a str,
    unit: &'static str,
    before: f64,
    after: f64,
    change: f64,
    /// Both ends of the 95 % interval; null without enough data.
    ci95: Option<[f64; 2]>,
    /// Why there is no interval.
    not_enough_data: Option<String>,
    effect_size: Option<f64>,
    verdict: Option<Verdict>,
    better: bool,
}

impl Comparison {
    /// Renders the comparison as one JSON object.
    pub fn json(&self) -> String {
        // Numbers, names and string keys always serialize.
        serde_json::to_string_pretty(&self.document()).unwrap_or_default() + "\n"
    }

    pub(super) fn document(&self) -> ComparisonDocument<'_> {
        ComparisonDocument {
            streamgauge_comparison: VERSION,
            before: &self.before,
            after: &self.after,
            simulated: self.simulated,
            margin: self.margin,
            method: self.method,
            workload: &self.workload,
            verdict: self.verdict,
            figures: self.figures.iter().map(FigureDocument::of).collect(),
            one_sided: &self.one_sided,
            factors: &self.factors,
            conditions: &self.conditions,
            groups: &self.groups,
        }
    }
}

impl<'a> FigureDocument<'a> {
    fn of(change: &'a FigureChange) -> Self {
        let known = change.change.as_ref().ok();
        Self {
            figure: &change.label,
            unit: change.figure.unit(),
            before: change.before,
            after: change.after,
            change: known.map_or(change.point_change(), |known| known.value()),
            ci95: known.map(|known| [known.interval().low, known.interval().high]),
            not_enough_data: change.change.as_ref().err().map(ToString::to_string),
            effect_size: change.effect_size,
            verdict: change.verdict,
            better: change.better,
        }
    }
}

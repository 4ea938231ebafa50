//! A history of runs: at which of them a figure changed.
//!
//! [`crate::stats::change_points`] finds the changes of each figure, in the order of the runs' dates. All figures are
//! one family, so that more figures raise no more false alarms. Runs of
//! another load than the newest are left out, because the load explains any change.

pub mod html;
pub mod text;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::super::context::FactName;
use super::super::source_error::SourceError;
use super::estimates::value;
use super::{AccumulatorSettings, ComparedFigure, ComparedRun, ReportContext, SourceReader};
use crate::measure::calendar::utc;
use crate::measure::slo::Slos;
use crate::stats::change_points::{ChangePoint, change_points};

/// Version of the JSON object.
const VERSION: u32 = 1;
/// The newest runs in which a change is still new: tests/stats finds a change of 10 % once five runs follow it.
const NEW_RUNS: usize = 5;
/// Runs with which a history can show a change.
pub const MIN_RUNS: usize = 6;

/// One run of a history.
#[derive(Debug)]
pub struct HistoryRun {
    path: String,
    started_unix_ns: Option<u64>,
    is_capture: bool,
    simulated: bool,
    context: ReportContext,
    /// By figure.
    values: Vec<Option<f64>>,
}

impl HistoryRun {
    /// Reads a run and keeps its figures alone.
    ///
    /// # Errors
    /// The path cannot be read.
    pub fn read(opened: SourceReader, settings: AccumulatorSettings) -> Result<Self, SourceError> {
        let figures = ComparedFigure::family(&settings.slos);
        let mut run = ComparedRun::read(opened, settings)?;
        let values = figures.iter().map(|figure| value(*figure, &mut run)).collect();
        Ok(Self {
            is_capture: run.is_capture(),
            simulated: run.source.simulated,
            path: run.source.path,
            started_unix_ns: run.source.started_unix_ns,
            context: run.context,
            values,
        })
    }

    fn has_load_of(&self, other: &Self) -> bool {
        let mut of_load = FactName::ALL.iter().filter(|name| name.describes_load());
        self.is_capture || other.is_capture || of_load.all(|name| self.context.get(*name) == other.context.get(*name))
    }
}

/// What changed over a history.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunHistory {
    streamgauge_run_history: u32,
    /// Relative change, and difference of a share, that still counts as no regression.
    pub margin: f64,
    /// The runs, oldest first.
    pub runs: Vec<RunName>,
    /// Runs of another load than the newest.
    pub left_out: Vec<String>,
    /// By figure, in the order of the comparison.
    pub figures: Vec<FigureHistory>,
}

/// A run by its place and its date.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunName {
    /// Path.
    pub path: String,
    /// Date in UTC; `None` if the run does not state it.
    pub date: Option<String>,
    /// True if the run is the prediction of a twin and no measurement.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// One figure over the runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FigureHistory {
    #[serde(skip)]
    of: ComparedFigure,
    /// Name in conditions and JSON.
    pub figure: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Value of each run.
    pub values: Vec<Option<f64>>,
    /// Where it changed.
    pub changes: Vec<HistoryChange>,
}

/// A change that begins with one run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HistoryChange {
    /// Index of the first run after the change.
    pub run: usize,
    /// Mean from the change before to this one.
    pub before: f64,
    /// Mean from this change to the next one.
    pub after: f64,
    /// Relative change, or difference of a share.
    pub change: f64,
    /// p-value of no change.
    pub p_value: f64,
    /// The figure is worse by more than the margin.
    pub is_regression: bool,
    /// One of the newest runs made it, and none undid it.
    pub is_new: bool,
}

impl FigureHistory {
    /// `family` is the number of figures that have values.
    fn of(of: ComparedFigure, figure: String, values: Vec<Option<f64>>, family: usize, margin: f64) -> Self {
        let (places, known): (Vec<usize>, Vec<f64>) =
            values.iter().enumerate().filter_map(|(run, value)| Some((run, (*value)?))).unzip();
        let points = change_points(&known, family);
        let last = points.last().map(|point| point.index);
        let change = |point: &ChangePoint| {
            let (before, after) = (of.to_display(point.before), of.to_display(point.after));
            let change = of.change(before, after);
            HistoryChange {
                run: places[point.index],
                before,
                after,
                change,
                p_value: point.p_value,
                is_regression: if of.is_cost() { change > margin } else { change < -margin },
                is_new: Some(point.index) == last && known.len() - point.index <= NEW_RUNS,
            }
        };
        let changes = points.iter().map(change).collect();
        let values = values.into_iter().map(|value| value.map(|value| of.to_display(value))).collect();
        Self { of, figure, unit: of.unit(), values, changes }
    }
}

impl RunHistory {
    /// Finds the changes; `None` without runs. Runs without a date keep their order.
    pub fn of(mut runs: Vec<HistoryRun>, slos: &Slos, margin: f64) -> Option<Self> {
        runs.sort_by_key(|run| run.started_unix_ns);
        let newest = runs.pop()?;
        let (mut comparable, other): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.has_load_of(&newest));
        comparable.push(newest);
        let name = |run: &HistoryRun| RunName {
            path: run.path.clone(),
            date: run.started_unix_ns.map(utc),
            simulated: run.simulated,
        };
        let figures = ComparedFigure::family(slos);
        let values_of = |at: usize| comparable.iter().map(move |run| run.values.get(at).copied().flatten());
        let family = (0..figures.len()).filter(|at| values_of(*at).any(|value| value.is_some())).count();
        let figure = |(at, figure): (usize, &ComparedFigure)| {
            FigureHistory::of(*figure, figure.key(slos), values_of(at).collect(), family, margin)
        };
        let figures = figures.iter().enumerate().map(figure).collect();
        Some(Self {
            streamgauge_run_history: VERSION,
            margin,
            runs: comparable.iter().map(name).collect(),
            left_out: other.into_iter().map(|run| run.path).collect(),
            figures,
        })
    }

    /// Regressions that one of the newest runs made, by figure.
    pub fn new_regressions(&self) -> impl Iterator<Item = (&FigureHistory, &HistoryChange)> {
        let changes = self.figures.iter().flat_map(|figure| figure.changes.iter().map(move |change| (figure, change)));
        changes.filter(|(_, change)| change.is_regression && change.is_new)
    }

    /// Renders the history as one JSON object.
    pub fn json(&self) -> String {
        // Numbers, names and string keys always serialize.
        serde_json::to_string_pretty(&json!(self)).unwrap_or_default() + "\n"
    }
}

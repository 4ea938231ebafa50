//! Two sides of runs compared: what changed, how sure that is, and whether it is worse.
//!
//! # The unit is the run
//! With several runs on each side, the figures of the runs are the samples ([`crate::stats::hypothesis`]): servers warm
//! up, caches fill and neighbors come and go from run to run, which no interval within one run can see. With one run on
//! each side, a moving-block bootstrap in time estimates the variation within a run
//! ([`crate::stats::bootstrap`]). Runs of one plan are paired by request: both resample the same requests, each with
//! all of its latencies, gaps and tokens.
//!
//! # Verdict
//! Each figure is *worse*, *not worse* or *undecided* ([`crate::stats::change`]). The comparison is worse if any figure
//! is, after Holm's adjustment over all; not worse if all figures with enough data are; and otherwise undecided.
//! Where the workload differs, there is no verdict, because the load explains any change.

mod condition;
mod estimates;
mod explanation;
mod figure;
mod group_change;
pub mod history;
pub mod html;
pub mod json;
pub mod level_comparison;
pub mod markdown;
mod same_experiment;
mod simulated_sides;
pub mod text;

use schemars::JsonSchema;
use serde::Serialize;

use super::accumulate::{Accumulator, AccumulatorSettings};
use super::context::ReportContext;
use super::source::ReportSource;
use super::source_error::SourceError;
use super::source_reader::{SourceReader, read};
use crate::stats::change::{Change, Verdict, verdicts};
use crate::stats::interval::NotEnoughData;
pub use condition::{ChangeCondition, ChangeConditionResult, ConditionObstacle};
use estimates::SideFigure;
pub use explanation::LoadFactor;
pub use figure::ComparedFigure;
pub use group_change::{GroupChange, GroupFigures};
pub use same_experiment::{ExperimentDifference, WorkloadComparison};
pub use simulated_sides::SimulatedSides;

/// One run of a side.
#[derive(Debug)]
pub struct ComparedRun {
    /// The source of the run.
    pub source: ReportSource,
    /// What produced it.
    pub context: ReportContext,
    pub(super) fold: Accumulator,
}

impl ComparedRun {
    /// Reads a run or a capture.
    ///
    /// # Errors
    /// The path cannot be read.
    pub fn read(opened: SourceReader, settings: AccumulatorSettings) -> Result<Self, SourceError> {
        let mut fold = Accumulator::new(AccumulatorSettings { gaps_by_request: true, ..settings });
        let mut sources = read(vec![opened], &mut fold)?;
        fold.points.sort_unstable();
        let seconds = fold.total.window.map_or(0.0, |(first, last)| last.since(first).as_secs());
        let context = ReportContext::of(&sources, &fold.models, seconds);
        Ok(Self { source: sources.remove(0), context, fold })
    }

    /// A capture is its own trace, so its facts describe no load that another one could share.
    pub(super) fn is_capture(&self) -> bool {
        !self.source.run && self.source.tool.is_none()
    }
}

/// Default margin: a relative change, and difference of a share, that still counts as not worse.
pub const DEFAULT_MARGIN: f64 = 0.05;

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonSettings {
    /// Relative change, and difference of a share, that still counts as not worse.
    pub margin: f64,
    /// Gives a verdict although the workloads differ.
    pub although_different: bool,
    /// Conditions that decide the exit code.
    pub conditions: Vec<ChangeCondition>,
}

/// A comparison, ready for every output format.
#[derive(Debug)]
pub struct Comparison {
    /// Paths of the first side.
    pub before: Vec<String>,
    /// Paths of the second side.
    pub after: Vec<String>,
    /// The sides with predictions of a twin.
    pub simulated: SimulatedSides,
    /// Relative change, and difference of a share, that still counts as not worse.
    pub margin: f64,
    /// Whether both sides are one experiment.
    pub workload: WorkloadComparison,
    /// How the change was estimated.
    pub method: ComparisonMethod,
    /// The figures that both sides have.
    pub figures: Vec<FigureChange>,
    /// Names of the figures that only one side has.
    pub one_sided: Vec<String>,
    /// The overall verdict; `None` if the workloads differ. With a one-sided figure it is never *not worse*.
    pub verdict: Option<Verdict>,
    /// What else changed, and may explain the figures.
    pub factors: Vec<LoadFactor>,
    /// Conditions of `--fail-if`.
    pub conditions: Vec<ChangeConditionResult>,
    /// Groups of `--by`.
    pub groups: Vec<GroupChange>,
}

/// How the change was estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonMethod {
    /// Several runs on each side.
    Runs,
    /// Several runs on each side, of which each two in the same place have one plan.
    PairedRuns,
    /// One run on each side, of one plan: both resample the same requests.
    PairedBootstrap,
    /// One run on each side.
    Bootstrap,
}

impl ComparisonMethod {
    /// Describes the method in a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Runs => "the runs of each side are the samples (Welch's t-test on logarithms)",
            Self::PairedRuns => "runs of one plan are paired (paired t-test on logarithms)",
            Self::PairedBootstrap => {
                "one run on each side, paired by request (moving-block bootstrap in time); variation from run to run \
                 is not in the intervals"
            }
            Self::Bootstrap => {
                "one run on each side (moving-block bootstrap in time); variation from run to run is not in the intervals"
            }
        }
    }
}

/// Change of one figure.
#[derive(Clone, Debug)]
pub struct FigureChange {
    /// The figure.
    pub figure: ComparedFigure,
    /// Its name for people.
    pub label: String,
    /// Value of the first side, in the display unit. Of several runs it is the geometric mean, for a share the mean.
    pub before: f64,
    /// Value of the second side.
    pub after: f64,
    /// Relative change, or difference of a share, with its interval; or the reason why there is none.
    pub change: Result<Change, NotEnoughData>,
    /// Difference in standard deviations: of the runs (Hedges' g), or of single values (Cohen's d).
    pub effect_size: Option<f64>,
    /// Verdict within the family of all figures; `None` without an interval, or where the verdict is withheld.
    pub verdict: Option<Verdict>,
    /// The whole interval lies beyond the margin on the better side.
    pub better: bool,
}

impl FigureChange {
    /// The change without regard to its interval.
    pub(super) fn point_change(&self) -> f64 {
        self.figure.change(self.before, self.after)
    }
}

impl Comparison {
    /// Compares two sides with at least one run each.
    pub fn of(before: &mut [ComparedRun], after: &mut [ComparedRun], settings: &ComparisonSettings) -> Self {
        let workload = WorkloadComparison::of(before, after);
        let method = match (before.len(), after.len()) {
            (1, 1) if workload.same_plan => ComparisonMethod::PairedBootstrap,
            (1, 1) => ComparisonMethod::Bootstrap,
            // Of one plan on all runs, any two could be a pair: the t-test without pairs has more degrees of freedom.
            _ if !workload.same_plan && same_experiment::are_pairs(before, after) => ComparisonMethod::PairedRuns,
            _ => ComparisonMethod::Runs,
        };
        let mut figures = ComparedFigure::family(&before[0].fold.settings.slos);
        for figure in settings.conditions.iter().filter_map(ChangeCondition::figure) {
            figures.extend((!figures.contains(&figure)).then_some(figure));
        }
        let slos = before[0].fold.settings.slos.clone();
        let side = |runs, is_before| estimates::side(runs, &figures, method, is_before);
        let (side_before, side_after) = (side(before, true), side(after, false));
        let of = |((figure, before), after): ((&ComparedFigure, _), _)| {
            estimates::change(*figure, figure.key(&slos), (before, after), method)
        };
        let mut changes: Vec<FigureChange> = figures.iter().zip(&side_before).zip(&side_after).filter_map(of).collect();
        let is_one_sided = |(before, after): (&SideFigure, &SideFigure)| before.is_missing() != after.is_missing();
        let one_sided = figures.iter().zip(side_before.iter().zip(&side_after));
        let one_sided: Vec<String> =
            one_sided.filter(|(_, sides)| is_one_sided(*sides)).map(|(figure, _)| figure.key(&slos)).collect();
        let withheld = workload.is_different() && !settings.although_different;
        if !withheld {
            judge(&mut [&mut changes], settings.margin);
        }
        let verdict = (!withheld).then(|| overall(&changes, &one_sided));
        let conditions = settings.conditions.iter().map(|condition| condition.evaluate(&changes, withheld)).collect();
        let paths = |side: &[ComparedRun]| side.iter().map(|run| run.source.path.clone()).collect();
        Self {
            before: paths(before),
            after: paths(after),
            simulated: SimulatedSides::of(before, after),
            margin: settings.margin,
            workload,
            method,
            figures: changes,
            one_sided,
            verdict,
            factors: explanation::factors(before, after),
            groups: group_change::groups(before, after),
            conditions,
        }
    }

    /// Judges the figures of several comparisons as one family, so that more levels raise no more false alarms. A verdict
    /// that was withheld stays so.
    pub(super) fn judge_together(comparisons: &mut [Self], margin: f64) {
        let mut judged: Vec<&mut Self> = comparisons.iter_mut().filter(|of| of.verdict.is_some()).collect();
        let mut figures: Vec<&mut [FigureChange]> = judged.iter_mut().map(|of| &mut of.figures[..]).collect();
        judge(&mut figures, margin);
        for comparison in judged {
            comparison.verdict = Some(overall(&comparison.figures, &comparison.one_sided));
        }
    }

    /// The change that a condition reads, with its interval, in words.
    pub(super) fn condition_evidence(&self, condition: &ChangeCondition) -> String {
        let figure = condition.figure();
        let change = self.figures.iter().find(|change| match figure {
            Some(figure) => change.figure == figure,
            None => matches!(change.figure, ComparedFigure::Goodput(_)),
        });
        change.map_or_else(|| "no value".to_owned(), text::change_evidence)
    }

    /// A condition on a figure that a side lacks.
    pub fn unmeasured(&self) -> Option<&str> {
        let lacks = |result: &&ChangeConditionResult| result.obstacle == Some(ConditionObstacle::NotMeasured);
        self.conditions.iter().find(lacks).map(|result| &*result.condition)
    }

    /// Whether a condition fails the comparison. `undecided` is the result of a condition that the data does not decide.
    pub fn fails(&self, undecided_fails: bool) -> bool {
        self.conditions.iter().any(|condition| match condition.verdict {
            Verdict::Worse => true,
            Verdict::NotWorse => false,
            Verdict::Undecided { .. } => undecided_fails,
        })
    }
}

/// The change as a cost: more is worse.
fn cost(figure: ComparedFigure, change: Change) -> Change {
    if figure.is_cost() { change } else { change.reversed() }
}

/// Sets the verdict of each figure, with Holm's adjustment over the family of all lists.
fn judge(lists: &mut [&mut [FigureChange]], margin: f64) {
    let known = |change: &FigureChange| Some((cost(change.figure, change.change.ok()?), margin));
    let family: Vec<(Change, f64)> = lists.iter().flat_map(|list| list.iter().filter_map(known)).collect();
    let changes = lists.iter_mut().flat_map(|list| list.iter_mut()).filter(|change| change.change.is_ok());
    for ((change, verdict), (cost, _)) in changes.zip(verdicts(&family)).zip(&family) {
        change.verdict = Some(verdict);
        change.better = matches!(cost.reversed().verdict(margin), Verdict::Worse);
    }
}

/// A figure without an interval, or with values on one side, is undecided: data that is missing supports no verdict.
fn overall(changes: &[FigureChange], one_sided: &[String]) -> Verdict {
    if changes.iter().any(|change| change.verdict == Some(Verdict::Worse)) {
        return Verdict::Worse;
    }
    let factors: Vec<Option<f64>> = changes
        .iter()
        .filter_map(|change| match (&change.change, change.verdict) {
            (Err(missing), _) => Some(Some(missing.factor())),
            (_, Some(Verdict::Undecided { data_factor })) => Some(data_factor),
            _ => None,
        })
        .collect();
    if factors.is_empty() && !changes.is_empty() && one_sided.is_empty() {
        return Verdict::NotWorse;
    }
    // The figure that needs the most data; without a factor the estimate lies on the margin.
    let known: Option<Vec<f64>> = factors.into_iter().collect();
    Verdict::Undecided { data_factor: known.and_then(|factors| factors.into_iter().reduce(f64::max)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::hypothesis::welch_relative;

    fn change(after: [f64; 3]) -> FigureChange {
        let figure = ComparedFigure::Percentile(crate::report::metric::ReportMetric::Itl, 50.0);
        let change = welch_relative(&[100.0, 102.0, 98.0], &after, 1.0);
        let label = String::new();
        FigureChange {
            figure,
            label,
            before: 100.0,
            after: after[1],
            change,
            effect_size: None,
            verdict: None,
            better: false,
        }
    }

    #[test]
    fn the_figures_of_all_levels_are_one_family() {
        let slower = || vec![change([112.0, 110.0, 114.0])];
        let alike = || vec![change([100.0, 101.0, 99.0])];
        let p_worse = slower()[0].change.unwrap().p_above(0.05);
        assert!(p_worse < 0.025 && p_worse * 5.0 > 0.025, "{p_worse}");
        let mut alone = slower();
        judge(&mut [&mut alone], 0.05);
        assert_eq!(alone[0].verdict, Some(Verdict::Worse));
        let mut levels = [slower(), alike(), alike(), alike(), alike()];
        judge(&mut levels.iter_mut().map(|list| &mut list[..]).collect::<Vec<_>>(), 0.05);
        let verdicts: Vec<_> = levels.iter().map(|list| list[0].verdict).collect();
        assert!(matches!(verdicts[0], Some(Verdict::Undecided { .. })), "{verdicts:?}");
        assert_eq!(verdicts[1..], [Some(Verdict::NotWorse); 4]);
    }
}

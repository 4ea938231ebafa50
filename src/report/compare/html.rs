//! Pages of comparisons, of runs and of sweeps: the verdict first, and both sides on one axis.

use super::super::metric::ReportMetric;
use super::super::page::Page;
use super::super::page::chart::Chart;
use super::super::page::forest::{self, ForestRow, ForestVerdict};
use super::super::page::{cumulative, distribution};
use super::estimates::metric_of_samples;
use super::figure::METRICS;
use super::level_comparison::{LevelComparison, LevelComparisons};
use super::text::{differences, factors, figures, groups, lines};
use super::{ComparedRun, Comparison, FigureChange};
use crate::stats::change::Verdict;
use crate::stats::samples::Samples;

/// Names of the sides on the charts.
const SIDES: [&str; 2] = ["before", "after"];

/// Renders the page. The runs are those of the comparison.
pub fn render(comparison: &Comparison, before: &[ComparedRun], after: &[ComparedRun]) -> String {
    let paths = [&comparison.before, &comparison.after].map(|paths| paths.join(", "));
    let mut page = Page::new(&format!("Streamgauge: {} compared with {}", paths[1], paths[0]));
    page.lines(lines(comparison));
    differing(&mut page, comparison);
    page.charts("Changes", [changes(comparison, "Change of each figure")]);
    page.table("Figures", &figures(comparison));
    if let Some(factors) = factors(comparison) {
        page.table("What else changed", &factors);
    }
    page.charts("Both sides", METRICS.into_iter().flat_map(|metric| sides(metric, before, after)));
    if let Some(groups) = groups(comparison) {
        page.table("Groups", &groups);
    }
    page.finish()
}

/// Renders the page of two sweeps: the winner first, then each level.
pub fn render_levels(comparisons: &LevelComparisons, [before, after]: [&str; 2]) -> String {
    let mut page = Page::new(&format!("Streamgauge: sweep {after} compared with {before}"));
    let verdict = |level: &LevelComparison| ("", LevelComparisons::verdict_text(level));
    page.lines(comparisons.summary().into_iter().chain(comparisons.levels.iter().map(verdict)).collect());
    let chart = |level: &LevelComparison| changes(&level.comparison, &format!("Changes at {}", level.level));
    page.charts("Changes", comparisons.levels.iter().map(chart));
    for level in &comparisons.levels {
        page.heading(&format!("Level {}", level.level));
        page.lines(lines(&level.comparison));
        differing(&mut page, &level.comparison);
        page.table(&format!("Figures of {}", level.level), &figures(&level.comparison));
        if let Some(factors) = factors(&level.comparison) {
            page.table(&format!("What else changed at {}", level.level), &factors);
        }
        if let Some(groups) = groups(&level.comparison) {
            page.table(&format!("Groups of {}", level.level), &groups);
        }
    }
    page.finish()
}

fn differing(page: &mut Page, comparison: &Comparison) {
    match comparison.workload.differences.is_empty() {
        true => page.paragraph(
            "No difference between the experiments is known: load, target, model, engine and machine agree.",
        ),
        false => page.table("What differs between the experiments", &differences(comparison)),
    }
}

fn changes(comparison: &Comparison, title: &str) -> Option<Chart> {
    let summary = format!(
        "Change of each figure with its 95 % interval, over {} figures. The dashed lines are the margin of {:.1} %. A change \
         of a latency to the right is worse; a change of goodput, success rate or tokens per second to the left is worse.",
        comparison.figures.len(),
        comparison.margin * 100.0
    );
    let rows: Vec<ForestRow> = comparison.figures.iter().map(forest_row).collect();
    forest::chart(title, summary, &rows, comparison.margin)
}

fn forest_row(change: &FigureChange) -> ForestRow {
    let known = change.change.as_ref().ok();
    let verdict = match (change.verdict, change.better) {
        (Some(Verdict::Worse), _) => ForestVerdict::Worse,
        (_, true) => ForestVerdict::Better,
        (Some(Verdict::NotWorse), _) => ForestVerdict::NotWorse,
        (Some(Verdict::Undecided { .. }), _) => ForestVerdict::Undecided,
        (None, _) if known.is_some() => ForestVerdict::Undecided,
        (None, _) => ForestVerdict::NoInterval,
    };
    ForestRow {
        name: change.label.clone(),
        before: change.before,
        after: change.after,
        change: known.map_or(change.point_change(), |known| known.value()),
        interval: known.map(|known| known.interval()),
        verdict,
    }
}

/// Distribution and cumulative distribution of a metric.
fn sides(metric: ReportMetric, before: &[ComparedRun], after: &[ComparedRun]) -> [Option<Chart>; 2] {
    let mut samples = [before, after].map(|runs| {
        let mut all = Samples::default();
        runs.iter().for_each(|run| all.extend(&run.fold.total.samples[metric_of_samples(run, metric) as usize]));
        all
    });
    let [first, second] = &mut samples;
    let (Some(first), Some(second)) = (first.sorted(), second.sorted()) else { return [None, None] };
    let label = metric.label(false).trim_end_matches(" from planned");
    let [name_before, name_after] = SIDES;
    let curves = [(name_before, metric, first), (name_after, metric, second)];
    [
        distribution::of_sides(metric, label, [(name_before, first), (name_after, second)]),
        cumulative::chart(&format!("{label}: share of values up to each"), &curves),
    ]
}

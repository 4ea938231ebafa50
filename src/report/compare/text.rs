//! A comparison as text.

use super::super::ascii_plot::format_value;
use super::super::metric::MetricUnit;
use super::super::text_layout::{TextLayout, aligned, named_lines};
use super::{
    ChangeConditionResult, ComparedFigure, Comparison, ConditionObstacle, ExperimentDifference, FigureChange,
    GroupChange, GroupFigures, LoadFactor,
};
use crate::stats::change::Verdict;
use crate::stats::interval::Interval;

const LABEL: usize = 13;

/// Renders the comparison.
pub fn render(comparison: &Comparison, layout: TextLayout) -> String {
    let mut text = named_lines(lines(comparison), LABEL);
    if !comparison.workload.differences.is_empty() {
        text += &format!("\n{}", aligned(&differences(comparison)));
    }
    text += &format!("\n{}", aligned(&figures(comparison)));
    if let Some(factors) = factors(comparison) {
        text += &format!("\n{}", aligned(&factors));
    }
    if let Some(groups) = groups(comparison) {
        text += &format!("\n{}", aligned(&groups));
    }
    if layout.plain { text.replace('–', "-").replace('µ', "u").replace('→', "->") } else { text }
}

/// Returns named lines.
pub(super) fn lines(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> = comparison.simulated.line().into_iter().collect();
    lines.extend([
        ("before", comparison.before.join(", ")),
        ("after", comparison.after.join(", ")),
        ("method", format!("{}; margin {}", comparison.method.text(), percent(comparison.margin))),
        ("verdict", verdict_line(comparison)),
    ]);
    if !comparison.one_sided.is_empty() {
        lines.push(("one-sided", format!("only one side has values of {}", comparison.one_sided.join(", "))));
    }
    for (at, ChangeConditionResult { condition, verdict, obstacle }) in comparison.conditions.iter().enumerate() {
        let result = match (obstacle, verdict) {
            (Some(ConditionObstacle::NotMeasured), _) => "undecided: a side has no value of it".to_owned(),
            (Some(ConditionObstacle::Withheld), _) => "undecided: the workloads differ".to_owned(),
            (None, Verdict::Worse) => "FAILS: its whole interval is there".to_owned(),
            (None, Verdict::NotWorse) => "passes: its whole interval is elsewhere".to_owned(),
            (None, Verdict::Undecided { data_factor }) => format!("undecided{}", more_data(*data_factor)),
        };
        lines.push((if at == 0 { "conditions" } else { "" }, format!("{condition}: {result}")));
    }
    lines
}

pub(super) fn verdict_line(comparison: &Comparison) -> String {
    let worse: Vec<&str> = comparison
        .figures
        .iter()
        .filter(|change| change.verdict == Some(Verdict::Worse))
        .map(|change| change.label.as_str())
        .collect();
    match comparison.verdict {
        None => {
            "withheld: the workloads differ, so the load explains any change; --although different overrides".to_owned()
        }
        Some(Verdict::Worse) => format!("WORSE: {}", worse.join(", ")),
        Some(Verdict::NotWorse) => "not worse: the intervals of all figures stay within the margin".to_owned(),
        Some(Verdict::Undecided { data_factor: None }) if !comparison.one_sided.is_empty() => {
            "undecided: one side lacks a figure of the other".to_owned()
        }
        Some(Verdict::Undecided { data_factor }) => format!("undecided{}", more_data(data_factor)),
    }
}

/// Greatest relative change that is shown.
const MAX_CHANGE: f64 = 99.0;

fn more_data(factor: Option<f64>) -> String {
    match factor {
        Some(factor) if factor < 1_000.0 => format!(": about {} as much data would decide", times(factor)),
        Some(_) => ": even 1,000 times as much data would not decide".to_owned(),
        None => ": the change is too close to the margin for any amount of data".to_owned(),
    }
}

/// The table of differences. The first row is the header.
pub(super) fn differences(comparison: &Comparison) -> Vec<Vec<String>> {
    let row = |ExperimentDifference { what, before, after, workload }: &ExperimentDifference| {
        let kind = if *workload { "workload" } else { "" };
        vec![what.clone(), before.clone(), after.clone(), kind.to_owned()]
    };
    let head = ["differs", "before", "after", ""].map(str::to_owned).to_vec();
    std::iter::once(head).chain(comparison.workload.differences.iter().map(row)).collect()
}

/// The table of figures. The first row is the header.
pub(super) fn figures(comparison: &Comparison) -> Vec<Vec<String>> {
    let row = |change: &FigureChange| {
        let figure = change.figure;
        let share = |of: f64| change_text(figure, of);
        let (relative, interval) = match &change.change {
            Ok(known) => {
                let Interval { low, high } = known.interval();
                (share(known.value()), format!("{} – {}", share(low), share(high)))
            }
            Err(missing) => (share(change.point_change()), format!("too few ({})", times(missing.factor()))),
        };
        let verdict = match (change.verdict, change.better) {
            (Some(Verdict::Worse), _) => "WORSE".to_owned(),
            (_, true) => "better".to_owned(),
            (Some(Verdict::NotWorse), _) => "not worse".to_owned(),
            (Some(Verdict::Undecided { data_factor: Some(factor) }), _) if factor < 1_000.0 => {
                format!("undecided ({})", times(factor))
            }
            (Some(Verdict::Undecided { .. }), _) => "undecided".to_owned(),
            (None, _) if change.change.is_ok() => "withheld".to_owned(),
            (None, _) => "-".to_owned(),
        };
        let effect = change.effect_size.map_or("-".to_owned(), |effect| format!("{effect:+.2}"));
        let label = change.label.clone();
        vec![label, figure.format(change.before), figure.format(change.after), relative, interval, effect, verdict]
    };
    let head = ["", "before", "after", "change", "95 % interval", "effect", "verdict"].map(str::to_owned).to_vec();
    std::iter::once(head).chain(comparison.figures.iter().map(row)).collect()
}

/// A change with its interval, in words.
pub(super) fn change_evidence(change: &FigureChange) -> String {
    let share = |of: f64| change_text(change.figure, of);
    match &change.change {
        Ok(known) => {
            let Interval { low, high } = known.interval();
            format!("{}, 95 % interval {} – {}", share(known.value()), share(low), share(high))
        }
        Err(missing) => format!("{}, without an interval: {missing}", share(change.point_change())),
    }
}

/// The table of factors; `None` if no source reports any. The first row is the header.
pub(super) fn factors(comparison: &Comparison) -> Option<Vec<Vec<String>>> {
    let row = |LoadFactor { name, before, after, notable, effect }: &LoadFactor| {
        let effect = if *notable { (*effect).to_owned() } else { String::new() };
        vec![(*name).to_owned(), figure(*before), figure(*after), effect]
    };
    let head = ["may explain it", "before", "after", "effect"].map(str::to_owned).to_vec();
    let rows = comparison.factors.iter().map(row);
    (!comparison.factors.is_empty()).then(|| std::iter::once(head).chain(rows).collect())
}

fn figure(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

pub(super) fn change_text(figure: ComparedFigure, change: f64) -> String {
    if figure.is_share() { percent(change).replace(" %", " pt") } else { percent(change) }
}

/// A share in percent. Of runs that differ by more than a hundredfold, the number would say less than its size.
fn percent(share: f64) -> String {
    if share > MAX_CHANGE {
        return format!("> +{:.0} %", MAX_CHANGE * 100.0);
    }
    let text = format!("{:+.1} %", share * 100.0);
    if matches!(&*text, "+0.0 %" | "-0.0 %") { "0.0 %".to_owned() } else { text }
}

/// Rounded up, so that the data suffices.
fn times(factor: f64) -> String {
    format!("x{:.1}", (factor * 10.0).ceil() / 10.0)
}

/// The table of groups; `None` without --by. The first row is the header.
pub(super) fn groups(comparison: &Comparison) -> Option<Vec<Vec<String>>> {
    let keys = comparison.groups.first()?.by.keys().map(|key| (*key).to_owned());
    let figures = ["requests", "success", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99"].map(str::to_owned);
    let head: Vec<String> = keys.chain(figures).collect();
    Some(std::iter::once(head).chain(comparison.groups.iter().map(group_row)).collect())
}

/// Each cell has the value before, the value after and the change.
fn group_row(group: &GroupChange) -> Vec<String> {
    let side = |of: &dyn Fn(&GroupFigures) -> Option<f64>| {
        (group.before.as_ref().and_then(of), group.after.as_ref().and_then(of))
    };
    let cell = |of: &dyn Fn(&GroupFigures) -> Option<f64>, format: &dyn Fn(f64) -> String| {
        let (before, after) = side(of);
        let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), format);
        let change = before.zip(after).map(|(before, after)| after / before - 1.0).filter(|change| change.is_finite());
        let change = change.map_or_else(String::new, |change| format!(" ({})", percent(change)));
        format!("{} → {}{change}", text(before), text(after))
    };
    let time = |value: f64| format_value(value, MetricUnit::Time);
    let (before, after) = side(&|of| Some(of.success_rate));
    let text = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let success = format!("{} → {}", text(before), text(after));
    let figures = [
        cell(&|of| Some(of.requests as f64), &|count| format!("{count}")),
        success,
        cell(&|of| of.ttft_p50, &time),
        cell(&|of| of.ttft_p99, &time),
        cell(&|of| of.itl_p50, &time),
        cell(&|of| of.itl_p99, &time),
    ];
    group.by.values().cloned().chain(figures).collect()
}

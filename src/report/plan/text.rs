//! A plan as text.

use super::resample::resample;
use super::{CapacityPlan, PlanWindow, tables};
use crate::report::ascii_plot::{columns, replace_unprintable};
use crate::report::text_layout::{LABEL, TextLayout, aligned, named_lines};
use crate::report::warning::WarningText;

/// Lines of the plot.
const HEIGHT: u64 = 6;
/// Most columns of the plot.
const MAX_WIDTH: usize = 72;

/// Renders the plan.
pub fn render(plan: &CapacityPlan, screen: TextLayout) -> String {
    let mut text = named_lines(plan.context.lines(), LABEL) + "\n" + &named_lines(tables::lines(plan), LABEL);
    text += &format!("\n{}", aligned(&tables::levels(plan)));
    text += &over_time(&plan.over_time, screen);
    text += &format!("\n{}", aligned(&tables::alternatives(plan)));
    for effect in &plan.effects {
        text += &format!("\nIf {}:\n{}", effect.event, aligned(&tables::effect(effect)));
    }
    text + &notes(&plan.assumptions, &plan.warnings)
}

/// Lists the assumptions and the warnings.
pub(super) fn notes(assumptions: &[String], warnings: &[WarningText]) -> String {
    let mut text = "\nassumptions\n".to_owned();
    for assumption in assumptions {
        text += &format!("  - {}\n", replace_unprintable(assumption));
    }
    for warning in warnings {
        text += &format!("\nwarning: {}\n  advice: {}\n", replace_unprintable(&warning.text), warning.advice);
    }
    text
}

/// Plots the arrivals, and the replicas below.
pub(super) fn over_time(windows: &[PlanWindow], screen: TextLayout) -> String {
    if windows.len() < 2 {
        return String::new();
    }
    let width = screen.width.saturating_sub(LABEL + 2).min(MAX_WIDTH);
    let rates = resample(windows, width, |window| window.requests / window.seconds);
    let replicas = resample(windows, width, |window| window.replicas as f64);
    let plot = |name: &str, values: &[f64], digits: usize| {
        let most = values.iter().copied().fold(0.0, f64::max);
        let mut text = format!("\n{name}\n");
        let edge = if screen.plain { '|' } else { '│' };
        for (at, line) in columns(values, most, HEIGHT, screen.plain).iter().enumerate() {
            let label = match at as u64 {
                0 => format!("{most:.digits$}"),
                line if line + 1 == HEIGHT => "0".to_owned(),
                _ => String::new(),
            };
            text += format!("{label:>width$} {edge}{line}", width = LABEL - 1).trim_end();
            text.push('\n');
        }
        text
    };
    let seconds: f64 = windows.iter().map(|window| window.seconds).sum();
    let span = format!("{:.1} min", seconds / 60.0);
    let axis = format!("{:>LABEL$}0{span:>rest$}\n", "", rest = rates.len());
    plot("requests/s", &rates, 2) + &plot("replicas, paid", &replicas, 0) + &axis
}

//! A plan as text.

use super::resample::resample;
use super::{CapacityPlan, tables};
use crate::report::ascii_plot::{columns, replace_unprintable};
use crate::report::text::{TextLayout, aligned, named_lines};

/// Width of the label column.
const LABEL: usize = 12;
/// Lines of the plot.
const HEIGHT: u64 = 6;
/// Most columns of the plot.
const MAX_WIDTH: usize = 72;

/// Renders the plan.
pub fn render(plan: &CapacityPlan, screen: TextLayout) -> String {
    let mut text = named_lines(tables::lines(plan), LABEL);
    text += &format!("\n{}", aligned(&tables::levels(plan)));
    text += &over_time(plan, screen);
    text += &format!("\n{}", aligned(&tables::alternatives(plan)));
    for effect in &plan.effects {
        text += &format!("\nIf {}:\n{}", effect.event, aligned(&tables::effect(effect)));
    }
    text += "\nassumptions\n";
    for assumption in &plan.assumptions {
        text += &format!("  - {}\n", replace_unprintable(assumption));
    }
    for warning in &plan.warnings {
        text += &format!("\nwarning: {}\n  advice: {}\n", replace_unprintable(&warning.text), warning.advice);
    }
    text
}

/// Plots the arrivals, and the replicas below.
fn over_time(plan: &CapacityPlan, screen: TextLayout) -> String {
    if plan.over_time.len() < 2 {
        return String::new();
    }
    let width = screen.width.saturating_sub(LABEL + 2).min(MAX_WIDTH);
    let rates = resample(&plan.over_time, width, |window| window.requests / window.seconds);
    let replicas = resample(&plan.over_time, width, |window| window.replicas as f64);
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
    let span = format!("{:.1} min", plan.traffic.seconds / 60.0);
    let axis = format!("{:>LABEL$}0{span:>rest$}\n", "", rest = rates.len());
    plot("requests/s", &rates, 2) + &plot("replicas, paid", &replicas, 0) + &axis
}

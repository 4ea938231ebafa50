//! A plan as Markdown, for an issue or a document.

use super::{CapacityPlan, tables};
use crate::report::markdown::{bullet_list, escaped, pipe_table};
use crate::report::text_layout::sentence;
use crate::report::warning::WarningText;

/// Renders the plan.
pub fn render(plan: &CapacityPlan) -> String {
    let mut text = bullet_list(plan.context.lines()) + "\n" + &bullet_list(tables::lines(plan));
    text += &pipe_table(&tables::levels(plan));
    text += &pipe_table(&tables::alternatives(plan));
    for effect in &plan.effects {
        text += &format!("\nIf {}:\n{}", effect.event, pipe_table(&tables::effect(effect)));
    }
    text + &notes(&plan.assumptions, &plan.warnings)
}

/// Lists the assumptions and the warnings.
pub(super) fn notes(assumptions: &[String], warnings: &[WarningText]) -> String {
    let mut text = "\nAssumptions\n\n".to_owned();
    for assumption in assumptions {
        text += &format!("- {}\n", escaped(&sentence(assumption)));
    }
    for warning in warnings {
        text +=
            &format!("\n> **Warning:** {} *Advice:* {}.\n", escaped(&sentence(&warning.text)), escaped(warning.advice));
    }
    text
}

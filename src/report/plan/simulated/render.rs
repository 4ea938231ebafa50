//! A simulated plan as text, Markdown and HTML.

use super::SimulatedPlan;
use crate::report::markdown::{bullet_list, escaped, pipe_table};
use crate::report::page::Page;
use crate::report::plan::{PlanWindow, html as plan_html, markdown as plan_markdown, text as plan_text};
use crate::report::text_layout::{LABEL, TextLayout, aligned, named_lines, sentence};

/// Renders the plan as text.
pub fn text(plan: &SimulatedPlan, screen: TextLayout) -> String {
    let mut text = format!("{}\n\n", plan.banner());
    text += &named_lines(plan.lines(), LABEL);
    text += &plan_text::over_time(&plan.windows(), screen);
    text += &format!("\n{}", aligned(&plan.size_rows()));
    if !plan.extrapolations.is_empty() {
        text += &format!("\n{}", aligned(&plan.extrapolation_rows()));
    }
    text + &plan_text::notes(&plan.assumptions, &plan.warnings)
}

/// Renders the plan as Markdown.
pub fn markdown(plan: &SimulatedPlan) -> String {
    let mut text = format!("> **{}**\n\n", escaped(&plan.banner()));
    text += &bullet_list(plan.lines());
    text += &pipe_table(&plan.size_rows());
    if !plan.extrapolations.is_empty() {
        text += &pipe_table(&plan.extrapolation_rows());
    }
    text + &plan_markdown::notes(&plan.assumptions, &plan.warnings)
}

/// Renders the plan as a page.
pub fn html(plan: &SimulatedPlan) -> String {
    let mut page = Page::new(&format!("SIMULATED: Streamgauge plan: {}", plan.traffic.source));
    page.paragraph(&plan.banner());
    page.lines(plan.lines());
    plan.warnings.iter().for_each(|warning| page.warning(warning, &warning.text));
    let title = "Arrivals and replicas over time, SIMULATED";
    page.charts(title, plan_html::over_time(&plan.windows(), None));
    page.table("Simulated fleets of a constant size", &plan.size_rows());
    if !plan.extrapolations.is_empty() {
        page.table("Beyond what the twin was fitted to", &plan.extrapolation_rows());
    }
    page.heading("Assumptions");
    page.list(plan.assumptions.iter().map(|assumption| sentence(assumption)));
    page.finish()
}

impl SimulatedPlan {
    fn windows(&self) -> Vec<PlanWindow> {
        self.over_time.iter().map(|of| of.window).collect()
    }
}

//! Page of a plan.

use super::{CapacityPlan, PlanWindow, resample, tables};
use crate::report::page::Page;
use crate::report::page::chart::{Chart, ChartKind, ChartUnit, Column};
use crate::report::text_layout::sentence;

/// Windows of a chart: a year stays readable.
const MAX_WINDOWS: usize = 640;

/// Renders the page.
pub fn render(plan: &CapacityPlan) -> String {
    let mut page = Page::new(&format!("Streamgauge plan: {}", plan.traffic.source));
    page.lines(plan.context.lines());
    page.lines(tables::lines(plan));
    plan.warnings.iter().for_each(|warning| page.warning(warning, &warning.text));
    let usable = plan.capacity.rate * (1.0 - plan.reserves.headroom);
    let failed = u64::from(plan.reserves.failed);
    let carried = |window: &PlanWindow| window.serving.saturating_sub(failed) as f64 * usable;
    page.charts("Arrivals and replicas over time", over_time(&plan.over_time, Some(&carried)));
    page.table("Levels of the sweep", &tables::levels(plan));
    page.table("This plan and others", &tables::alternatives(plan));
    for effect in &plan.effects {
        page.table(&format!("If {}", effect.event), &tables::effect(effect));
    }
    page.heading("Assumptions");
    page.list(plan.assumptions.iter().map(|assumption| sentence(assumption)));
    page.finish()
}

/// Charts of the windows, with the rate that the replicas carry if it is known; none if the rate is constant.
pub(super) fn over_time(windows: &[PlanWindow], carried: Option<&dyn Fn(&PlanWindow) -> f64>) -> Vec<Option<Chart>> {
    if windows.len() < 2 {
        return Vec::new();
    }
    let of = |value: &dyn Fn(&PlanWindow) -> f64| resample::resample(windows, MAX_WINDOWS, value);
    let rates = of(&|window| window.requests / window.seconds);
    let (paid, serving) = (of(&|window| window.replicas as f64), of(&|window| window.serving as f64));
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let each = match windows.len().div_ceil(MAX_WINDOWS) {
        1 => format!("each window of {:.0} s", windows[0].seconds),
        _ => format!("the busiest of the windows of each of {} equal parts", rates.len()),
    };
    let and_carried = carried.map_or("", |_| ", and what the replicas carry that the arrivals need, with the headroom");
    let load = format!("Requests per second in {each}, at most {:.2}{and_carried}.", most(&rates));
    let replicas = format!(
        "Replicas that serve and that cost in {each}, at most {:.0}. A replica costs from its order on.",
        most(&paid)
    );
    let seconds: f64 = windows.iter().map(|window| window.seconds).sum();
    let length = seconds / rates.len() as f64;
    let chart = |title: &str, summary: String, columns: Vec<Column>| {
        let time = Column::new("from", ChartUnit::Seconds, (0..rates.len()).map(|at| at as f64 * length));
        let chart = Chart::new(ChartKind::Lines, title, summary, std::iter::once(time).chain(columns).collect());
        let chart = chart.x("time", ChartUnit::Seconds, false).y(ChartUnit::Number, false);
        chart.attribute("stepped", "").attribute("area", "0").attribute("x-to", format!("{seconds:.3}")).full_width()
    };
    let column = |name: &str, values: Vec<f64>| Column::new(name, ChartUnit::Number, values);
    let carried = carried.map(|carried| column("capacity", of(carried)));
    let rates = std::iter::once(column("arrivals", rates.clone())).chain(carried).collect();
    vec![
        Some(chart("Requests per second", load, rates)),
        Some(
            chart("Replicas", replicas, vec![column("serving", serving), column("paid", paid)])
                .attribute("y-whole", ""),
        ),
    ]
}

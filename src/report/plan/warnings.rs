//! Threats to a plan, each with advice.

use super::measured_sweep::MeasuredSweep;
use super::{CapacityPlan, Traffic};
use crate::report::warning::WarningText;
use crate::trace_file::header::SIMULATED;

/// Greatest ratio of the levels around the capacity; a search ends at 1.05.
const MAX_STEP: f64 = 1.25;

/// Returns the warnings, the gravest first.
pub(super) fn warnings(plan: &CapacityPlan, sweep: &MeasuredSweep, traffic: &Traffic) -> Vec<WarningText> {
    let capacity = &plan.capacity;
    let mut list = Vec::new();
    let mut warn = |warning, text, advice| list.push(WarningText { warning, text, advice });
    if traffic.simulated {
        warn(
            "simulated",
            format!("the traffic {} is {SIMULATED}", traffic.source),
            "plan with the capture or trace that the twin ran",
        );
    }
    for difference in &plan.differences {
        warn(
            "traffic_differs",
            format!("{difference}; the capacity holds for the load of the sweep only"),
            "sweep with a trace of this traffic: `streamgauge sweep TRACE --rates 1..32`",
        );
    }
    if sweep.is_closed_loop {
        warn(
            "closed_loop",
            "the levels are requests at a time, not arrivals, so their latencies hide the wait for a free slot"
                .to_owned(),
            "sweep with --rates",
        );
    }
    if capacity.low.is_none_or(|low| low < capacity.rate) {
        let level = &sweep.levels[capacity.level];
        let low = capacity.low.map_or_else(String::new, |low| format!("; only {low:.2} requests/s is sure"));
        warn(
            "capacity_uncertain",
            format!("{} requests of level {} are too few to be sure of its share{low}", level.requests, level.name),
            "sweep with a longer --duration",
        );
    }
    if let Some(high) = capacity.high.filter(|high| *high > capacity.rate * MAX_STEP) {
        warn(
            "levels_far_apart",
            format!(
                "a replica may hold anything from {:.2} up to {high:.2} requests/s: no level is between",
                capacity.rate
            ),
            "sweep levels in between, or search with --find-max: the plan may buy too many replicas",
        );
    }
    if capacity.at_least {
        warn(
            "capacity_open",
            format!("no level misses the SLO, so a replica may hold more than {:.2} requests/s", capacity.rate),
            "sweep higher rates: the plan may buy too many replicas",
        );
    }
    let above = sweep.levels.iter().skip(capacity.level + 1).find(|level| level.verdict.holds());
    if let Some(level) = above {
        warn(
            "levels_contradict",
            format!("level {} at {:.2} requests/s holds the SLO, though a lower one misses it", level.name, level.rate),
            "sweep again with a longer --duration",
        );
    }
    if !sweep.is_finished {
        warn("sweep_unfinished", "the sweep has not run all its levels".to_owned(), "start it again to resume it");
    }
    let left_out: Vec<String> =
        sweep.left_out.iter().map(|level| format!("{} ({})", level.name, level.reason)).collect();
    if !left_out.is_empty() {
        warn(
            "levels_not_measured",
            format!("these levels count for nothing: {}", left_out.join(", ")),
            "run the sweep again: it repeats runs that are not valid",
        );
    }
    list
}

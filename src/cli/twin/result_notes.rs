//! What a reader of a run needs to know: rows that were left out, overload, and where the twin extrapolates.

use super::figures::FleetLoad;
use super::variant::VariantResult;
use crate::report::plan::simulated::is_beyond;
use crate::twin::fleet::MAX_QUEUED_REQUESTS;
use crate::twin::model::TwinModel;

/// The notes of all variants.
pub(super) fn result_notes(model: &TwinModel, results: &[VariantResult]) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(first) = results.first() else { return notes };
    if first.totals.skipped > 0 {
        notes.push(format!(
            "note: {} of {} rows state no lengths and were not simulated",
            first.totals.skipped, first.totals.rows
        ));
    }
    if first.totals.ignored_failures > 0 {
        notes.push("note: --fail names a replica that did not run at that time".to_owned());
    }
    for result in results.iter().filter(|result| result.totals.overloaded > 0) {
        notes.push(format!(
            "note: OVERLOADED: {} refused {} of {} requests, because {MAX_QUEUED_REQUESTS} others waited; remedy: more --replicas",
            result.label, result.totals.overloaded, result.figures.requests
        ));
    }
    for number in 0..first.figures.fleets.len() {
        let loads: Vec<&FleetLoad> = results.iter().filter_map(|of| of.figures.fleets.get(number)).collect();
        notes.extend(extrapolations(model, &loads));
    }
    notes
}

/// Where a fleet goes beyond what its engines were fitted to; `loads` are those of its variants.
fn extrapolations(model: &TwinModel, loads: &[&FleetLoad]) -> Vec<String> {
    let Some((load, fitted)) = loads.first().and_then(|load| Some((load, model.fitted(&load.fleet)?))) else {
        return Vec::new();
    };
    // With several models, a note names its own.
    let name = load.fleet.model.as_ref().map_or_else(String::new, |model| format!("{model}: "));
    let most_in_flight = loads.iter().map(|load| load.max_in_flight).max().unwrap_or(0);
    let rate = loads.iter().map(|load| load.rate_per_replica()).fold(0.0, f64::max);
    let quantities = [
        ("prompts", load.max_prompt_tokens as f64, fitted.max_prompt_tokens as f64),
        ("contexts", load.max_context_tokens as f64, fitted.max_context_tokens as f64),
        ("batches", f64::from(most_in_flight), f64::from(fitted.max_in_flight)),
        ("requests/s per replica", rate, fitted.rate),
    ];
    let beyond = quantities.into_iter().filter(|(_, seen, limit)| is_beyond(*seen, *limit));
    let note = |(what, seen, limit): (&str, f64, f64)| {
        format!("note: EXTRAPOLATED: {name}{what} of {seen:.0} are beyond the {limit:.0} that the twin was fitted to")
    };
    beyond.map(note).collect()
}

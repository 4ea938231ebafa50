//! TTFT is mostly the processing of the prompt.

use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};

/// Share of the mean TTFT.
const MIN_SHARE: f64 = 0.5;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let relations = &input.relations;
    let by_server = relations.split.and_then(|split| Some((split.prefill_s?, split.total_s)));
    let by_slope = relations.ttft_isl.as_ref().filter(|relation| relation.rises());
    let decisive = match (by_server, by_slope) {
        (Some((prefill, total)), _) => {
            Evidence::new("prefill in TTFT, by the server", prefill / total, EvidenceUnit::Share)
        }
        (None, Some(relation)) => relation.share("TTFT that grows with the prompt"),
        (None, None) => return None,
    };
    let decisive = decisive.at_least(MIN_SHARE);
    let steps = input.ttft_steps();
    // A prefill of one step is the step's own cost, unless a slope shows otherwise.
    let is_long = steps.as_ref().is_some_and(Evidence::passes) || (steps.is_none() && by_slope.is_some());
    if !decisive.passes() || !is_long {
        return None;
    }
    let share = decisive.value;
    let mut evidence = vec![decisive];
    evidence.extend(steps);
    if let Some(relation) = by_slope {
        let line = &relation.line;
        evidence.push(Evidence::of("TTFT per prompt token", &line.slope, EvidenceUnit::SecondsPerToken));
        evidence.push(Evidence::of("TTFT at an empty prompt", &line.intercept, EvidenceUnit::Seconds));
        evidence.push(Evidence::new("R² of TTFT against ISL", line.r_squared, EvidenceUnit::Share));
    }
    Some(Finding {
        verdict: DiagnosisVerdict::PrefillBound,
        statement: format!("TTFT is mostly prefill: {} of it", EvidenceUnit::Share.format(share)),
        share,
        evidence,
        symptom: "TTFT grows with the length of the prompt, and long prompts delay the tokens of others",
        next_measurement: "sweep ISL at one low rate; then compare with prefix caching, chunked prefill, or more tensor parallelism",
    })
}

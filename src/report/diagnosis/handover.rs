//! The second token comes late: the KV cache moves from a prefill to a decode worker, or a prefill delays the step.

use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};

/// Second token ÷ TPOT.
const MIN_RATIO: f64 = 3.0;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let ratio = input.relations.second_token.as_ref()?;
    let evidence = Evidence::of("second token ÷ TPOT", ratio, EvidenceUnit::Ratio).at_least(MIN_RATIO);
    if !evidence.passes() || evidence.interval.is_none() {
        return None;
    }
    Some(Finding {
        verdict: DiagnosisVerdict::Handover,
        statement: format!("the second token takes {} as long as a later one", EvidenceUnit::Ratio.format(ratio.value)),
        share: 0.0,
        evidence: vec![evidence],
        symptom: "a response stops after its first token, then flows",
        next_measurement: "compare with prefill and decode in one engine; measure the transfer of the KV cache, and the chunks of the prefill",
    })
}

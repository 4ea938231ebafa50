//! Requests were longer than the server's context window.

use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let limit = input.facts.max_model_len?;
    let too_long = input.facts.refused_tokens.iter().filter(|tokens| **tokens > limit).count();
    let largest = input.facts.refused_tokens.iter().max()?;
    let count = Evidence::new("refused requests beyond the limit", too_long as f64, EvidenceUnit::Count).at_least(1.0);
    if !count.passes() {
        return None;
    }
    let all = input.points.len();
    Some(Finding {
        verdict: DiagnosisVerdict::ContextWindow,
        statement: format!("{too_long} of {all} requests asked for more than the server's max_model_len {limit}"),
        share: too_long as f64 / all.max(1) as f64,
        evidence: vec![
            count,
            Evidence::new("requests refused as invalid", input.facts.refused as f64, EvidenceUnit::Count),
            Evidence::new("prompt and output tokens, most", *largest as f64, EvidenceUnit::Count),
            Evidence::new("max_model_len", limit as f64, EvidenceUnit::Count),
        ],
        symptom: "long requests fail at once, and the latencies of the others look better",
        next_measurement: "raise the server's limit, or send shorter requests (`--isl`, `--osl`), and run again",
    })
}

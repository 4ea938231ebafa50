//! The slowest requests met no more load and no longer prompts than others.

use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use super::relations::{computed_tokens, seconds};
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::stats::samples::percentile;

/// p99 ÷ p50 of TTFT.
const MIN_TAIL_RATIO: f64 = 5.0;
/// Mean of the slowest ÷ mean of the others.
const MAX_EXCESS: f64 = 1.1;
/// Minimum number of requests beyond p99.
const MIN_SLOWEST: usize = 10;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let mut all: Vec<(f64, &RequestPoint)> =
        input.points.iter().filter_map(|point| Some((seconds(point, ReportMetric::Ttft)?, point))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |percent: f64| percentile(all.len() as u64, percent, |rank| all[rank as usize].0);
    let (p50, p99) = (at(50.0)?, at(99.0)?);
    let (others, slowest) = all.split_at(all.partition_point(|(ttft, _)| *ttft <= p99));
    if slowest.len() < MIN_SLOWEST {
        return None;
    }
    let excess = |of: fn(&RequestPoint) -> Option<f64>| {
        let mean = |some: &[(f64, &RequestPoint)]| {
            let values: Vec<f64> = some.iter().filter_map(|(_, point)| of(point)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Some(mean(slowest)? / mean(others)?).filter(|ratio| ratio.is_finite())
    };
    let load = excess(|point| point.in_flight().map(|requests| requests as f64))?;
    let mut evidence = vec![
        Evidence::new("p99 ÷ p50 of TTFT", p99 / p50, EvidenceUnit::Ratio).at_least(MIN_TAIL_RATIO),
        Evidence::new("requests in flight, slowest ÷ others", load, EvidenceUnit::Ratio).at_most(MAX_EXCESS),
    ];
    let prompt = excess(computed_tokens);
    evidence.extend(
        prompt.map(|prompt| Evidence::new("ISL, slowest ÷ others", prompt, EvidenceUnit::Ratio).at_most(MAX_EXCESS)),
    );
    evidence.iter().all(Evidence::passes).then(|| Finding {
        verdict: DiagnosisVerdict::TailWithoutLoad,
        statement: "the slowest 1 % of TTFT met no more load and no longer prompts than the others".to_owned(),
        share: 0.0,
        evidence,
        symptom: "a few requests are slow at any load",
        next_measurement: "look for pauses of the host, other tenants and the network at the times of the slowest requests",
    })
}

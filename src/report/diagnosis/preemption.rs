//! The server threw away work because its KV cache was full.

use super::super::servers::Trend;
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::measure::server_metrics::ServerMetric;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let total = |metric: ServerMetric| {
        let of = input.servers.iter().filter_map(|server| match server.figures.get(&metric)? {
            Trend::Counter { total, .. } => Some(*total),
            Trend::Level { max, .. } => Some(*max),
        });
        of.reduce(f64::max)
    };
    let preemptions =
        Evidence::new("preemptions", total(ServerMetric::Preemptions)?, EvidenceUnit::Count).at_least(1.0);
    if !preemptions.passes() {
        return None;
    }
    let count = preemptions.value;
    let share = count / (input.points.len() as f64).max(count);
    let mut evidence = vec![preemptions, Evidence::new("preemptions ÷ requests", share, EvidenceUnit::Share)];
    let usage = total(ServerMetric::KvUsage);
    evidence.extend(usage.map(|usage| Evidence::new("KV cache in use, most", usage, EvidenceUnit::Share)));
    Some(Finding {
        verdict: DiagnosisVerdict::Preempting,
        statement: format!("the server preempted running requests {count:.0} times, and computed their prompts again"),
        share,
        evidence,
        symptom: "some responses stop for seconds, then go on",
        next_measurement: "give the KV cache more memory or a smaller precision, or lower the batch limit, and compare ITL p99",
    })
}

//! Time passes before the server: in the load generator, or in the network.

use super::super::metric::ReportMetric;
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::stats::bootstrap::BlockBootstrap;
use crate::stats::estimate::rate;

/// Mean send lag, as a share of the mean TTFT from the planned time.
const MIN_LAG_SHARE: f64 = 0.1;
/// Part of TTFT that the server does not account for.
const MIN_NETWORK_SHARE: f64 = 0.5;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let (decisive, what) = match lag(input) {
        Some(lag) => (lag, "the load generator sent late"),
        None => (network(input)?, "TTFT is mostly spent outside of the server's queue and prefill"),
    };
    let share = decisive.value;
    Some(Finding {
        verdict: DiagnosisVerdict::ClientBound,
        statement: format!("{what}: {} of TTFT", EvidenceUnit::Share.format(share)),
        share,
        evidence: vec![decisive],
        symptom: "the client reports longer latencies than the server",
        next_measurement: "send from another machine or from the server's own, and compare; try the proxy's own overhead with `sim`",
    })
}

fn lag(input: &RuleInput<'_>) -> Option<Evidence> {
    let both =
        |metric: ReportMetric| move |point: &super::RequestPoint| Some((point.lag as f64, point.value(metric)? as f64));
    let (lag, ttft): (Vec<f64>, Vec<f64>) = input.points.iter().filter_map(both(ReportMetric::TtftFromPlanned)).unzip();
    let share = rate(&lag, &ttft, &BlockBootstrap::new(super::super::confidence::BOOTSTRAP_SEED))?;
    let evidence = Evidence::of("send lag in TTFT from planned", &share, EvidenceUnit::Share).at_least(MIN_LAG_SHARE);
    // Slots, not the machine, delay the sends of a closed loop.
    (evidence.passes() && evidence.interval.is_some() && !input.facts.closed_loop).then_some(evidence)
}

fn network(input: &RuleInput<'_>) -> Option<Evidence> {
    let split = input.relations.split?;
    let evidence =
        Evidence::new("TTFT outside of queue and prefill", split.network_s? / split.total_s, EvidenceUnit::Share);
    let evidence = evidence.at_least(MIN_NETWORK_SHARE);
    evidence.passes().then_some(evidence)
}

//! TTFT is mostly waiting for other requests.

use super::super::servers::Trend;
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::measure::server_metrics::ServerMetric;

/// Share of the mean TTFT.
const MIN_SHARE: f64 = 0.5;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let relations = &input.relations;
    let mut evidence = Vec::new();
    match relations.split {
        Some(split) => {
            let share = split.queue_s / split.total_s;
            evidence.push(
                Evidence::new("queue time in TTFT, by the server", share, EvidenceUnit::Share).at_least(MIN_SHARE),
            );
        }
        None => {
            let relation = relations.ttft_load.as_ref().filter(|relation| relation.rises())?;
            evidence.push(relation.share("TTFT that grows with requests in flight").at_least(MIN_SHARE));
            let line = &relation.line;
            evidence.push(Evidence::of("TTFT per request in flight", &line.slope, EvidenceUnit::SecondsPerRequest));
        }
    }
    evidence.extend(input.ttft_steps());
    if !evidence.iter().all(Evidence::passes) {
        return None;
    }
    for server in input.servers {
        if let Some(Trend::Level { avg, max, .. }) = server.figures.get(&ServerMetric::Waiting) {
            evidence.push(Evidence::new("requests waiting at the server, mean", *avg, EvidenceUnit::Count));
            evidence.push(Evidence::new("requests waiting at the server, most", *max, EvidenceUnit::Count));
        }
    }
    let share = evidence.first().map_or(0.0, |first| first.value);
    Some(Finding {
        verdict: DiagnosisVerdict::Queueing,
        statement: format!("TTFT is mostly waiting for other requests: {} of it", EvidenceUnit::Share.format(share)),
        share,
        evidence,
        symptom: "TTFT grows with the load while TPOT hardly does, and keeps growing if the load stays",
        next_measurement: "find the highest rate without a queue (`sweep --find-max`), then add a replica or a larger batch",
    })
}

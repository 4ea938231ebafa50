//! E2E is mostly the generation of tokens.
//!
//! TPOT against requests in flight shows the fixed part of a step, such as the read of the weights. The other part
//! grows with the batch: reads of the KV cache, and compute.

use super::super::servers::{MeanDuration, ServerSummary, Trend};
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput, scheduler};
use crate::measure::server_metrics::ServerMetric;

/// Share of the mean E2E.
const MIN_SHARE: f64 = 0.5;
/// Mean number of requests in prefill, by Little's law: with more, most steps hold a prefill and are no pure decode.
const MAX_IN_PREFILL: f64 = 0.5;
/// p50 ÷ p10 of ITL: with more, prefills of others stretch most steps.
const MAX_PACE_RATIO: f64 = 3.0;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    // An idle GPU does not set the pace.
    if scheduler::idle_gpu(input.servers).is_some() {
        return None;
    }
    let decode = input.relations.decode_share.as_ref()?;
    let decisive = Evidence::of("decode in E2E", decode, EvidenceUnit::Share).at_least(MIN_SHARE);
    if !decisive.passes() || decisive.interval.is_none() {
        return None;
    }
    let share = decisive.value;
    let mut evidence = vec![decisive];
    let pace = |(p10, p50): (f64, f64)| Evidence::new("p50 ÷ p10 of ITL", p50 / p10, EvidenceUnit::Ratio);
    evidence.extend(input.facts.itl_s.map(|itl| pace(itl).at_most(MAX_PACE_RATIO)));
    evidence.extend(in_prefill(input));
    if !evidence.iter().all(Evidence::passes) {
        return None;
    }
    let batch = input.relations.tpot_load.as_ref();
    let pace = match batch {
        None => "requests in flight hardly vary, so the batch's part of a step is unknown",
        Some(relation) => {
            let grows = relation.share("TPOT that grows with requests in flight");
            let (line, by_batch) = (&relation.line, grows.value >= MIN_SHARE);
            evidence.push(grows);
            evidence.push(Evidence::of("TPOT without others", &line.intercept, EvidenceUnit::Seconds));
            evidence.push(Evidence::of("TPOT per request in flight", &line.slope, EvidenceUnit::SecondsPerRequest));
            match by_batch {
                true => "most of a step grows with the batch: reads of the KV cache, or compute",
                false => "most of a step is the same for any batch, as the read of the weights is: memory bandwidth",
            }
        }
    };
    let figure = |metric| input.servers.iter().find_map(|server| server.figures.get(&metric));
    if let Some(Trend::Level { avg, .. }) = figure(ServerMetric::GpuMemoryActivity) {
        evidence.push(Evidence::new("GPU memory activity, mean", *avg, EvidenceUnit::Share));
    }
    Some(Finding {
        verdict: DiagnosisVerdict::DecodeBound,
        statement: format!("E2E is mostly decode: {} of it; {pace}", EvidenceUnit::Share.format(share)),
        share,
        evidence,
        symptom: "long responses take long, whatever the prompt",
        next_measurement: "compare TPOT with the bound of the memory (`report --hardware bandwidth=…`), then try a smaller precision, speculative decoding or more tensor parallelism",
    })
}

/// Mean number of requests in prefill: their number per second times their time.
fn in_prefill(input: &RuleInput<'_>) -> Option<Evidence> {
    let of = |server: &ServerSummary| {
        let MeanDuration { mean_s, requests } = server.durations.get(&ServerMetric::PrefillSeconds)?;
        Some(mean_s * requests / (server.to_s - server.from_s)).filter(|mean| mean.is_finite())
    };
    let most = input.servers.iter().filter_map(of).reduce(f64::max)?;
    Some(Evidence::new("requests in prefill, mean", most, EvidenceUnit::Count).at_most(MAX_IN_PREFILL))
}

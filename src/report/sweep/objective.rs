//! How far each objective of the goals holds, judged alone. Pure.
//!
//! `chat: ttft<=200ms tpot<=15ms` at `goodput>=95%` is judged as `ttft<=200ms` and as `tpot<=15ms`, each for 95 % of the
//! requests. A saturated level holds none: its queue grows, so every latency does in the end.

use schemars::JsonSchema;
use serde::Serialize;

use super::level_result::goal_results;
use super::level_verdict::LevelVerdict;
use crate::measure::slo::criteria::{Criteria, ObservedShare};
use crate::measure::slo::{Slo, Slos};
use crate::report::accumulate::RequestStats;

/// One objective at one level.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ObjectiveResult {
    /// The objective, with the share of requests or gaps that it needs.
    pub(super) objective: String,
    /// Observed share, 0 to 1; absent if no request is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<f64>,
    /// Verdict; absent if no request is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<LevelVerdict>,
}

/// Judges every objective of a level alone. The counts of `objectives` follow those of `slos`.
pub(super) fn results(
    figures: &mut RequestStats,
    (slos, objectives): (&Slos, &[Slo]),
    goals: &Criteria,
    is_saturated: bool,
) -> Vec<ObjectiveResult> {
    let mut counts = figures.goodput.iter().skip(slos.iter().count()).zip(objectives);
    let mut results = Vec::new();
    for slo in slos.iter() {
        let of_slo = counts.by_ref().take(slo.objectives().count()).collect::<Vec<_>>();
        let Some(share) = goals.share_of(slo.name()) else { continue };
        // A percentile of --find-max is an SLO of one objective, whose name adds nothing.
        let is_criterion = goals.slos().any(|own| own.name() == slo.name());
        let prefix = if is_criterion || slos.iter().count() == 1 { String::new() } else { format!("{}: ", slo.name()) };
        results.extend(of_slo.into_iter().map(|(counts, objective)| {
            let seen = ObservedShare { good: counts.met as f64, of: counts.counted as f64, share };
            result(format!("{prefix}{objective}"), seen, is_saturated)
        }));
    }
    // Limits on gaps follow the SLOs.
    let all = goal_results(figures, slos, goals);
    let gaps = goals.gaps().collect::<Vec<_>>();
    let seen = all.iter().skip(all.len() - gaps.len());
    results
        .extend(gaps.iter().zip(seen).map(|((limit, _), seen)| result(format!("itl<={limit}"), *seen, is_saturated)));
    results
}

fn result(objective: String, seen: ObservedShare, is_saturated: bool) -> ObjectiveResult {
    ObjectiveResult {
        objective: format!("{objective} for {} %", (seen.share * 1e4).round() / 1e2),
        share: (seen.of > 0.0).then(|| seen.good / seen.of),
        verdict: LevelVerdict::of(&[seen], is_saturated),
    }
}

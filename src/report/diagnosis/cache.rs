//! The effect of the prefix cache, and the finding that it did not hold what was repeated.

use super::super::metric::ReportMetric;
use super::super::request_point::RequestPoint;
use super::relations::{Relations, seconds};
use super::{DiagnosisVerdict, Evidence, EvidenceUnit, Finding, RuleInput};
use crate::stats::hypothesis::welch;

/// Share of the prompt tokens that a cache could have held and did not.
const MIN_MISSED_SHARE: f64 = 0.25;
/// Share of a prompt from the cache, of a request that counts as cached, and of one that does not.
const CACHED_SHARE: f64 = 0.5;
const COMPUTED_SHARE: f64 = 0.1;
/// Minimum requests of each kind.
const MIN_REQUESTS: usize = 20;
const CACHED: &str = "prompt tokens from the cache";
/// Part of the run that counts as its beginning.
const BEGINNING: f64 = 0.1;

pub(super) fn diagnose(input: &RuleInput<'_>) -> Option<Finding> {
    let cached = cached_share(input.points)?;
    let offered = input.facts.offered_prefix_share;
    let (missed, of) = match offered.filter(|offered| offered - cached >= MIN_MISSED_SHARE) {
        Some(offered) => (offered - cached, "repeated prompt tokens that the cache did not hold"),
        None => (cold_beginning(input.points)?, "prompt tokens from the cache, rest of the run − first tenth"),
    };
    let decisive = Evidence::new(of, missed, EvidenceUnit::Share).at_least(MIN_MISSED_SHARE);
    if !decisive.passes() {
        return None;
    }
    let mut evidence = vec![decisive, Evidence::new(CACHED, cached, EvidenceUnit::Share)];
    evidence.extend(offered.map(|share| Evidence::new("prompt tokens sent before", share, EvidenceUnit::Share)));
    evidence.extend(saving(input.points));
    Some(Finding {
        verdict: DiagnosisVerdict::CacheCold,
        statement: format!("the prefix cache was cold for {} of the prompt tokens", EvidenceUnit::Share.format(missed)),
        share: missed,
        evidence,
        symptom: "TTFT of repeated prompts is that of new ones",
        next_measurement: "send the prefixes before the run (--warm-prefixes), and compare sizes of the KV cache and routing by prefix",
    })
}

/// The effect of a cache that held something: its share of the prompt tokens, and what it saved of TTFT.
pub(super) fn effect(points: &[RequestPoint], relations: &Relations) -> Vec<Evidence> {
    let Some(cached) = cached_share(points).filter(|share| *share > 0.0) else { return Vec::new() };
    let share = Evidence::new(CACHED, cached, EvidenceUnit::Share);
    std::iter::once(share).chain(saving(points)).chain(saved_prefill(points, relations)).collect()
}

/// Mean TTFT that the prefill of the cached tokens would have taken. Unlike [`saving`], it does not depend on whether
/// cached prompts are longer than others, as those of later turns are.
fn saved_prefill(points: &[RequestPoint], relations: &Relations) -> Option<Evidence> {
    let prefill = relations.ttft_isl.as_ref().filter(|prefill| prefill.rises())?;
    let cached: Vec<u64> = points.iter().filter_map(RequestPoint::cached).collect();
    let mean = cached.iter().sum::<u64>() as f64 / cached.len() as f64;
    Some(prefill.slope_times(mean, "prefill that the cache saved, on average", EvidenceUnit::Seconds))
}

/// Share of the prompt tokens that came from the cache; `None` if no server reports it.
fn cached_share(points: &[RequestPoint]) -> Option<f64> {
    let both = || points.iter().filter_map(|point| Some((point.cached()? as f64, point.isl()? as f64)));
    let all: f64 = both().map(|(_, isl)| isl).sum();
    (all > 0.0).then(|| both().map(|(cached, _)| cached).sum::<f64>() / all)
}

/// Cached share of the rest of the run minus that of its beginning.
fn cold_beginning(points: &[RequestPoint]) -> Option<f64> {
    let first = (points.len() as f64 * BEGINNING) as usize;
    let (beginning, rest) = points.split_at(first);
    if beginning.len() < MIN_REQUESTS {
        return None;
    }
    Some(cached_share(rest)? - cached_share(beginning)?)
}

/// Difference of the mean TTFT of cached and computed prompts.
fn saving(points: &[RequestPoint]) -> Option<Evidence> {
    let share = |point: &RequestPoint| Some(point.cached()? as f64 / point.isl().filter(|isl| *isl > 0)? as f64);
    let ttft = |predicate: &dyn Fn(f64) -> bool| -> Vec<f64> {
        let chosen = points.iter().filter(|point| share(point).is_some_and(predicate));
        chosen.filter_map(|point| seconds(point, ReportMetric::Ttft)).collect()
    };
    let (computed, cached) = (ttft(&|share| share < COMPUTED_SHARE), ttft(&|share| share >= CACHED_SHARE));
    if computed.len().min(cached.len()) < MIN_REQUESTS {
        return None;
    }
    let change = welch(&cached, &computed).ok()?;
    let name = "TTFT of computed prompts − of cached ones";
    Some(Evidence { interval: Some(change.interval()), ..Evidence::new(name, change.value(), EvidenceUnit::Seconds) })
}

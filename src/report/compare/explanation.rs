//! What else changed between two sides, and may explain a change of the figures.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::request_point::RequestPoint;
use super::ComparedRun;
use crate::measure::server_metrics::ServerMetric;

/// Relative change from which a factor is worth a look.
const NOTABLE_CHANGE: f64 = 0.1;

/// A mean that latencies depend on.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LoadFactor {
    /// Name for people.
    pub name: &'static str,
    /// Mean of the first side.
    pub before: f64,
    /// Mean of the second side.
    pub after: f64,
    /// It changed by more than a tenth.
    pub notable: bool,
    /// What a change in this direction does to latencies.
    pub effect: &'static str,
}

/// The factors that both sides report.
pub(super) fn factors(before: &[ComparedRun], after: &[ComparedRun]) -> Vec<LoadFactor> {
    let of_points = |of: fn(&[RequestPoint]) -> Option<f64>| move |run: &ComparedRun| of(&run.fold.points);
    let of_servers = |metric: ServerMetric| move |run: &ComparedRun| server_mean(run, metric);
    let factor = |name, [more, less]: [&'static str; 2], of: &dyn Fn(&ComparedRun) -> Option<f64>| {
        let side = |runs: &[ComparedRun]| {
            let values: Vec<f64> = runs.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let (before, after) = (side(before)?, side(after)?);
        let notable = (after - before).abs() > NOTABLE_CHANGE * before.abs().max(f64::MIN_POSITIVE);
        Some(LoadFactor { name, before, after, notable, effect: if after > before { more } else { less } })
    };
    let found = [
        factor(
            "ISL, tokens",
            ["longer prompts take longer to prefill", "shorter prompts take less time to prefill"],
            &of_points(|points| mean(points, RequestPoint::isl)),
        ),
        factor(
            "OSL, tokens",
            ["longer responses keep batches larger", "shorter responses keep batches smaller"],
            &of_points(|points| mean(points, RequestPoint::osl)),
        ),
        factor(
            "prompt tokens from the cache, share",
            ["more cached tokens need no prefill", "fewer cached tokens leave more to prefill"],
            &of_points(cached_share),
        ),
        factor(
            "requests in flight",
            ["more requests share each step", "fewer requests share each step"],
            &of_points(|points| mean(points, RequestPoint::in_flight)),
        ),
        factor(
            "requests waiting at the server",
            ["a longer queue adds more to TTFT", "a shorter queue adds less to TTFT"],
            &of_servers(ServerMetric::Waiting),
        ),
        factor(
            "requests running at the server",
            ["larger batches have longer steps", "smaller batches have shorter steps"],
            &of_servers(ServerMetric::Running),
        ),
        factor(
            "KV cache in use, share",
            ["a fuller cache preempts more requests", "an emptier cache preempts fewer requests"],
            &of_servers(ServerMetric::KvUsage),
        ),
    ];
    found.into_iter().flatten().collect()
}

fn mean(points: &[RequestPoint], of: fn(&RequestPoint) -> Option<u64>) -> Option<f64> {
    let values = || points.iter().filter_map(of);
    let count = values().count();
    (count > 0).then(|| values().map(|value| value as f64).sum::<f64>() / count as f64)
}

fn cached_share(points: &[RequestPoint]) -> Option<f64> {
    let both = || points.iter().filter_map(|point| point.cached().zip(point.isl()));
    let all: u64 = both().map(|(_, isl)| isl).sum();
    (all > 0).then(|| both().map(|(cached, _)| cached).sum::<u64>() as f64 / all as f64)
}

fn server_mean(run: &ComparedRun, metric: ServerMetric) -> Option<f64> {
    let points = run.source.servers.iter().flat_map(|server| &server.points);
    let levels: Vec<f64> = points.filter_map(|point| point.levels.get(&metric).copied()).collect();
    (!levels.is_empty()).then(|| levels.iter().sum::<f64>() / levels.len() as f64)
}

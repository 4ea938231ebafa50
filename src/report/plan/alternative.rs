//! Cost of other plans, and the requests that miss the SLO with each. Pure.
//!
//! A plan by raw throughput takes the highest throughput of the sweep as the capacity of a replica, whatever the SLO.

use schemars::JsonSchema;
use serde::Serialize;

use super::fleet::{Fleet, missed_requests};
use super::measured_level::MeasuredLevel;
use super::replicas::{ReplicaTimeline, Reserves};
use super::reserve_effect::PlannedLoad;

/// The capacity of a replica that a plan assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlanBasis {
    /// Highest rate under the SLO.
    Slo,
    /// Highest throughput.
    Throughput,
}

/// One plan. Every replica serves, and each is ordered in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AlternativePlan {
    /// Basis of the capacity.
    pub by: PlanBasis,
    /// True if it has the reserves of the plan; otherwise none.
    pub has_reserves: bool,
    /// Its replicas.
    #[serde(flatten)]
    pub fleet: Fleet,
    /// Requests of the traffic that miss the SLO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed_requests: Option<f64>,
    /// Their share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
}

/// The highest throughput of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RawThroughput {
    /// Name of its level.
    pub level: String,
    /// Complete responses per second.
    pub requests_per_second: f64,
}

impl RawThroughput {
    /// `None` if no level answered any request.
    pub fn of(levels: &[MeasuredLevel]) -> Option<Self> {
        let measured = levels.iter().filter(|level| level.throughput > 0.0);
        let level = measured.max_by(|a, b| a.throughput.total_cmp(&b.throughput))?;
        Some(Self { level: level.name.clone(), requests_per_second: level.throughput })
    }
}

impl PlannedLoad<'_> {
    /// The plan itself first, then those without its reserves and by raw throughput.
    pub(super) fn alternatives(&self, reserves: &Reserves, raw: Option<&RawThroughput>) -> Vec<AlternativePlan> {
        let none = Reserves { headroom: 0.0, failed: 0, start_up_s: 0.0 };
        let plan = |by, capacity, has_reserves| {
            let reserves = if has_reserves { reserves } else { &none };
            let timeline = ReplicaTimeline::with_foresight(self.arrivals, capacity, reserves);
            let missed = self.curve.map(|curve| missed_requests(self.arrivals, &timeline.serving, curve, 0, 1.0));
            AlternativePlan {
                by,
                has_reserves,
                fleet: Fleet::of(&timeline, self.arrivals, self.cost),
                missed_requests: missed,
                miss_share: missed.map(|missed| missed / self.arrivals.requests()),
            }
        };
        let by_throughput = raw.into_iter().flat_map(|raw| {
            [true, false].map(|has_reserves| plan(PlanBasis::Throughput, raw.requests_per_second, has_reserves))
        });
        [true, false]
            .map(|has_reserves| plan(PlanBasis::Slo, self.capacity, has_reserves))
            .into_iter()
            .chain(by_throughput)
            .collect()
    }
}

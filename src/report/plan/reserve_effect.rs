//! Cost and purpose of each reserve of a plan. Pure.
//!
//! Each reserve is tried in the event that it is for, with it and without it; the other reserves stay. The replicas that
//! may fail are down in every event, so that no reserve stands in for another.
//!
//! | reserve | event |
//! |---|---|
//! | headroom h | 1 ÷ (1 − h) times the requests arrive |
//! | failed replicas | as many replicas are down all the time |
//! | order ahead of the start-up time | a replica serves a start-up time after its order |

use schemars::JsonSchema;
use serde::Serialize;

use super::arrivals::Arrivals;
use super::fleet::{Fleet, ReplicaCost, missed_requests};
use super::miss_curve::MissCurve;
use super::replicas::{ReplicaTimeline, Reserves};

/// A reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reserve {
    /// Free share of each replica.
    Headroom,
    /// Replicas that may fail.
    FailedReplicas,
    /// Orders ahead of the start-up time.
    StartUp,
}

impl Reserve {
    /// Name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Headroom => "headroom",
            Self::FailedReplicas => "spare replicas",
            Self::StartUp => "orders ahead",
        }
    }
}

/// Fleet and misses of one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ReserveSide {
    /// Replicas.
    #[serde(flatten)]
    pub fleet: Fleet,
    /// Share of requests that miss the SLO in the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
}

/// A reserve, with it and without it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ReserveEffect {
    /// The reserve.
    pub reserve: Reserve,
    /// Its event.
    pub event: String,
    /// With the reserve.
    pub with: ReserveSide,
    /// Without it.
    pub without: ReserveSide,
}

/// Inputs of the effects and alternatives.
pub(super) struct PlannedLoad<'a> {
    pub(super) arrivals: &'a Arrivals,
    pub(super) capacity: f64,
    pub(super) curve: Option<&'a MissCurve>,
    pub(super) cost: &'a ReplicaCost,
}

impl PlannedLoad<'_> {
    fn side(&self, timeline: &ReplicaTimeline, down: u32, growth: f64) -> ReserveSide {
        let requests = self.arrivals.requests() * growth;
        let missed = |curve| missed_requests(self.arrivals, &timeline.serving, curve, down, growth) / requests;
        ReserveSide { fleet: Fleet::of(timeline, self.arrivals, self.cost), miss_share: self.curve.map(missed) }
    }

    /// The effect of every reserve that the plan has.
    pub(super) fn effects(&self, reserves: &Reserves) -> Vec<ReserveEffect> {
        let down = reserves.failed;
        let replicas = if down == 1 { "replica is" } else { "replicas are" };
        let also = if down > 0 { format!(", and {down} {replicas} down") } else { String::new() };
        let timeline = |reserves: &Reserves| ReplicaTimeline::with_foresight(self.arrivals, self.capacity, reserves);
        let with = timeline(reserves);
        let mut effects = Vec::new();
        if reserves.headroom > 0.0 {
            let growth = 1.0 / (1.0 - reserves.headroom);
            effects.push(ReserveEffect {
                reserve: Reserve::Headroom,
                event: format!("{:.0} % more requests arrive{also}", (growth - 1.0) * 100.0),
                with: self.side(&with, down, growth),
                without: self.side(&timeline(&Reserves { headroom: 0.0, ..*reserves }), down, growth),
            });
        }
        if down > 0 {
            effects.push(ReserveEffect {
                reserve: Reserve::FailedReplicas,
                event: format!("{down} {replicas} down all the time"),
                with: self.side(&with, down, 1.0),
                without: self.side(&timeline(&Reserves { failed: 0, ..*reserves }), down, 1.0),
            });
        }
        // A constant rate needs no order.
        if reserves.start_up_s > 0.0 && self.arrivals.windows.len() > 1 {
            let late = ReplicaTimeline::without_foresight(self.arrivals, self.capacity, reserves);
            effects.push(ReserveEffect {
                reserve: Reserve::StartUp,
                event: format!("a replica serves {} after its order{also}", reserves.start_up()),
                with: self.side(&with, down, 1.0),
                without: self.side(&late, down, 1.0),
            });
        }
        effects
    }
}

//! A plan by simulation: the replicas that keep the SLO in every window of a traffic, by a twin. Pure; the caller runs
//! the simulations.
//!
//! ```text
//! twin, traffic -> SimulatedWindows of each fleet size -> NeedSearch -> replicas of each window
//!                  SimulatedWindows of that timeline ───────────────────────────────┴> SimulatedPlan
//! ```
//!
//! # JSON
//! One object with the keys of [`crate::report::plan`] that do not need a sweep (`traffic`, `reserves`, `cost`, `fleet`,
//! `constant_fleet`, `good_tokens_per_day`, `dollars_per_million_good_tokens`, `assumptions`, `warnings`), and:
//!
//! | key | content |
//! |---|---|
//! | `simulated` | true |
//! | `twin` | `path`, `held_out`: the largest error of each figure, as sentence |
//! | `goals`, `slos` | what every window keeps |
//! | `peak_if_faster`, `peak_if_slower` | most replicas if the server differs from its twin by the held-out error |
//! | `mean_if_faster`, `mean_if_slower` | the same for the mean |
//! | `miss_share`, `miss_share_if_faster`, `miss_share_if_slower` | of requests, while `reserves.failed` replicas are down |
//! | `sizes[]` | simulated fleets of a constant size: `replicas`, `kept_windows`, `windows` |
//! | `over_time[]` | `from_s`, `seconds`, `requests`, `replicas` (paid), `serving`, `keeps_goals`, `extrapolates[]` |
//! | `extrapolations[]` | `quantity` (`batch`, `context`, `rate`), `largest`, `fitted`, `windows`, `from_s`, `to_s` (first and last such window) |

mod evidence;
pub mod goals;
pub mod need;
pub mod render;
mod tables;
pub mod windows;

use schemars::JsonSchema;
use serde::Serialize;

use super::arrivals::Arrivals;
use super::fleet::{Fleet, ReplicaCost};
use super::replicas::{ReplicaTimeline, Reserves};
use super::{PlanWindow, Traffic, TrafficSummary, VERSION};
use crate::report::warning::WarningText;
pub use evidence::{Extrapolation, FittedLimits, is_beyond};
use goals::{SimulatedGoals, TwinView};
use need::NeedSearch;
use windows::SimulatedWindows;

/// A twin, as the plan names it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlanTwin {
    /// Path.
    pub path: String,
    /// Router of its replicas, as typed.
    pub router: String,
    /// Its error on held-out rows, in a sentence.
    pub held_out: String,
    /// The most that its fit has seen.
    #[serde(skip)]
    pub fitted: Option<FittedLimits>,
    /// Most requests in flight per replica before others are turned away.
    #[serde(skip)]
    pub admission: u32,
}

/// Results of the simulations.
#[derive(Debug)]
pub struct SimulatedNeeds {
    /// Fleets of a constant size.
    pub search: NeedSearch,
    /// Replicas of each window that serve, without spare ones.
    pub needed: Vec<u64>,
    /// The traffic on that timeline.
    pub outcome: SimulatedWindows,
}

/// A complete plan, ready for every output format. The module documents its keys.
#[derive(Debug, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SimulatedPlan {
    streamgauge_plan: u32,
    pub simulated: bool,
    pub twin: PlanTwin,
    pub goals: String,
    pub slos: Vec<String>,
    pub traffic: TrafficSummary,
    pub reserves: Reserves,
    pub cost: ReplicaCost,
    pub fleet: Fleet,
    pub constant_fleet: Fleet,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_if_faster: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_if_slower: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_if_faster: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_if_slower: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share_if_faster: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share_if_slower: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good_tokens_per_day: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_million_good_tokens: Option<f64>,
    pub sizes: Vec<SimulatedSize>,
    pub over_time: Vec<SimulatedPlanWindow>,
    pub extrapolations: Vec<Extrapolation>,
    pub assumptions: Vec<String>,
    pub warnings: Vec<WarningText>,
}

/// A simulated fleet of a constant size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SimulatedSize {
    pub replicas: u32,
    pub kept_windows: usize,
    pub windows: usize,
}

/// One window of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct SimulatedPlanWindow {
    #[serde(flatten)]
    pub window: PlanWindow,
    pub keeps_goals: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extrapolates: Vec<&'static str>,
}

/// Factor on the traffic that the needs are simulated with, so that a share of each replica stays free.
pub fn headroom_factor(reserves: &Reserves) -> f64 {
    1.0 / (1.0 - reserves.headroom)
}

impl SimulatedPlan {
    /// Plans from what the simulations found.
    pub fn of(
        twin: PlanTwin,
        goals: &SimulatedGoals,
        traffic: &Traffic,
        needs: &SimulatedNeeds,
        (reserves, cost): (Reserves, ReplicaCost),
    ) -> Self {
        let (arrivals, SimulatedNeeds { search, needed, outcome }) = (&traffic.arrivals, needs);
        let timeline = |needed: &[u64]| {
            let serving = needed.iter().map(|need| need.saturating_add(reserves.failed.into())).collect();
            ReplicaTimeline::serving_in_time(serving, arrivals, &reserves)
        };
        let of_plan = timeline(needed);
        let fleet = Fleet::of(&of_plan, arrivals, &cost);
        // Where no fleet keeps the goals, there is no number of replicas to state.
        let end = |view| {
            let attainable =
                |window| search.is_attainable(window, view) || !search.is_attainable(window, TwinView::Expected);
            let is_known = goals.has_errors && (0..needed.len()).all(attainable);
            is_known.then(|| timeline(&search.needs(view)))
        };
        let (faster, slower) = (end(TwinView::Faster), end(TwinView::Slower));
        let per_day = arrivals.requests_per_day() / arrivals.requests();
        let has_slos = !goals.slos.is_empty();
        let good_tokens = has_slos.then_some(outcome.good_tokens as f64 * per_day);
        let over_time = windows(arrivals, &of_plan, outcome, goals);
        let mut plan = Self {
            streamgauge_plan: VERSION,
            simulated: true,
            goals: goals.text.clone(),
            slos: goals.slos.iter().map(ToString::to_string).collect(),
            traffic: TrafficSummary::of(traffic),
            fleet,
            constant_fleet: Fleet::constant(of_plan.peak(), &cost),
            peak_if_faster: faster.as_ref().map(ReplicaTimeline::peak),
            peak_if_slower: slower.as_ref().map(ReplicaTimeline::peak),
            mean_if_faster: faster.as_ref().map(|of| of.mean(arrivals)),
            mean_if_slower: slower.as_ref().map(|of| of.mean(arrivals)),
            miss_share: outcome.miss_share(TwinView::Expected),
            miss_share_if_faster: outcome.miss_share(TwinView::Faster).filter(|_| goals.has_errors),
            miss_share_if_slower: outcome.miss_share(TwinView::Slower).filter(|_| goals.has_errors),
            good_tokens_per_day: good_tokens,
            dollars_per_million_good_tokens: good_tokens.and_then(|tokens| fleet.dollars_per_million(tokens)),
            sizes: search
                .sizes()
                .map(|(replicas, kept_windows, windows)| SimulatedSize { replicas, kept_windows, windows })
                .collect(),
            over_time,
            extrapolations: Vec::new(),
            assumptions: Vec::new(),
            warnings: Vec::new(),
            reserves,
            cost,
            twin,
        };
        if let Some(fitted) = plan.twin.fitted {
            plan.extrapolations = fitted.mark(&mut plan.over_time, needed, outcome);
        }
        plan.assumptions = plan.assumptions();
        plan.warnings = plan.warnings(goals, search);
        plan
    }

    /// Renders the plan as one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn windows(
    arrivals: &Arrivals,
    timeline: &ReplicaTimeline,
    outcome: &SimulatedWindows,
    goals: &SimulatedGoals,
) -> Vec<SimulatedPlanWindow> {
    let shortfalls = outcome.shortfalls(goals);
    let keeps = shortfalls.iter().map(|of| of[TwinView::Expected.index()] <= 0.0);
    let windows = super::windows(arrivals, timeline).into_iter().zip(keeps);
    windows.map(|(window, keeps_goals)| SimulatedPlanWindow { window, keeps_goals, extrapolates: Vec::new() }).collect()
}

//! Capacity plan: the replicas that a traffic needs, from the capacity of one replica that a sweep measured. A pure
//! fold, except that [`measured_sweep`] reads a sweep's folder.
//!
//! ```text
//! sweep.json, runs -> measured_sweep -> measured_level -> replica_capacity ─┐
//! capture, trace, RATE -> arrivals, load_mix ───────────────────────────────┴> replicas -> fleet -> CapacityPlan
//! ```
//!
//! The highest throughput of a replica is more than the rate that it holds under the SLO ([`replica_capacity`]). So a
//! plan by throughput is too small; [`alternative`] shows by how much. [`reserve_effect`] shows what each reserve costs
//! and what it prevents.
//!
//! # JSON
//! One object. `streamgauge_plan` is the schema version. An absent key means unknown, never zero.
//!
//! | key | content |
//! |---|---|
//! | `context` | of the sweep, as in its report |
//! | `measured` | `path`, `goals`, `slos`, `levels[]`: `name`, `rate`, `throughput`, `requests`, `verdict` (`held`, `held_unsure`, `missed_unsure`, `missed`, `saturated`), `miss_share`, `output_tokens_per_second`, `good_tokens_per_request`, `watts`; `left_out[]`, levels that show nothing: `name`, `reason`; `mix` at the level of the capacity: `input_tokens`, `output_tokens` (means), `later_turn_share`, `cached_share` |
//! | `capacity` | of one replica, in requests/s: `rate`, `low`, `high`, `at_least` |
//! | `traffic` | `source`, `is_constant`, `requests`, `seconds`, `window_s`, `mean_rate`, `peak_rate`, `requests_per_day`, `sample` (share of sessions that the capture kept; the arrivals are of all), `mix` |
//! | `reserves` | `headroom` (share), `failed`, `start_up_s` |
//! | `cost` | `gpus` of a replica, `dollars_per_gpu_hour` |
//! | `fleet` | replicas that follow the arrivals: `peak_replicas`, `mean_replicas`, `peak_gpus`, `gpu_hours_per_day`, `dollars_per_day` |
//! | `constant_fleet` | the peak all day, with the keys of `fleet` |
//! | `peak_at_low`, `peak_at_high` | most replicas if the capacity is the lower or the upper end of its interval |
//! | `miss_share` | of requests, while `reserves.failed` replicas are down |
//! | `good_tokens_per_day` | output tokens that met the SLO |
//! | `dollars_per_million_good_tokens` | of `fleet` |
//! | `power` | `watts_per_replica`, `mean_watts` of `fleet`, `tokens_per_joule` |
//! | `raw_throughput` | highest throughput of the sweep: `level`, `requests_per_second` |
//! | `alternatives[]` | this plan and others: `by` (`slo`, `throughput`), `has_reserves`, the keys of `fleet`, `missed_requests`, `miss_share` |
//! | `effects[]` | `reserve` (`headroom`, `failed_replicas`, `start_up`), `event`, `with` and `without`: the keys of `fleet`, `miss_share` |
//! | `over_time[]` | `from_s`, `seconds`, `requests`, `replicas` (paid), `serving` |
//! | `differences[]` | of the traffic from the sweep: `property` (`isl`, `osl`, `later_turns`, `cached_tokens`), `measured`, `traffic`, `ks_distance`, `ks_p_value` |
//! | `assumptions[]` | sentences |
//! | `warnings[]` | `warning`, `text`, `advice` |

pub mod alternative;
pub mod arrivals;
mod assumptions;
pub mod fleet;
pub mod html;
pub mod load_mix;
pub mod markdown;
pub mod measured_level;
pub mod measured_sweep;
pub mod miss_curve;
pub mod objective;
pub mod replica_capacity;
pub mod replicas;
mod resample;
pub mod reserve_effect;
pub mod simulated;
mod tables;
pub mod text;
mod warnings;

use schemars::JsonSchema;
use serde::Serialize;

use super::context::ReportContext;
use super::warning::WarningText;
use alternative::{AlternativePlan, RawThroughput};
use arrivals::Arrivals;
use fleet::{Fleet, ReplicaCost, good_tokens_per_day, missed_requests};
use load_mix::{LoadMix, MixDifference, MixSummary};
use measured_level::{LevelWithoutResult, MeasuredLevel};
use measured_sweep::MeasuredSweep;
use miss_curve::MissCurve;
use replica_capacity::{NoCapacity, ReplicaCapacity};
use replicas::{ReplicaTimeline, Reserves};
use reserve_effect::{PlannedLoad, ReserveEffect};

/// Schema version of the JSON object.
const VERSION: u32 = 1;

/// Traffic that the replicas serve.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Path, or the rate as text.
    pub source: String,
    /// Arrival rate over time.
    pub arrivals: Arrivals,
    /// Mix of the requests; `None` for a plain rate.
    pub mix: Option<LoadMix>,
    /// Share of the sessions that the capture kept, above 0 and below 1: the arrivals are those of all sessions.
    pub sample: Option<f64>,
    /// True if a twin's run is the traffic.
    pub simulated: bool,
}

impl Traffic {
    /// Times that the requests of the source stand for.
    pub fn times(&self) -> f64 {
        self.sample.map_or(1.0, |share| 1.0 / share)
    }
}

/// A complete plan, ready for every output format. The module documents its keys.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CapacityPlan {
    streamgauge_plan: u32,
    /// The load, the server and the machines of the sweep.
    pub context: ReportContext,
    /// The sweep.
    pub measured: PlanMeasurement,
    /// Capacity of one replica.
    pub capacity: ReplicaCapacity,
    /// Traffic in sums.
    pub traffic: TrafficSummary,
    /// Reserves.
    pub reserves: Reserves,
    /// Resources of a replica.
    pub cost: ReplicaCost,
    /// Replicas that follow the arrivals.
    pub fleet: Fleet,
    /// The peak all day.
    pub constant_fleet: Fleet,
    /// Most replicas at the lower end of the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_at_low: Option<u64>,
    /// Most replicas at the upper end of the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_at_high: Option<u64>,
    /// Share of requests that miss the SLO while the replicas that may fail are down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miss_share: Option<f64>,
    /// Output tokens of a day that meet the SLO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good_tokens_per_day: Option<f64>,
    /// Their price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_million_good_tokens: Option<f64>,
    /// Power, if it was scraped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PlanPower>,
    /// Highest throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_throughput: Option<RawThroughput>,
    /// This plan and others.
    pub alternatives: Vec<AlternativePlan>,
    /// Effect of each reserve.
    pub effects: Vec<ReserveEffect>,
    /// Replicas over time.
    pub over_time: Vec<PlanWindow>,
    /// Properties in which the traffic differs from the sweep.
    pub differences: Vec<MixDifference>,
    /// Sentences.
    pub assumptions: Vec<String>,
    /// Threats to the plan.
    pub warnings: Vec<WarningText>,
}

/// The sweep, as the plan read it.
#[derive(Debug, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct PlanMeasurement {
    pub path: String,
    pub goals: String,
    pub slos: Vec<String>,
    pub levels: Vec<MeasuredLevel>,
    pub left_out: Vec<LevelWithoutResult>,
    pub mix: MixSummary,
}

/// Traffic in sums.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct TrafficSummary {
    pub source: String,
    pub is_constant: bool,
    pub requests: f64,
    pub seconds: f64,
    pub window_s: f64,
    pub mean_rate: f64,
    pub peak_rate: f64,
    pub requests_per_day: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<MixSummary>,
}

/// Power of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct PlanPower {
    pub watts_per_replica: f64,
    pub mean_watts: f64,
    pub tokens_per_joule: f64,
}

/// One window of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the module's table has them")]
pub struct PlanWindow {
    pub from_s: f64,
    pub seconds: f64,
    pub requests: f64,
    pub replicas: u64,
    pub serving: u64,
}

impl TrafficSummary {
    fn of(traffic: &Traffic) -> Self {
        let arrivals = &traffic.arrivals;
        Self {
            source: traffic.source.clone(),
            is_constant: traffic.mix.is_none(),
            requests: arrivals.requests(),
            seconds: arrivals.seconds(),
            window_s: arrivals.window_s(),
            mean_rate: arrivals.mean_rate(),
            peak_rate: arrivals.peak_rate(),
            requests_per_day: arrivals.requests_per_day(),
            sample: traffic.sample,
            mix: traffic.mix.as_ref().map(LoadMix::summary),
        }
    }
}

impl CapacityPlan {
    /// Plans the replicas of a traffic.
    ///
    /// # Errors
    /// Returns [`NoCapacity`] if no level of the sweep holds the SLO.
    pub fn of(
        sweep: MeasuredSweep,
        traffic: &Traffic,
        reserves: Reserves,
        cost: ReplicaCost,
    ) -> Result<Self, NoCapacity> {
        let capacity = ReplicaCapacity::of(&sweep.levels)?;
        let cost = ReplicaCost { gpus: cost.gpus.or(sweep.gpus), ..cost };
        let (arrivals, levels) = (&traffic.arrivals, &sweep.levels);
        let (level, curve) = (&levels[capacity.level], MissCurve::of(levels));
        let timeline = ReplicaTimeline::with_foresight(arrivals, capacity.rate, &reserves);
        let fleet = Fleet::of(&timeline, arrivals, &cost);
        let peak = |capacity: f64| ReplicaTimeline::with_foresight(arrivals, capacity, &reserves).peak();
        let load = PlannedLoad { arrivals, capacity: capacity.rate, curve: curve.as_ref(), cost: &cost };
        let effects = load.effects(&reserves);
        let raw_throughput = RawThroughput::of(levels);
        let missed = |curve| missed_requests(arrivals, &timeline.serving, curve, reserves.failed, 1.0);
        let output_tokens = traffic.mix.as_ref().and_then(LoadMix::mean_output_tokens);
        let good_tokens = good_tokens_per_day(arrivals.requests_per_day(), output_tokens, level);
        let power = level.watts.filter(|watts| *watts > 0.0).map(|watts| PlanPower {
            watts_per_replica: watts,
            mean_watts: watts * fleet.mean_replicas,
            tokens_per_joule: level.output_tokens_per_second / watts,
        });
        let differences = traffic.mix.as_ref().map(|mix| load_mix::differences(&level.mix, mix)).unwrap_or_default();
        let mut plan = Self {
            streamgauge_plan: VERSION,
            context: sweep.context.clone(),
            traffic: TrafficSummary::of(traffic),
            fleet,
            constant_fleet: Fleet::constant(timeline.peak(), &cost),
            peak_at_low: capacity.low.map(peak),
            peak_at_high: capacity.high.map(peak),
            miss_share: curve.as_ref().map(|curve| missed(curve) / arrivals.requests()),
            good_tokens_per_day: good_tokens,
            dollars_per_million_good_tokens: good_tokens.and_then(|tokens| fleet.dollars_per_million(tokens)),
            power,
            alternatives: load.alternatives(&reserves, raw_throughput.as_ref()),
            raw_throughput,
            effects,
            over_time: windows(arrivals, &timeline),
            differences,
            assumptions: Vec::new(),
            warnings: Vec::new(),
            reserves,
            cost,
            capacity,
            measured: PlanMeasurement {
                path: sweep.path.clone(),
                goals: sweep.goals.clone(),
                slos: sweep.slos.clone(),
                levels: sweep.levels.clone(),
                left_out: sweep.left_out.clone(),
                mix: level.mix.summary(),
            },
        };
        plan.assumptions = assumptions::assumptions(&plan, traffic);
        plan.warnings = warnings::warnings(&plan, &sweep, traffic);
        Ok(plan)
    }

    /// Renders the plan as one JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

fn windows(arrivals: &Arrivals, timeline: &ReplicaTimeline) -> Vec<PlanWindow> {
    let replicas = timeline.paid.iter().zip(&timeline.serving);
    let window = |from_s: &mut f64, (window, (paid, serving)): (&arrivals::ArrivalWindow, (&u64, &u64))| {
        let of = PlanWindow {
            from_s: *from_s,
            seconds: window.seconds,
            requests: window.requests,
            replicas: *paid,
            serving: *serving,
        };
        *from_s += window.seconds;
        Some(of)
    };
    arrivals.windows.iter().zip(replicas).scan(0.0, window).collect()
}

//! Totals of replicas over time: GPUs, GPU-hours, money, power, and the requests that miss the SLO. Pure.

use schemars::JsonSchema;
use serde::Serialize;

use super::arrivals::Arrivals;
use super::measured_level::MeasuredLevel;
use super::miss_curve::MissCurve;
use super::replicas::ReplicaTimeline;

/// Hours of a day.
const HOURS_PER_DAY: f64 = 24.0;

/// Resources of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ReplicaCost {
    /// GPUs of a replica; `None` if no flag or file states them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Price of a GPU-hour in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_gpu_hour: Option<f64>,
}

/// Replicas over time, in sums.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Fleet {
    /// Most replicas at once.
    pub peak_replicas: u64,
    /// Mean over time.
    pub mean_replicas: f64,
    /// GPUs of the most replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_gpus: Option<u64>,
    /// GPU-hours of a day, if the replicas follow the arrivals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours_per_day: Option<f64>,
    /// Dollars of a day, if the replicas follow the arrivals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_day: Option<f64>,
}

impl Fleet {
    /// Sums up a timeline.
    pub fn of(timeline: &ReplicaTimeline, arrivals: &Arrivals, cost: &ReplicaCost) -> Self {
        Self::of_replicas(timeline.peak(), timeline.mean(arrivals), cost)
    }

    /// Sums up replicas whose number never changes.
    pub fn constant(replicas: u64, cost: &ReplicaCost) -> Self {
        Self::of_replicas(replicas, replicas as f64, cost)
    }

    fn of_replicas(peak_replicas: u64, mean_replicas: f64, cost: &ReplicaCost) -> Self {
        let gpu_hours_per_day = cost.gpus.map(|gpus| mean_replicas * f64::from(gpus) * HOURS_PER_DAY);
        let dollars = |(hours, price): (f64, f64)| hours * price;
        Self {
            peak_replicas,
            mean_replicas,
            peak_gpus: cost.gpus.map(|gpus| peak_replicas.saturating_mul(gpus.into())),
            gpu_hours_per_day,
            dollars_per_day: gpu_hours_per_day.zip(cost.dollars_per_gpu_hour).map(dollars),
        }
    }

    /// Dollars per million output tokens that met the SLO.
    pub fn dollars_per_million(&self, good_tokens_per_day: f64) -> Option<f64> {
        self.dollars_per_day.filter(|_| good_tokens_per_day > 0.0).map(|dollars| dollars / good_tokens_per_day * 1e6)
    }
}

/// Output tokens of a day that meet the SLO. A request has the output tokens of the traffic, if it states them, and the
/// share that met the SLO at the level of the capacity.
pub fn good_tokens_per_day(
    requests_per_day: f64,
    traffic_output_tokens: Option<f64>,
    level: &MeasuredLevel,
) -> Option<f64> {
    let good = level.good_tokens_per_request?;
    let ours = level.mix.mean_output_tokens().filter(|mean| *mean > 0.0);
    let scale = traffic_output_tokens.zip(ours).map_or(1.0, |(theirs, ours)| theirs / ours);
    Some(requests_per_day * good * scale)
}

/// Requests that miss the SLO while `down` replicas fail all the time and `growth` times the requests arrive. The
/// replicas that serve share them evenly.
pub fn missed_requests(arrivals: &Arrivals, serving: &[u64], curve: &MissCurve, down: u32, growth: f64) -> f64 {
    let missed = arrivals.windows.iter().zip(serving).map(|(window, serving)| {
        let (rate, requests) = (window.rate() * growth, window.requests * growth);
        match serving.saturating_sub(down.into()) {
            _ if requests == 0.0 => 0.0,
            0 => requests,
            serving => requests * curve.share(rate / serving as f64),
        }
    });
    missed.sum()
}

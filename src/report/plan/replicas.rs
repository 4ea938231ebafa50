//! Replicas over time. Pure.
//!
//! # Formulas
//! A window of rate λ needs ⌈λ ÷ (C · (1 − headroom))⌉ replicas, at least one, where C is the capacity of a replica. As
//! many more are added as may fail at once. A replica serves a start-up time after it is ordered, and costs from the
//! order on. So with foresight, the paid replicas of a window are the most that it or any window within the start-up
//! time needs. Without foresight, a replica is ordered when its window begins. So the replicas that serve are the
//! fewest that the window or any within the start-up time before it needs.

use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::arrivals::Arrivals;

/// Capacity of a plan beyond the mean need.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Reserves {
    /// Share of a replica's capacity that the plan leaves free, 0 up to 1.
    pub headroom: f64,
    /// Replicas that may fail at once.
    pub failed: u32,
    /// Time from the order of a replica until it serves, in seconds.
    pub start_up_s: f64,
}

impl Reserves {
    /// Start-up time for people.
    pub fn start_up(&self) -> String {
        humantime::format_duration(Duration::from_secs_f64(self.start_up_s)).to_string()
    }
}

/// Replicas of each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTimeline {
    /// Replicas that cost: those that serve and those that start.
    pub paid: Vec<u64>,
    /// Replicas that serve.
    pub serving: Vec<u64>,
}

/// Replicas that a rate needs if each carries up to `usable` requests per second.
pub fn replicas_for(rate: f64, usable: f64) -> u64 {
    // A quotient such as 0.3 ÷ 0.1 may be a rounding error above a whole number.
    ((rate / usable - 1e-9).ceil() as u64).max(1)
}

impl ReplicaTimeline {
    /// Orders each replica a start-up time before it is needed.
    pub fn with_foresight(arrivals: &Arrivals, capacity: f64, reserves: &Reserves) -> Self {
        Self::serving_in_time(needed(arrivals, capacity, reserves), arrivals, reserves)
    }

    /// Orders each replica a start-up time before the window in which it serves.
    pub fn serving_in_time(serving: Vec<u64>, arrivals: &Arrivals, reserves: &Reserves) -> Self {
        let lag = lag_windows(arrivals, reserves);
        let most = |at: usize| range(&serving, at..=at.saturating_add(lag)).max().unwrap_or(0);
        Self { paid: (0..serving.len()).map(most).collect(), serving }
    }

    /// Orders each replica when it is needed.
    pub fn without_foresight(arrivals: &Arrivals, capacity: f64, reserves: &Reserves) -> Self {
        let paid = needed(arrivals, capacity, reserves);
        let lag = lag_windows(arrivals, reserves);
        let fewest = |at: usize| range(&paid, at.saturating_sub(lag)..=at).min().unwrap_or(0);
        Self { serving: (0..paid.len()).map(fewest).collect(), paid }
    }

    /// Most replicas that are paid at once.
    pub fn peak(&self) -> u64 {
        self.paid.iter().copied().max().unwrap_or(0)
    }

    /// Mean of the paid replicas over time.
    pub fn mean(&self, arrivals: &Arrivals) -> f64 {
        let replica_seconds = self.paid.iter().zip(&arrivals.windows).map(|(paid, of)| *paid as f64 * of.seconds);
        replica_seconds.sum::<f64>() / arrivals.seconds()
    }
}

fn needed(arrivals: &Arrivals, capacity: f64, reserves: &Reserves) -> Vec<u64> {
    let usable = capacity * (1.0 - reserves.headroom);
    arrivals
        .windows
        .iter()
        .map(|window| replicas_for(window.rate(), usable).saturating_add(reserves.failed.into()))
        .collect()
}

fn lag_windows(arrivals: &Arrivals, reserves: &Reserves) -> usize {
    (reserves.start_up_s / arrivals.window_s()).ceil() as usize
}

fn range(replicas: &[u64], places: RangeInclusive<usize>) -> impl Iterator<Item = u64> {
    let end = places.end().saturating_add(1).min(replicas.len());
    replicas[*places.start()..end].iter().copied()
}

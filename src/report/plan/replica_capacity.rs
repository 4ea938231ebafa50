//! The highest rate that one replica holds under the SLO. Pure.
//!
//! It is the rate of the highest level that holds the goals, below the first level that misses them. The interval runs
//! from the highest level that holds them surely to the lowest that surely misses them: *surely* is the 95 % interval of
//! [`crate::measure::slo::criteria`]. A saturated level surely misses, from its throughput on. Levels without a valid run
//! are not in the list.

use schemars::JsonSchema;
use serde::Serialize;

use super::measured_level::MeasuredLevel;
use crate::report::sweep::level_verdict::LevelVerdict;

/// Capacity of one replica, in requests per second.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ReplicaCapacity {
    /// Highest rate that holds the SLO.
    pub rate: f64,
    /// Highest rate that holds it surely; absent if every level has too few requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Lowest rate that surely misses it; absent if no level does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// True if no measured level missed the SLO, so that the capacity is at least `rate`.
    pub at_least: bool,
    /// Place of the level in the list.
    #[serde(skip)]
    pub level: usize,
}

/// No level holds the SLO.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoCapacity {
    /// The lowest level missed it.
    #[error("no level of the sweep holds the SLO: its lowest, {name} at {rate:.2} requests/s, misses it{}; remedy: \
             measure lower rates with `streamgauge sweep --rates`, or give another --slo", share(*miss_share))]
    LowestMissed {
        /// Name of the level.
        name: String,
        /// Its rate.
        rate: f64,
        /// Share of its requests that missed the SLO.
        miss_share: Option<f64>,
    },
    /// No level shows anything about the server.
    #[error(
        "no level of the sweep has a valid run; remedy: run the sweep again from a machine that can send its rates"
    )]
    NothingMeasured,
}

fn share(miss_share: Option<f64>) -> String {
    miss_share.map_or_else(String::new, |share| format!(" with {:.1} % of its requests", share * 100.0))
}

impl ReplicaCapacity {
    /// Finds the capacity in levels that ascend by rate.
    ///
    /// # Errors
    /// Returns [`NoCapacity`] if no level holds the SLO below the first that misses it.
    pub fn of(levels: &[MeasuredLevel]) -> Result<Self, NoCapacity> {
        let Some(lowest) = levels.first() else { return Err(NoCapacity::NothingMeasured) };
        let measured = || levels.iter().enumerate();
        let held = || measured().take_while(|(_, level)| level.verdict.holds());
        let Some((at, level)) = held().last() else {
            let (name, rate) = (lowest.name.clone(), lowest.rate);
            return Err(NoCapacity::LowestMissed { name, rate, miss_share: lowest.miss_share });
        };
        let surely = |verdict| move |(_, level): &(usize, &MeasuredLevel)| level.verdict == verdict;
        let missed = |(_, level): &(usize, &MeasuredLevel)| {
            matches!(level.verdict, LevelVerdict::Missed | LevelVerdict::Saturated)
        };
        Ok(Self {
            rate: level.rate,
            low: held().filter(surely(LevelVerdict::Held)).last().map(|(_, level)| level.rate),
            high: measured().skip(at + 1).find(missed).map(|(_, above)| match above.verdict_rate() {
                rate if rate > level.rate => rate,
                _ => above.rate,
            }),
            at_least: measured().all(|(_, level)| level.verdict.holds()),
            level: at,
        })
    }
}

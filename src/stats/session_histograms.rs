//! Distributions over sessions. Pure.

use schemars::JsonSchema;
use serde::Serialize;

use super::length_histogram::{DurationSummary, LengthHistogram};

/// Turns of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnSummary {
    /// Mean.
    pub mean: f64,
    /// 50th percentile.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Maximum.
    pub max: u64,
}

/// Distributions over sessions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SessionDistributions {
    /// Turns.
    pub turns: TurnSummary,
    /// Model time.
    pub model: DurationSummary,
    /// Tool time.
    pub tool: DurationSummary,
    /// Time to last turn.
    pub time_to_last_turn: DurationSummary,
}

/// Counts sessions by their turns and times.
#[derive(Clone, Debug)]
pub struct SessionHistograms {
    turns: LengthHistogram,
    times: [LengthHistogram; 3],
}

impl Default for SessionHistograms {
    fn default() -> Self {
        Self { turns: LengthHistogram::default(), times: [(); 3].map(|()| LengthHistogram::of_times()) }
    }
}

impl SessionHistograms {
    /// Counts a session: its turns, and its model time, tool time and time to last turn in nanoseconds.
    pub fn take(&mut self, turns: u64, times: [u64; 3]) {
        self.turns.take(turns);
        self.times.iter_mut().zip(times).for_each(|(histogram, time)| histogram.take(time));
    }

    /// The distributions; `None` without sessions.
    pub fn summary(&self) -> Option<SessionDistributions> {
        let turns = self.turns.distribution()?;
        let [model, tool, time_to_last_turn] = &self.times;
        Some(SessionDistributions {
            turns: TurnSummary { mean: turns.mean, p50: turns.p50, p90: turns.p90, max: turns.max },
            model: model.times()?,
            tool: tool.times()?,
            time_to_last_turn: time_to_last_turn.times()?,
        })
    }
}

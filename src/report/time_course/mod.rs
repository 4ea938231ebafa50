//! A run over time: whether its figures drift, where its warm-up ends, and from when to when it is steady. Pure.
//!
//! | question | method | threshold |
//! |---|---|---|
//! | where does a warm-up end | [`warm_up`](crate::stats::warm_up) on slices of equally many requests | p ≤ 0.001 |
//! | where does the steady state end | the same from the end of the run | p ≤ 0.001 |
//! | does a figure drift in the steady state | [`trend`](crate::stats::trend), adjusted for the number of figures | p ≤ 0.01, and 5 % over the run |
//! | does a latency follow the load | line through the slices: mean latency against requests per slice | |
//! | how long should a slice be | 30 requests for a mean, one mean E2E, and 10 slices in the run | |
//!
//! Slices here are the section's own, whatever `--slice` is: 20 to 120 of at least ten requests. With fewer than 200
//! requests there are none, and the section states that.

mod advice;
mod load_effect;
mod slices;
mod steady;
mod table;
mod trends;

use schemars::JsonSchema;
use serde::Serialize;

use super::metric::ReportMetric;
use super::request_point::RequestPoint;
use crate::measure::time::Gap;
pub use advice::SliceAdvice;
pub use load_effect::LoadEffect;
use slices::RequestSlices;
pub use steady::SteadyState;
pub use table::{lines, trend_table};
pub use trends::{FigureTrend, TrendVerdict};

/// A run over time. Times are seconds on the report's timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TimeCourse {
    /// Start of the figures' window: the first start.
    pub from_s: f64,
    /// End of the figures' window: the last end.
    pub to_s: f64,
    /// Slices of equally many requests; 0 if there are too few requests.
    pub slices: usize,
    /// Warm-up and steady state; absent with too few requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady_state: Option<SteadyState>,
    /// Drift of each figure in the steady state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trends: Vec<FigureTrend>,
    /// TTFT against the requests of a slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_effect: Option<LoadEffect>,
    /// Length of slices that the run supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_advice: Option<SliceAdvice>,
}

impl TimeCourse {
    /// Analyzes requests in the order of their starts. `slice` is the length of the report's slices.
    pub(super) fn of(points: &[RequestPoint], window: (f64, f64), slice: Option<Gap>) -> Self {
        let ttft = match points.iter().any(|point| point.lag > 0) {
            true => ReportMetric::TtftFromPlanned,
            false => ReportMetric::Ttft,
        };
        let slices = RequestSlices::of(points);
        let steady_state = SteadyState::of(&slices, ttft);
        let trends = steady_state.as_ref().map_or(Vec::new(), |steady| trends::of(&slices, steady, ttft));
        Self {
            from_s: window.0,
            to_s: window.1,
            slices: slices.len(),
            steady_state,
            trends,
            load_effect: LoadEffect::of(points, ttft),
            slice_advice: SliceAdvice::of(points, slice),
        }
    }

    /// Returns `true` if the figures include a warm-up: the first requests met another server than the later ones.
    pub fn has_warm_up(&self) -> bool {
        self.steady_state.as_ref().is_some_and(|steady| steady.warm_up_s.is_some())
    }
}

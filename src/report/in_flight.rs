//! Requests in flight over the time of a run.

use schemars::JsonSchema;
use serde::Serialize;

use super::saturation::LoadSample;
use crate::stats::time_slices::equal_part;

const LOAD_CURVE_POINTS: usize = 60;

/// Requests in flight at each send, including the new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct InFlightStats {
    /// Seconds from the first send to the last.
    pub seconds: f64,
    /// Mean over all requests.
    pub mean: f64,
    /// Maximum.
    pub max: u32,
    /// Mean in equal parts of the window. A part without requests repeats the previous value.
    pub over_time: Vec<f64>,
}

impl InFlightStats {
    /// Summarizes the load; `None` if no request recorded how many were in flight.
    pub(super) fn of(samples: &[LoadSample]) -> Option<Self> {
        let times = || samples.iter().map(|sent| sent.at.as_nanos());
        let open = || samples.iter().map(|sent| sent.others_in_flight.saturating_add(1));
        let (first, last, max) = (times().min()?, times().max()?, open().max()?);
        let mut parts = [(0_u64, 0_u64); LOAD_CURVE_POINTS];
        for (sent, open) in samples.iter().zip(open()) {
            let (sum, of) = &mut parts[equal_part(sent.at.as_nanos(), (first, last), LOAD_CURVE_POINTS)];
            (*sum, *of) = (*sum + u64::from(open), *of + 1);
        }
        let sum: u64 = parts.iter().map(|(sum, _)| sum).sum();
        let mut before = 0.0;
        let mean = |(sum, of): &(u64, u64)| {
            before = if *of > 0 { *sum as f64 / *of as f64 } else { before };
            before
        };
        Some(Self {
            seconds: (last - first) as f64 / 1e9,
            mean: sum as f64 / samples.len() as f64,
            max,
            over_time: parts.iter().map(mean).collect(),
        })
    }
}

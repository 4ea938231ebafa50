//! Where a run is steady: after its warm-up, and before a change at its end.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::metric::ReportMetric;
use super::slices::RequestSlices;
use crate::stats::warm_up::{WarmUp, warm_up};

/// The steady part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SteadyState {
    /// Start, in seconds; the first start of the run without a warm-up.
    pub from_s: f64,
    /// End, in seconds; the last start of the run without a change at the end.
    pub to_s: f64,
    /// `false` if a figure still changes at the middle of the run, so that no part of it is known to be steady.
    pub found: bool,
    /// End of the warm-up, in seconds, if the figures include one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up_s: Option<f64>,
    /// Requests that started in the warm-up.
    pub warm_up_requests: u64,
    /// The figure that shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up_metric: Option<&'static str>,
    /// Slices of the steady part.
    #[serde(skip)]
    pub(super) slices: (usize, usize),
}

impl SteadyState {
    /// Finds the steady state; `None` with too few requests.
    pub(super) fn of(slices: &RequestSlices<'_>, ttft: ReportMetric) -> Option<Self> {
        let mut found = true;
        let (mut from, mut to, mut shown_by) = (0, slices.len(), None);
        let mut known = false;
        for metric in [ttft, ReportMetric::Tpot] {
            let means = slices.means(metric);
            let values: Vec<f64> = means.iter().map(|(_, mean)| *mean).collect();
            let backwards: Vec<f64> = values.iter().rev().copied().collect();
            let slice = |place: usize| means.get(place).map_or(slices.len(), |(number, _)| *number);
            let Some(begins) = warm_up(&values) else { continue };
            known = true;
            match begins {
                WarmUp::Absent => {}
                WarmUp::Until(place) if slice(place) > from => (from, shown_by) = (slice(place), Some(metric.key())),
                WarmUp::Until(_) => {}
                WarmUp::Unfinished => found = false,
            }
            if let Some(WarmUp::Until(place)) = warm_up(&backwards) {
                to = to.min(slice(values.len() - place));
            }
        }
        // A change that both directions see leaves nothing in between.
        let found = found && from < to;
        known.then(|| Self {
            from_s: slices.start_s(from),
            to_s: slices.start_s(to),
            found,
            warm_up_s: (from > 0).then(|| slices.start_s(from)),
            warm_up_requests: slices.requests_before(from),
            warm_up_metric: shown_by,
            slices: (from, to),
        })
    }
}

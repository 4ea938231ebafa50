//! Status of a run, in which this process sends requests instead of forwarding them. In a run the admin endpoints serve
//! the run's data instead of the proxy's.

use schemars::JsonSchema;
use serde::Serialize;

use super::live_view::LatencyQuantiles;
use crate::export::registry::catalog::Id;
use crate::export::registry::snapshot::{PointValue, Snapshot};
use crate::measure::time::Gap;

/// Description of a run.
pub struct RunInfo {
    /// Name of the trace or load.
    pub name: String,
    /// Target URLs.
    pub targets: String,
    /// Number of planned requests, if known.
    pub planned: Option<u64>,
    /// Planned duration of sending, if known.
    pub duration: Option<Gap>,
    /// Returns the current status. Readers call it at any time, so it must not block.
    pub status: Box<dyn Fn() -> RunStatus + Send + Sync>,
}

/// Current status of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStatus {
    /// Time since the run's start.
    pub age: Gap,
    /// Requests sent.
    pub sent: u64,
    /// Requests sent that have not ended.
    pub in_flight: u32,
    /// Requests in flight that have a first token.
    pub streaming: u32,
    /// `true` if a reply identified its server as simulated.
    pub simulated: bool,
}

impl std::fmt::Debug for RunInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RunInfo {
    /// Returns the open requests: all, streams without a token, streams with a token.
    pub(in crate::export) fn open_counts(&self) -> [i64; 3] {
        let RunStatus { in_flight, streaming, .. } = (self.status)();
        // Other threads update these one after the other.
        let streaming = streaming.min(in_flight);
        [in_flight, in_flight - streaming, streaming].map(i64::from)
    }

    /// Adds the run's own gauges to a snapshot.
    pub(in crate::export) fn observe(&self, snapshot: &mut Snapshot, created: u64) {
        if let Some(planned) = self.planned.and_then(|planned| i64::try_from(planned).ok()) {
            snapshot.observe(Id::ReplayPlanned, [], created, PointValue::Gauge(planned));
        }
        snapshot.observe(Id::ReplaySent, [], created, PointValue::Count((self.status)().sent));
    }

    /// Builds the live page's data. `counted` contains the run's instruments.
    pub(in crate::export) fn view(&self, counted: &Snapshot) -> RunView<'_> {
        let RunStatus { age, sent, in_flight, .. } = (self.status)();
        let (mut ended, mut succeeded, mut lag_ms) = (0, 0, None);
        for point in counted.points(Id::ReplayRequests) {
            if let PointValue::Count(count) = point.data {
                ended += count;
                succeeded += if point.label("outcome") == Some(&"success".into()) { count } else { 0 };
            }
        }
        for point in counted.points(Id::ReplayLag) {
            if let PointValue::Histogram(histogram, _) = &point.data {
                lag_ms = LatencyQuantiles::of(histogram);
            }
        }
        RunView {
            name: &self.name,
            planned: self.planned,
            length_s: self.duration.map(Gap::as_secs),
            age_s: age.as_secs(),
            sent,
            in_flight,
            ended,
            failed: ended - succeeded,
            lag_ms,
        }
    }
}

/// Data of a run in `/api/state` and `/api/history`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::export) struct RunView<'a> {
    name: &'a str,
    planned: Option<u64>,
    length_s: Option<f64>,
    age_s: f64,
    sent: u64,
    in_flight: u32,
    ended: u64,
    failed: u64,
    lag_ms: Option<LatencyQuantiles>,
}

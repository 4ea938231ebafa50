//! A run: requests that this process sends, and does not forward. What is served of the proxy's is of the run then.

use serde::Serialize;

use super::catalog::Id;
use super::live_view::LatencyQuantiles;
use super::snapshot::{PointValue, Snapshot};
use crate::measure::time::Gap;

/// What it is.
pub struct RunInfo {
    /// What is sent.
    pub name: String,
    /// Where to.
    pub targets: String,
    /// Requests of the plan, where its end is known.
    pub planned: Option<u64>,
    /// How long it plans to send, where that is known.
    pub duration: Option<Gap>,
    /// Where it stands; asked for by whoever looks, and so never to wait.
    pub status: Box<dyn Fn() -> RunStatus + Send + Sync>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStatus {
    /// Since time zero.
    pub age: Gap,
    /// Requests that have been sent.
    pub sent: u64,
    /// Those of them that have no end yet.
    pub in_flight: u32,
    /// Those of these that have a first token.
    pub streaming: u32,
    /// Whether a reply has said that its server is simulated.
    pub simulated: bool,
}

impl std::fmt::Debug for RunInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RunInfo {
    /// Requests that are open: all, streams without a token, and streams that have one.
    pub(super) fn open_counts(&self) -> [i64; 3] {
        let RunStatus { in_flight, streaming, .. } = (self.status)();
        // They are counted one after the other, by other threads.
        let streaming = streaming.min(in_flight);
        [in_flight, in_flight - streaming, streaming].map(i64::from)
    }

    /// Adds the run's own levels to a snapshot.
    pub(super) fn observe(&self, snapshot: &mut Snapshot, created: u64) {
        if let Some(planned) = self.planned.and_then(|planned| i64::try_from(planned).ok()) {
            snapshot.observe(Id::ReplayPlanned, [], created, PointValue::Gauge(planned));
        }
        snapshot.observe(Id::ReplaySent, [], created, PointValue::Count((self.status)().sent));
    }

    /// What the page shows of it. `counted` has its own instruments.
    pub(super) fn view(&self, counted: &Snapshot) -> RunView<'_> {
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

/// A run, in `/api/state` and `/api/history`.
#[derive(Debug, Serialize)]
pub(super) struct RunView<'a> {
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

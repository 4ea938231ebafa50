//! A run: requests that this process sends, and does not forward. What is served of the proxy's is of the run then.

use serde::Serialize;

use super::catalog::Id;
use super::figures::Quantiles;
use super::snapshot::{Data, Snapshot};
use crate::measure::time::Gap;

/// What it is.
pub struct Running {
    /// What is sent.
    pub name: String,
    /// Where to.
    pub targets: String,
    /// Requests of the plan, where its end is known.
    pub planned: Option<u64>,
    /// How long it plans to send, where that is known.
    pub length: Option<Gap>,
    /// Where it stands; asked for by whoever looks, and so never to wait.
    pub levels: Box<dyn Fn() -> Levels + Send + Sync>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
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

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Running {
    /// Requests that are open: all, streams without a token, and streams that have one.
    pub(super) fn open(&self) -> [i64; 3] {
        let Levels { in_flight, streaming, .. } = (self.levels)();
        // They are counted one after the other, by other threads.
        let streaming = streaming.min(in_flight);
        [in_flight, in_flight - streaming, streaming].map(i64::from)
    }

    /// Adds the run's own levels to a snapshot.
    pub(super) fn observe(&self, snapshot: &mut Snapshot, created: u64) {
        if let Some(planned) = self.planned.and_then(|planned| i64::try_from(planned).ok()) {
            snapshot.observe(Id::ReplayPlanned, [], created, Data::Level(planned));
        }
        snapshot.observe(Id::ReplaySent, [], created, Data::Count((self.levels)().sent));
    }

    /// What the page shows of it. `counted` has its own instruments.
    pub(super) fn told(&self, counted: &Snapshot) -> Told<'_> {
        let Levels { age, sent, in_flight, .. } = (self.levels)();
        let (mut ended, mut succeeded, mut lag_ms) = (0, 0, None);
        for point in counted.points(Id::ReplayRequests) {
            if let Data::Count(count) = point.data {
                ended += count;
                succeeded += if point.label("outcome") == Some(&"success".into()) { count } else { 0 };
            }
        }
        for point in counted.points(Id::ReplayLag) {
            if let Data::Histogram(histogram, _) = &point.data {
                lag_ms = Quantiles::of(histogram);
            }
        }
        Told {
            name: &self.name,
            planned: self.planned,
            length_s: self.length.map(Gap::as_secs),
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
pub(super) struct Told<'a> {
    name: &'a str,
    planned: Option<u64>,
    length_s: Option<f64>,
    age_s: f64,
    sent: u64,
    in_flight: u32,
    ended: u64,
    failed: u64,
    lag_ms: Option<Quantiles>,
}

//! What is exported at one moment: plain data, the same for every exporter.

use std::sync::Arc;

use super::catalog::Id;
use super::interner::{Label, LabelValue};
use super::trace_context::{SpanId, TraceId};
use crate::clock::Clock;
use crate::measure::histogram::Histogram;
use crate::measure::time::Stamp;

/// One point in both times, so that what is told apart from it in one has a place in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimePoint {
    /// On the run's own line.
    pub stamp: Stamp,
    /// In nanoseconds since 1970.
    pub unix: u64,
}

impl TimePoint {
    /// Now.
    pub fn now(clock: &Clock) -> Self {
        let stamp = clock.now();
        Self { stamp, unix: clock.unix_nanos(stamp) }
    }

    /// The wall-clock time of a stamp, in nanoseconds since 1970.
    pub fn unix_of(&self, at: Stamp) -> u64 {
        self.unix.saturating_add(at.since(self.stamp).as_nanos()).saturating_sub(self.stamp.since(at).as_nanos())
    }
}

/// Every series of every instrument.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken, in nanoseconds since 1970.
    pub unix: u64,
    /// One entry per instrument that has series, in the order of the catalog.
    pub families: Vec<FamilySnapshot>,
}

/// The series of one instrument.
#[derive(Clone, Debug)]
pub struct FamilySnapshot {
    /// The instrument.
    pub id: Id,
    /// Its series.
    pub points: Vec<DataPoint>,
}

/// One series.
#[derive(Clone, Debug)]
pub struct DataPoint {
    /// Its attributes, in the order of the catalog.
    pub labels: Arc<[Label]>,
    /// Since when it counts, in nanoseconds since 1970. Never changes while the process lives.
    pub created: u64,
    /// Its value.
    pub data: PointValue,
}

/// A value.
#[derive(Clone, Debug)]
pub enum PointValue {
    /// A count.
    Count(u64),
    /// A level, which may fall below zero between two moves of ours.
    Gauge(i64),
    /// Seconds.
    Seconds(f64),
    /// A distribution, and at most one exemplar for each explicit bucket, with its bucket.
    Histogram(Histogram, Vec<(usize, BucketExemplar)>),
}

/// One value of a distribution, and the trace it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketExemplar {
    /// The value, in the instrument's unit.
    pub value: f64,
    /// When it was measured, in nanoseconds since 1970.
    pub unix: u64,
    /// The trace. Its spans are exported.
    pub trace_id: TraceId,
    /// The request's SERVER span.
    pub span_id: SpanId,
}

impl Snapshot {
    /// The series of an instrument; none if it has none.
    pub fn points(&self, id: Id) -> &[DataPoint] {
        self.families.iter().find(|family| family.id == id).map_or(&[], |family| &family.points)
    }

    /// Adds a series that is read, not counted. Values are in the order of the catalog's attributes.
    pub(super) fn observe<const N: usize>(&mut self, id: Id, values: [LabelValue; N], created: u64, data: PointValue) {
        let names = id.instrument().attributes.iter();
        let labels = names.zip(values).map(|(name, value)| Label { name, value }).collect();
        let at = self.families.partition_point(|family| (family.id as usize) < id as usize);
        if self.families.get(at).is_none_or(|family| family.id != id) {
            self.families.insert(at, FamilySnapshot { id, points: Vec::new() });
        }
        self.families[at].points.push(DataPoint { labels, created, data });
    }
}

impl DataPoint {
    /// The value of an attribute, if it has it.
    pub fn label(&self, name: &str) -> Option<&LabelValue> {
        self.labels.iter().find(|label| label.name == name).map(|label| &label.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_before_or_after_the_moment_has_its_place_on_the_wall() {
        let moment = TimePoint { stamp: Stamp::from_nanos(100), unix: 5_000 };
        assert_eq!(moment.unix_of(Stamp::from_nanos(40)), 4_940);
        assert_eq!(moment.unix_of(Stamp::from_nanos(100)), 5_000);
        assert_eq!(moment.unix_of(Stamp::from_nanos(130)), 5_030);
    }

    #[test]
    fn what_is_observed_stands_in_the_order_of_the_catalog() {
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        snapshot.observe(Id::ProcessCpu, [], 0, PointValue::Seconds(1.5));
        snapshot.observe(Id::ActiveStreams, ["waiting".into()], 0, PointValue::Gauge(2));
        snapshot.observe(Id::ActiveStreams, ["streaming".into()], 0, PointValue::Gauge(3));
        let order: Vec<_> = snapshot.families.iter().map(|family| (family.id, family.points.len())).collect();
        assert_eq!(order, [(Id::ActiveStreams, 2), (Id::ProcessCpu, 1)]);
        assert_eq!(snapshot.points(Id::ActiveStreams)[1].label("phase"), Some(&"streaming".into()));
    }
}

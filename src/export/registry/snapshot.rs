//! All exported data at one moment, as plain data shared by every exporter.

use std::sync::Arc;

use super::catalog::Id;
use super::interner::{Label, LabelValue};
use crate::clock::Clock;
use crate::export::trace_context::{SpanId, TraceId};
use crate::measure::histogram::Histogram;
use crate::measure::time::Stamp;

/// One moment on both clocks, for conversion of stamps to wall-clock time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimePoint {
    /// Time on the monotonic clock.
    pub stamp: Stamp,
    /// Wall-clock time in nanoseconds since 1970.
    pub unix: u64,
}

impl TimePoint {
    /// Reads both clocks.
    pub fn now(clock: &Clock) -> Self {
        let stamp = clock.now();
        Self { stamp, unix: clock.unix_nanos(stamp) }
    }

    /// Converts a stamp to nanoseconds since 1970.
    pub fn unix_of(&self, at: Stamp) -> u64 {
        self.unix.saturating_add(at.since(self.stamp).as_nanos()).saturating_sub(self.stamp.since(at).as_nanos())
    }
}

/// All series of all instruments.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Time of the snapshot in nanoseconds since 1970.
    pub unix: u64,
    /// One entry per instrument with series, in catalog order.
    pub families: Vec<FamilySnapshot>,
}

/// The series of one instrument.
#[derive(Clone, Debug)]
pub struct FamilySnapshot {
    /// Id of the instrument.
    pub id: Id,
    /// Series of the instrument.
    pub points: Vec<DataPoint>,
}

/// One series.
#[derive(Clone, Debug)]
pub struct DataPoint {
    /// Attributes in catalog order.
    pub labels: Arc<[Label]>,
    /// Start of the count in nanoseconds since 1970. Constant while the process lives.
    pub created: u64,
    /// Current value.
    pub data: PointValue,
}

/// Value of a series.
#[derive(Clone, Debug)]
pub enum PointValue {
    /// A counter.
    Count(u64),
    /// A gauge. Concurrent updates may make it negative for a moment.
    Gauge(i64),
    /// A value with a fraction, in the instrument's unit.
    Number(f64),
    /// A histogram, with at most one exemplar per explicit bucket as (bucket, exemplar).
    Histogram(Histogram, Vec<(usize, BucketExemplar)>),
}

/// Example value of a histogram bucket, with its trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketExemplar {
    /// Value in the instrument's unit.
    pub value: f64,
    /// Time of the measurement in nanoseconds since 1970.
    pub unix: u64,
    /// Id of the trace, whose spans are exported.
    pub trace_id: TraceId,
    /// Id of the request's SERVER span.
    pub span_id: SpanId,
}

impl Snapshot {
    /// Returns the series of an instrument; empty if it has none.
    pub fn points(&self, id: Id) -> &[DataPoint] {
        self.families.iter().find(|family| family.id == id).map_or(&[], |family| &family.points)
    }

    /// Adds a series that is read, not counted. `values` are in the order of the catalog's attributes.
    pub(in crate::export) fn observe<const N: usize>(
        &mut self,
        id: Id,
        values: [LabelValue; N],
        created: u64,
        data: PointValue,
    ) {
        let names = id.instrument().attributes.iter();
        let labels = names.zip(values).map(|(name, value)| Label { name: (*name).into(), value }).collect();
        let at = self.families.partition_point(|family| (family.id as usize) < id as usize);
        if self.families.get(at).is_none_or(|family| family.id != id) {
            self.families.insert(at, FamilySnapshot { id, points: Vec::new() });
        }
        self.families[at].points.push(DataPoint { labels, created, data });
    }
}

impl DataPoint {
    /// Returns the value of an attribute, if present.
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
        snapshot.observe(Id::ProcessCpu, [], 0, PointValue::Number(1.5));
        snapshot.observe(Id::ActiveStreams, ["waiting".into()], 0, PointValue::Gauge(2));
        snapshot.observe(Id::ActiveStreams, ["streaming".into()], 0, PointValue::Gauge(3));
        let order: Vec<_> = snapshot.families.iter().map(|family| (family.id, family.points.len())).collect();
        assert_eq!(order, [(Id::ActiveStreams, 2), (Id::ProcessCpu, 1)]);
        assert_eq!(snapshot.points(Id::ActiveStreams)[1].label("phase"), Some(&"streaming".into()));
    }
}

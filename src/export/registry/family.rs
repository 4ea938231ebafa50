//! The series of one instrument.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::aggregate::AggregateSettings;
use super::catalog::{Id, attribute};
use super::classes::{AdmittedClasses, ClassSet};
use super::interner::{Interner, Label, LabelValue, MAX_ATTRIBUTES, Symbol};
use super::snapshot::{self, BucketExemplar, DataPoint, PointValue, TimePoint};
use crate::export::trace_context::RequestTrace;
use crate::measure::histogram::{Histogram, Layout};

/// Maximum number of series per instrument, as in the OpenTelemetry SDKs. Further ones count under
/// `otel.metric.overflow`. Limits on names keep the number below this second fence, unless classes divide many models.
pub(super) const MAX_SERIES: u16 = 2_000;

/// Key of a series: one symbol per attribute of its instrument, and the request's classes.
type LabelKey = ([Symbol; MAX_ATTRIBUTES], ClassSet);

/// An instrument and its series.
#[derive(Debug)]
pub(in crate::export) struct SeriesFamily {
    id: Id,
    /// `false` if the instrument is not exported.
    enabled: bool,
    /// `true` if classes divide the instrument's series: those with a model.
    by_class: bool,
    layout: Option<Arc<Layout>>,
    index: BTreeMap<LabelKey, u16>,
    cells: Vec<SeriesCell>,
}

#[derive(Debug)]
struct SeriesCell {
    labels: Arc<[Label]>,
    created: u64,
    value: MetricValue,
}

#[derive(Debug)]
enum MetricValue {
    Count(u64),
    Distribution(ExemplarHistogram),
}

/// A histogram with an exemplar for each explicit bucket.
#[derive(Debug)]
pub(in crate::export) struct ExemplarHistogram {
    histogram: Histogram,
    exemplars: Box<[Option<BucketExemplar>]>,
}

impl ExemplarHistogram {
    fn new(layout: &Arc<Layout>) -> Self {
        let exemplars = vec![None; layout.bounds().len() + 1].into_boxed_slice();
        Self { histogram: Histogram::new(Arc::clone(layout)), exemplars }
    }

    /// Records a value in nanoseconds or tokens.
    pub(in crate::export) fn record(&mut self, raw: u64) {
        self.histogram.record(raw);
    }

    /// Stores a recorded value as its bucket's exemplar if it is the latest. Backends require exemplars in time order,
    /// and threads may report out of order.
    pub(in crate::export) fn set_exemplar(&mut self, raw: u64, trace: &RequestTrace, unix: u64) {
        let layout = self.histogram.layout();
        let slot = &mut self.exemplars[layout.bucket_of(raw)];
        if slot.is_none_or(|stored| stored.unix <= unix) {
            let value = layout.unit().value(raw as f64);
            *slot = Some(BucketExemplar { value, unix, trace_id: trace.trace_id, span_id: trace.server_span });
        }
    }
}

impl SeriesFamily {
    /// Creates a family without series.
    pub(in crate::export) fn new(id: Id, settings: &AggregateSettings) -> Self {
        let instrument = id.instrument();
        Self {
            id,
            enabled: settings.exports(instrument),
            by_class: instrument.attributes.contains(&attribute::MODEL),
            layout: instrument.layout(&settings.slos).map(Arc::new),
            index: BTreeMap::new(),
            cells: Vec::new(),
        }
    }

    pub(in crate::export) fn id(&self) -> Id {
        self.id
    }

    /// Drops the series if these settings change the bounds, or whether the instrument is exported.
    pub(in crate::export) fn reset_if_changed(&mut self, settings: &AggregateSettings) {
        let fitting = Self::new(self.id, settings);
        let bounds = |series: &Self| series.layout.as_ref().map(|layout| layout.bounds().to_vec());
        if fitting.enabled != self.enabled || bounds(&fitting) != bounds(self) {
            *self = fitting;
        }
    }

    pub(in crate::export) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the index of a key's series. It stays valid until
    /// [`reset_if_changed`](Self::reset_if_changed) is called.
    pub(in crate::export) fn index_of(
        &mut self,
        (syms, set): (&[Symbol], ClassSet),
        symbols: &Interner,
        classes: &AdmittedClasses,
        moment: TimePoint,
    ) -> u16 {
        let mut key = LabelKey::default();
        key.0.iter_mut().zip(syms).for_each(|(slot, sym)| *slot = *sym);
        key.1 = if self.by_class { set } else { ClassSet::default() };
        match self.index.get(&key) {
            Some(place) => *place,
            None => self.insert(key, symbols, classes.labels(key.1), moment),
        }
    }

    /// Adds to a counter; adding 0 declares its series.
    pub(in crate::export) fn add(&mut self, place: u16, more: u64) {
        if let Some(SeriesCell { value: MetricValue::Count(count), .. }) = self.cells.get_mut(usize::from(place)) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns the histogram of a series, or `None` for other instruments.
    pub(in crate::export) fn distribution(&mut self, place: u16) -> Option<&mut ExemplarHistogram> {
        match &mut self.cells.get_mut(usize::from(place))?.value {
            MetricValue::Distribution(distribution) => Some(distribution),
            MetricValue::Count(_) => None,
        }
    }

    fn insert(&mut self, key: LabelKey, symbols: &Interner, classes: &[Label], moment: TimePoint) -> u16 {
        let place = self.cells.len() as u16;
        let labels = if place < MAX_SERIES {
            let names = self.id.instrument().attributes.iter();
            let values = key.0.iter().map(|sym| symbols.value(*sym).cloned());
            let own = names.zip(values).filter_map(|(name, value)| Some(Label { name: (*name).into(), value: value? }));
            own.chain(classes.iter().cloned()).collect()
        } else if place == MAX_SERIES {
            Arc::from([Label { name: attribute::OVERFLOW.into(), value: LabelValue::Bool(true) }])
        } else {
            return MAX_SERIES;
        };
        let value = match &self.layout {
            Some(layout) => MetricValue::Distribution(ExemplarHistogram::new(layout)),
            None => MetricValue::Count(0),
        };
        self.cells.push(SeriesCell { labels, created: moment.unix, value });
        if place < MAX_SERIES {
            self.index.insert(key, place);
        }
        place
    }

    /// Copies all series.
    pub(in crate::export) fn snapshot(&self) -> Option<snapshot::FamilySnapshot> {
        let points: Vec<DataPoint> = self.cells.iter().map(SeriesCell::point).collect();
        (!points.is_empty()).then_some(snapshot::FamilySnapshot { id: self.id, points })
    }
}

impl SeriesCell {
    fn point(&self) -> DataPoint {
        let data = match &self.value {
            MetricValue::Count(count) => PointValue::Count(*count),
            MetricValue::Distribution(ExemplarHistogram { histogram, exemplars }) => {
                let exemplars = exemplars.iter().enumerate().filter_map(|(bucket, slot)| Some((bucket, (*slot)?)));
                PointValue::Histogram(histogram.clone(), exemplars.collect())
            }
        };
        DataPoint { labels: Arc::clone(&self.labels), created: self.created, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Stamp;

    const AT: TimePoint = TimePoint { stamp: Stamp::from_nanos(0), unix: 7 };

    fn add(series: &mut SeriesFamily, key: &[Symbol], more: u64, symbols: &Interner) {
        let place = series.index_of((key, ClassSet::default()), symbols, &AdmittedClasses::new(1), AT);
        series.add(place, more);
    }

    #[test]
    fn a_flood_of_series_ends_in_one_that_says_so() {
        let (mut symbols, mut series) =
            (Interner::default(), SeriesFamily::new(Id::Stalls, &AggregateSettings::default()));
        for model in 0..i64::from(MAX_SERIES) + 500 {
            let model = symbols.number(model);
            add(&mut series, &[model], 2, &symbols);
        }
        let family = series.snapshot().unwrap();
        assert_eq!(family.points.len(), usize::from(MAX_SERIES) + 1);
        let last = family.points.last().unwrap();
        assert!(matches!(last.data, PointValue::Count(1_000)));
        assert_eq!(last.label(attribute::OVERFLOW), Some(&LabelValue::Bool(true)));
        let third = symbols.number(3);
        add(&mut series, &[third], 1, &symbols);
        assert!(matches!(series.snapshot().unwrap().points[3].data, PointValue::Count(3)), "old ones still count");
    }

    #[test]
    fn an_absent_attribute_is_left_out() {
        let mut symbols = Interner::default();
        let mut series = SeriesFamily::new(Id::Terminations, &AggregateSettings::default());
        let (done, token) = (symbols.text("done"), symbols.bool_value(true));
        add(&mut series, &[Symbol::default(), done, token], 1, &symbols);
        let point = &series.snapshot().unwrap().points[0];
        let labels: Vec<_> = point.labels.iter().map(|label| &*label.name).collect();
        assert_eq!((labels, point.created), (vec!["reason", "first_token"], 7));
    }
}

//! The series of one instrument.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalog::{Convention, Id, attribute};
use super::labels::{Key, Label, Sym, Symbols, Value};
use super::snapshot::{self, Data, Exemplar, Moment, Point};
use super::trace_context::RequestTrace;
use crate::measure::histogram::{Histogram, Layout};
use crate::measure::slo::Slos;

/// Series per instrument, the OpenTelemetry SDKs' limit; further ones count under `otel.metric.overflow`. Capped names
/// keep us far below it: this is the second fence.
const MOST_SERIES: u16 = 2_000;

/// An instrument and its series.
#[derive(Debug)]
pub(super) struct Series {
    id: Id,
    /// Whether it is exported at all.
    enabled: bool,
    layout: Option<Arc<Layout>>,
    index: BTreeMap<Key, u16>,
    list: Vec<One>,
}

#[derive(Debug)]
struct One {
    labels: Arc<[Label]>,
    created: u64,
    value: Counted,
}

#[derive(Debug)]
enum Counted {
    Count(u64),
    Distribution(Distribution),
}

/// A histogram with an exemplar for each explicit bucket.
#[derive(Debug)]
pub(super) struct Distribution {
    histogram: Histogram,
    exemplars: Box<[Option<Exemplar>]>,
}

impl Distribution {
    fn new(layout: &Arc<Layout>) -> Self {
        let exemplars = vec![None; layout.bounds().len() + 1].into_boxed_slice();
        Self { histogram: Histogram::new(Arc::clone(layout)), exemplars }
    }

    /// Counts a value: nanoseconds or tokens.
    pub(super) fn record(&mut self, raw: u64) {
        self.histogram.record(raw);
    }

    /// Keeps a counted value as the exemplar of its bucket, if it is the latest: stores take exemplars in the order of
    /// time, and two threads may hand over theirs in another.
    pub(super) fn exemplify(&mut self, raw: u64, trace: &RequestTrace, unix: u64) {
        let layout = self.histogram.layout();
        let slot = &mut self.exemplars[layout.bucket_of(raw)];
        if slot.is_none_or(|kept| kept.unix <= unix) {
            let value = layout.unit().value(raw as f64);
            *slot = Some(Exemplar { value, unix, trace_id: trace.trace_id, span_id: trace.server_span });
        }
    }
}

impl Series {
    /// No series yet.
    pub(super) fn new(id: Id, convention: Convention, slos: &Slos) -> Self {
        let instrument = id.instrument();
        Self {
            id,
            enabled: instrument.is_in(convention),
            layout: instrument.layout(slos).map(Arc::new),
            index: BTreeMap::new(),
            list: Vec::new(),
        }
    }

    /// The instrument.
    pub(super) fn id(&self) -> Id {
        self.id
    }

    /// Begins again if the bounds are not what these SLOs make them.
    pub(super) fn refit(&mut self, convention: Convention, slos: &Slos) {
        let fitting = Self::new(self.id, convention, slos);
        let bounds = |series: &Self| series.layout.as_ref().map(|layout| layout.bounds().to_vec());
        if bounds(&fitting) != bounds(self) {
            *self = fitting;
        }
    }

    /// Whether it is exported at all.
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Where the series of this key is, which holds as long as nobody calls [`refit`](Self::refit).
    pub(super) fn place(&mut self, syms: &[Sym], symbols: &Symbols, moment: Moment) -> u16 {
        let mut key = Key::default();
        key.iter_mut().zip(syms).for_each(|(slot, sym)| *slot = *sym);
        match self.index.get(&key) {
            Some(place) => *place,
            None => self.open(key, symbols, moment),
        }
    }

    /// Adds to a counter; adding 0 makes its series appear.
    pub(super) fn add(&mut self, place: u16, more: u64) {
        if let Some(One { value: Counted::Count(count), .. }) = self.list.get_mut(usize::from(place)) {
            *count = count.saturating_add(more);
        }
    }

    /// The distribution to record into; none where the instrument is not one.
    pub(super) fn distribution(&mut self, place: u16) -> Option<&mut Distribution> {
        match &mut self.list.get_mut(usize::from(place))?.value {
            Counted::Distribution(distribution) => Some(distribution),
            Counted::Count(_) => None,
        }
    }

    fn open(&mut self, key: Key, symbols: &Symbols, moment: Moment) -> u16 {
        let place = self.list.len() as u16;
        let labels = if place < MOST_SERIES {
            let names = self.id.instrument().attributes.iter();
            let values = key.iter().map(|sym| symbols.value(*sym).cloned());
            names.zip(values).filter_map(|(name, value)| Some(Label { name, value: value? })).collect()
        } else if place == MOST_SERIES {
            Arc::from([Label { name: attribute::OVERFLOW, value: Value::Bool(true) }])
        } else {
            return MOST_SERIES;
        };
        let value = match &self.layout {
            Some(layout) => Counted::Distribution(Distribution::new(layout)),
            None => Counted::Count(0),
        };
        self.list.push(One { labels, created: moment.unix, value });
        if place < MOST_SERIES {
            self.index.insert(key, place);
        }
        place
    }

    /// All of them as they are now.
    pub(super) fn snapshot(&self) -> Option<snapshot::Family> {
        let points: Vec<Point> = self.list.iter().map(One::point).collect();
        (!points.is_empty()).then_some(snapshot::Family { id: self.id, points })
    }
}

impl One {
    fn point(&self) -> Point {
        let data = match &self.value {
            Counted::Count(count) => Data::Count(*count),
            Counted::Distribution(Distribution { histogram, exemplars }) => {
                let exemplars = exemplars.iter().enumerate().filter_map(|(bucket, kept)| Some((bucket, (*kept)?)));
                Data::Histogram(histogram.clone(), exemplars.collect())
            }
        };
        Point { labels: Arc::clone(&self.labels), created: self.created, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Stamp;

    const AT: Moment = Moment { stamp: Stamp::from_nanos(0), unix: 7 };

    fn add(series: &mut Series, key: &[Sym], more: u64, symbols: &Symbols) {
        let place = series.place(key, symbols, AT);
        series.add(place, more);
    }

    #[test]
    fn a_flood_of_series_ends_in_one_that_says_so() {
        let (mut symbols, mut series) =
            (Symbols::default(), Series::new(Id::Stalls, Convention::Frozen, &Slos::default()));
        for model in 0..i64::from(MOST_SERIES) + 500 {
            let model = symbols.number(model);
            add(&mut series, &[model], 2, &symbols);
        }
        let family = series.snapshot().unwrap();
        assert_eq!(family.points.len(), usize::from(MOST_SERIES) + 1);
        let last = family.points.last().unwrap();
        assert!(matches!(last.data, Data::Count(1_000)));
        assert_eq!(last.label(attribute::OVERFLOW), Some(&Value::Bool(true)));
        let third = symbols.number(3);
        add(&mut series, &[third], 1, &symbols);
        assert!(matches!(series.snapshot().unwrap().points[3].data, Data::Count(3)), "old ones still count");
    }

    #[test]
    fn an_absent_attribute_is_left_out() {
        let mut symbols = Symbols::default();
        let mut series = Series::new(Id::Terminations, Convention::Frozen, &Slos::default());
        let (done, token) = (symbols.text("done"), symbols.truth(true));
        add(&mut series, &[Sym::default(), done, token], 1, &symbols);
        let point = &series.snapshot().unwrap().points[0];
        let labels: Vec<_> = point.labels.iter().map(|label| label.name).collect();
        assert_eq!((labels, point.created), (vec!["reason", "first_token"], 7));
    }
}

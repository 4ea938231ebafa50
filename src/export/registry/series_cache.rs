//! Caches the series of similar requests.
//!
//! Nearly all successful requests are of a few kinds with equal model, route, status and classes. Their series are looked up
//! once per kind instead of label by label for a dozen instruments. Failures have a cause among their labels; they
//! should be rare and are not cached.

use std::sync::Arc;

use ahash::AHashMap;

use super::catalog::Id;
use super::classes::ClassSet;
use super::interner::Symbol;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::shape::RequestShape;

/// Maximum number of cached kinds; one more clears the cache. Each takes 1 KiB.
const MAX_KINDS: usize = 256;
/// Maximum number of series of one instrument per kind: by phase, by token source, by stage.
const MAX_SERIES_PER_INSTRUMENT: usize = 5;

/// Values of the attributes that all `gen_ai.*` instruments share.
pub(in crate::export) type GenAiLabels = [Symbol; 5];

/// Cache of series by kind of request.
#[derive(Debug, Default)]
pub(in crate::export) struct SeriesCache {
    entries: Vec<CacheEntry>,
    by_model: AHashMap<Symbol, Vec<usize>>,
}

/// Identifies a kind until the next lookup.
#[derive(Clone, Copy, Debug)]
pub(in crate::export) struct CacheSlot(usize);

#[derive(Debug)]
struct CacheEntry {
    /// Shape of one request of this kind.
    shape: Arc<RequestShape>,
    status: Option<u16>,
    classes: ClassSet,
    gen_ai: GenAiLabels,
    /// Known series indexes by instrument.
    series_indexes: Box<[[Option<u16>; MAX_SERIES_PER_INSTRUMENT]]>,
}

impl CacheEntry {
    fn matches(&self, record: &RequestRecord, classes: ClassSet) -> bool {
        let (one, other) = (&*self.shape, &*record.shape);
        self.status == record.status
            && self.classes == classes
            && one.dialect == other.dialect
            && one.probe == other.probe
            && one.method == other.method
            && one.server == other.server
    }
}

impl SeriesCache {
    /// Returns the slot of a request's kind and the kind's shared attributes. `gen_ai` builds them on a miss.
    pub(in crate::export) fn lookup(
        &mut self,
        record: &RequestRecord,
        (model, classes): (Symbol, ClassSet),
        gen_ai: impl FnOnce() -> GenAiLabels,
    ) -> (Option<CacheSlot>, GenAiLabels) {
        if record.outcome != Outcome::Success {
            return (None, gen_ai());
        }
        let of_model = self.by_model.get(&model).into_iter().flatten();
        let known = of_model.copied().find(|kind| self.entries[*kind].matches(record, classes));
        let kind = known.unwrap_or_else(|| self.add(record, (model, classes), gen_ai()));
        (Some(CacheSlot(kind)), self.entries[kind].gen_ai)
    }

    fn add(&mut self, record: &RequestRecord, (model, classes): (Symbol, ClassSet), gen_ai: GenAiLabels) -> usize {
        if self.entries.len() == MAX_KINDS {
            *self = Self::default();
        }
        let places = vec![Default::default(); Id::all().count()].into();
        self.entries.push(CacheEntry {
            shape: Arc::clone(&record.shape),
            status: record.status,
            classes,
            gen_ai,
            series_indexes: places,
        });
        self.by_model.entry(model).or_default().push(self.entries.len() - 1);
        self.entries.len() - 1
    }

    /// Returns the cached index of the `which`th series of an instrument, or `None` above the cached number.
    pub(in crate::export) fn series_slot(
        &mut self,
        CacheSlot(kind): CacheSlot,
        id: Id,
        which: usize,
    ) -> Option<&mut Option<u16>> {
        self.entries.get_mut(kind)?.series_indexes.get_mut(id as usize)?.get_mut(which)
    }
}

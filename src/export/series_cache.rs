//! Requests of one kind: they count in the same series.
//!
//! Nearly all that a server answers well is of a few kinds: of one model, by one route, with one status. So the series
//! of a kind are looked up once, and not label by label for each of a dozen instruments. A request that did not go well
//! has a cause among its labels; there should be few of them, and they are of no kind.

use std::sync::Arc;

use ahash::AHashMap;

use super::catalog::Id;
use super::interner::Symbol;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::shape::RequestShape;

/// Kinds held; with one more all of them are learned anew. Each takes a kilobyte.
const MAX_KINDS: usize = 256;
/// Series of one instrument in which requests of one kind count: by phase, by source of tokens, by stage.
const MAX_SERIES_PER_INSTRUMENT: usize = 5;

/// The attributes that all `gen_ai.*` instruments have.
pub(super) type GenAiLabels = [Symbol; 5];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SeriesCache {
    entries: Vec<CacheEntry>,
    by_model: AHashMap<Symbol, Vec<usize>>,
}

/// Names a kind until the next one is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSlot(usize);

#[derive(Debug)]
struct CacheEntry {
    /// One of its requests.
    shape: Arc<RequestShape>,
    status: Option<u16>,
    gen_ai: GenAiLabels,
    /// By instrument: the places of its series, as far as they are known.
    series_indexes: Box<[[Option<u16>; MAX_SERIES_PER_INSTRUMENT]]>,
}

impl CacheEntry {
    fn matches(&self, record: &RequestRecord) -> bool {
        let (one, other) = (&*self.shape, &*record.shape);
        self.status == record.status
            && one.dialect == other.dialect
            && one.probe == other.probe
            && one.method == other.method
            && one.server == other.server
    }
}

impl SeriesCache {
    /// The kind of a request that counts under this model, and the attributes that all of the kind have; `gen_ai` finds
    /// them out.
    pub(super) fn lookup(
        &mut self,
        record: &RequestRecord,
        model: Symbol,
        gen_ai: impl FnOnce() -> GenAiLabels,
    ) -> (Option<CacheSlot>, GenAiLabels) {
        if record.outcome != Outcome::Success {
            return (None, gen_ai());
        }
        let of_model = self.by_model.get(&model).into_iter().flatten();
        let known = of_model.copied().find(|kind| self.entries[*kind].matches(record));
        let kind = known.unwrap_or_else(|| self.add(record, model, gen_ai()));
        (Some(CacheSlot(kind)), self.entries[kind].gen_ai)
    }

    fn add(&mut self, record: &RequestRecord, model: Symbol, gen_ai: GenAiLabels) -> usize {
        if self.entries.len() == MAX_KINDS {
            *self = Self::default();
        }
        let places = vec![Default::default(); Id::all().count()].into();
        self.entries.push(CacheEntry {
            shape: Arc::clone(&record.shape),
            status: record.status,
            gen_ai,
            series_indexes: places,
        });
        self.by_model.entry(model).or_default().push(self.entries.len() - 1);
        self.entries.len() - 1
    }

    /// Where to find the place of the `which`th series of an instrument; `None` of one beyond those that are remembered.
    pub(super) fn series_slot(&mut self, CacheSlot(kind): CacheSlot, id: Id, which: usize) -> Option<&mut Option<u16>> {
        self.entries.get_mut(kind)?.series_indexes.get_mut(id as usize)?.get_mut(which)
    }
}

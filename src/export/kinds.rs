//! Requests of one kind: they count in the same series.
//!
//! Nearly all that a server answers well is of a few kinds: of one model, by one route, with one status. So the series
//! of a kind are looked up once, and not label by label for each of a dozen instruments. A request that did not go well
//! has a cause among its labels; there should be few of them, and they are of no kind.

use std::sync::Arc;

use ahash::AHashMap;

use super::catalog::Id;
use super::labels::Sym;
use crate::measure::record::{Outcome, RequestRecord};
use crate::measure::shape::RequestShape;

/// Kinds held; with one more all of them are learned anew. Each takes a kilobyte.
const MOST: usize = 256;
/// Series of one instrument in which requests of one kind count: by phase, by source of tokens, by stage.
const MOST_EACH: usize = 5;

/// The attributes that all `gen_ai.*` instruments have.
pub(super) type GenAi = [Sym; 5];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    list: Vec<Kind>,
    of_model: AHashMap<Sym, Vec<usize>>,
}

/// Names a kind until the next one is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct KindAt(usize);

#[derive(Debug)]
struct Kind {
    /// One of its requests.
    shape: Arc<RequestShape>,
    status: Option<u16>,
    gen_ai: GenAi,
    /// By instrument: the places of its series, as far as they are known.
    places: Box<[[Option<u16>; MOST_EACH]]>,
}

impl Kind {
    fn has(&self, record: &RequestRecord) -> bool {
        let (one, other) = (&*self.shape, &*record.shape);
        self.status == record.status
            && one.dialect == other.dialect
            && one.probe == other.probe
            && one.method == other.method
            && one.server == other.server
    }
}

impl Kinds {
    /// The kind of a request that counts under this model, and the attributes that all of the kind have; `gen_ai` finds
    /// them out.
    pub(super) fn of(
        &mut self,
        record: &RequestRecord,
        model: Sym,
        gen_ai: impl FnOnce() -> GenAi,
    ) -> (Option<KindAt>, GenAi) {
        if record.outcome != Outcome::Success {
            return (None, gen_ai());
        }
        let of_model = self.of_model.get(&model).into_iter().flatten();
        let known = of_model.copied().find(|kind| self.list[*kind].has(record));
        let kind = known.unwrap_or_else(|| self.add(record, model, gen_ai()));
        (Some(KindAt(kind)), self.list[kind].gen_ai)
    }

    fn add(&mut self, record: &RequestRecord, model: Sym, gen_ai: GenAi) -> usize {
        if self.list.len() == MOST {
            *self = Self::default();
        }
        let places = vec![Default::default(); Id::all().count()].into();
        self.list.push(Kind { shape: Arc::clone(&record.shape), status: record.status, gen_ai, places });
        self.of_model.entry(model).or_default().push(self.list.len() - 1);
        self.list.len() - 1
    }

    /// Where to find the place of the `which`th series of an instrument; `None` of one beyond those that are remembered.
    pub(super) fn place(&mut self, KindAt(kind): KindAt, id: Id, which: usize) -> Option<&mut Option<u16>> {
        self.list.get_mut(kind)?.places.get_mut(id as usize)?.get_mut(which)
    }
}

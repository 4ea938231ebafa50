//! Counts distinct items: exact for small numbers, estimated in fixed memory beyond.
//!
//! Only hashes below a bound are kept, and the bound is halved when they exceed the limit. The remaining hashes are a
//! fair sample of all distinct items that does not depend on their order.

use std::collections::HashSet;

use crate::stats::hash::combine;
use crate::stats::locality_hash::BuildLocalityHasher;

const MAX_HASHES: usize = 1 << 18;

#[derive(Debug, Default)]
pub(super) struct CardinalityEstimator {
    hashes: HashSet<u64, BuildLocalityHasher>,
    halvings: u32,
}

impl CardinalityEstimator {
    pub(super) fn add(&mut self, id: u64) {
        let hash = combine(id, 0x6469_7374);
        if hash > u64::MAX >> self.halvings {
            return;
        }
        self.hashes.insert(hash);
        while self.hashes.len() > MAX_HASHES {
            self.halvings += 1;
            let bound = u64::MAX >> self.halvings;
            self.hashes.retain(|hash| *hash <= bound);
        }
    }

    pub(super) fn count(&self) -> u64 {
        (self.hashes.len() as u64) << self.halvings
    }

    pub(super) fn is_estimate(&self) -> bool {
        self.halvings > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_counted_and_many_are_estimated_within_a_percent() {
        let mut distinct = CardinalityEstimator::default();
        (0..1_000).chain(0..1_000).for_each(|id| distinct.add(id));
        assert_eq!((distinct.count(), distinct.is_estimate()), (1_000, false));
        (0..2_000_000).for_each(|id| distinct.add(id));
        assert!(distinct.is_estimate() && distinct.hashes.len() <= MAX_HASHES);
        assert!((1_980_000..2_020_000).contains(&distinct.count()), "{}", distinct.count());
    }
}

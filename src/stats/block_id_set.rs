//! A set of block ids that stores 32 adjacent ids in one table slot.
//!
//! Public traces number blocks in order of first appearance, so a prompt's new ids are adjacent. So are the ids that
//! a later prompt shares with it. One memory access finds all adjacent ids; memory accesses dominate the cost of a
//! large table. A slot takes 13 bytes, also for an id without neighbours.

use std::collections::HashMap;

use ahash::RandomState;

/// Low bits of an id, which select its bit within a slot. The remaining bits are the slot's key.
const BITS: u32 = u32::BITS.ilog2();

/// Bitmaps by key: bit `i` is set if the id with low bits `i` is in the set.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockIdSet {
    members: HashMap<Key, u32, RandomState>,
    len: usize,
}

/// Without its alignment a slot takes 12 bytes instead of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(Rust, packed(4))]
struct Key(u64);

/// Consecutive ids that share a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdRun {
    pub(super) key: u64,
    bit: u32,
    /// At least 1.
    pub(super) length: usize,
}

impl IdRun {
    /// The leading ids that are consecutive and share a key; `None` if `ids` is empty.
    #[inline]
    pub(super) fn of(ids: &[u64]) -> Option<Self> {
        let first = ids.first()?;
        let (key, bit) = (first >> BITS, (first & u64::from(u32::BITS - 1)) as u32);
        let most = ids.len().min((u32::BITS - bit) as usize);
        let mut length = 1;
        while length < most && ids[length] == first + length as u64 {
            length += 1;
        }
        Some(Self { key, bit, length })
    }
}

impl BlockIdSet {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Slots in use.
    pub(super) fn taken(&self) -> usize {
        self.members.len()
    }

    /// Inserts a run and returns how many of its leading ids were already present.
    #[inline]
    pub(super) fn insert(&mut self, run: &IdRun) -> usize {
        let members = self.members.entry(Key(run.key)).or_default();
        let before = *members;
        *members |= u32::MAX >> (u32::BITS as usize - run.length) << run.bit;
        self.len += (before ^ *members).count_ones() as usize;
        let known = (!(before >> run.bit)).trailing_zeros() as usize;
        known.min(run.length)
    }

    /// Counts the ids whose key satisfies `of`.
    pub(super) fn count(&self, of: impl Fn(u64) -> bool) -> usize {
        self.members.iter().filter(|(key, _)| of(key.0)).map(|(_, members)| members.count_ones() as usize).sum()
    }

    /// Keeps the ids whose key satisfies `keep`. A new table has no tombstones, which would double this one later.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.members.retain(|key, _| keep(key.0));
        self.members.shrink_to_fit();
        self.len = self.members.values().map(|members| members.count_ones() as usize).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_what_another_set_knows(
            ids in proptest::collection::vec(prop_oneof![0..5_000_u64, any::<u64>(), u64::MAX - 20..=u64::MAX], 0..4_000),
        ) {
            let (mut set, mut other) = (BlockIdSet::default(), HashSet::new());
            for id in &ids {
                prop_assert_eq!(insert(&mut set, *id), other.insert(*id));
            }
            let odd = |key: u64| key % 3 == 1;
            set.retain(odd);
            other.retain(|id| odd(*id >> BITS));
            let low = |key: u64| key < 70;
            prop_assert_eq!(set.count(low), other.iter().filter(|id| low(*id >> BITS)).count());
            prop_assert_eq!(set.len(), other.len());
            for id in ids {
                prop_assert_eq!(insert(&mut set, id), other.insert(id));
            }
        }

        #[test]
        fn a_run_is_taken_in_as_its_ids_are_one_by_one(
            runs in proptest::collection::vec((prop_oneof![0..200_u64, u64::MAX - 90..=u64::MAX], 1..80_usize), 1..40),
        ) {
            let (mut set, mut other) = (BlockIdSet::default(), HashSet::new());
            for (from, length) in runs {
                let ids: Vec<u64> = (from..=u64::MAX).take(length).collect();
                let mut rest = &ids[..];
                while let Some(run) = IdRun::of(rest) {
                    let known = set.insert(&run);
                    prop_assert!(run.length > 0 && known <= run.length);
                    let were_there: Vec<bool> = rest[..run.length].iter().map(|id| !other.insert(*id)).collect();
                    prop_assert_eq!(known, were_there.iter().take_while(|there| **there).count());
                    rest = &rest[run.length..];
                }
                prop_assert_eq!(set.len(), other.len());
            }
        }
    }

    /// Returns true if the id is new.
    fn insert(set: &mut BlockIdSet, id: u64) -> bool {
        IdRun::of(&[id]).is_some_and(|run| set.insert(&run) == 0)
    }

    #[test]
    fn neighbours_share_a_place_and_others_have_one_each() {
        let places = |distance: usize| {
            let mut set = BlockIdSet::default();
            (0..320_000_u64).step_by(distance).for_each(|id| _ = insert(&mut set, id));
            (set.len(), set.taken())
        };
        assert_eq!([places(1), places(32)], [(320_000, 10_000), (10_000, 10_000)]);
    }
}

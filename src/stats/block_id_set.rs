//! A set of block ids that stores 32 adjacent ids in one table slot.
//!
//! Public traces number blocks in order of first appearance, so a prompt's new ids are adjacent. So are the ids that
//! a later prompt shares with it. One memory access finds all adjacent ids; memory accesses dominate the cost of a
//! large table. A slot takes 12 bytes, also for an id without neighbours.

use super::hash::combine;

/// Low bits of an id, which select its bit within a slot. The remaining bits are the slot's key.
const BITS: u32 = u32::BITS.ilog2();
/// Slots per group, contiguous in memory. Adjacent keys start probing in the same group, so the previous lookup has
/// usually loaded it into cache.
const GROUP: usize = 8;
/// Below this many slots, half of the table stays free, because lookups of absent keys are slow in a full table.
const SMALL: usize = 1 << 20;
/// Marks an empty slot.
const FREE: u64 = u64::MAX;
const MIN_CAPACITY_IDS: usize = 1 << 10;

/// An open-addressing table with linear probing.
#[derive(Clone, Debug)]
pub(super) struct BlockIdSet {
    /// The slot count is a power of two; at least an eighth of the slots are [`FREE`].
    groups: Vec<IdGroup>,
    taken: usize,
    len: usize,
    /// The most recently used slot and its key.
    last: (usize, u64),
}

/// Keys and their members, laid out together so that one memory access loads both.
#[derive(Clone, Debug)]
struct IdGroup {
    keys: [u64; GROUP],
    /// One bitmap per key: bit `i` is set if the id with low bits `i` is in the set.
    members: [u32; GROUP],
}

const EMPTY: IdGroup = IdGroup { keys: [FREE; GROUP], members: [0; GROUP] };

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

impl Default for BlockIdSet {
    fn default() -> Self {
        Self { groups: Vec::new(), taken: 0, len: 0, last: (0, FREE) }
    }
}

impl BlockIdSet {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Slots in use.
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Inserts a run and returns how many of its leading ids were already present.
    #[inline]
    pub(super) fn insert(&mut self, run: &IdRun) -> usize {
        if self.last.1 != run.key {
            self.last = (self.place(run.key), run.key);
        }
        let (_, members) = self.at(self.last.0);
        let before = *members;
        *members |= u32::MAX >> (u32::BITS as usize - run.length) << run.bit;
        let new = (before ^ *members).count_ones() as usize;
        self.len += new;
        let known = (!(before >> run.bit)).trailing_zeros() as usize;
        known.min(run.length)
    }

    /// Counts the ids whose key satisfies `of`.
    pub(super) fn count(&self, of: impl Fn(u64) -> bool) -> usize {
        let places = self.groups.iter().flat_map(|group| group.keys.iter().zip(&group.members));
        places.filter(|(key, _)| of(**key)).map(|(_, members)| members.count_ones() as usize).sum()
    }

    /// Keeps the ids whose key satisfies `keep`. Works in place, because a second table would double the memory.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        (self.len, self.taken, self.last.1) = (0, 0, FREE);
        let places = self.places();
        let first = (0..places).find(|at| self.key(*at) == FREE).unwrap_or(0);
        // Starting after a free slot, each key moves to the first free slot of its probe sequence, which is never
        // past its old one.
        for at in (first..places).chain(0..first) {
            let (key, members) = self.at(at);
            let (key, members) = (std::mem::replace(key, FREE), std::mem::take(members));
            if members != 0 && keep(key) {
                let to = self.find(key);
                self.put(to, key, members);
                self.len += members.count_ones() as usize;
                self.taken += 1;
            }
        }
    }

    const fn places(&self) -> usize {
        self.groups.len() * GROUP
    }

    fn key(&self, place: usize) -> u64 {
        self.groups[place / GROUP].keys[place % GROUP]
    }

    fn at(&mut self, place: usize) -> (&mut u64, &mut u32) {
        let group = &mut self.groups[place / GROUP];
        (&mut group.keys[place % GROUP], &mut group.members[place % GROUP])
    }

    fn put(&mut self, place: usize, key: u64, members: u32) {
        let (at, of_it) = self.at(place);
        (*at, *of_it) = (key, members);
    }

    /// Returns the slot of this key, and inserts the key if it is absent.
    fn place(&mut self, key: u64) -> usize {
        let places = self.places();
        if self.taken >= if places < SMALL { places / 2 } else { places / 8 * 7 } {
            self.resize((places * 2).max(MIN_CAPACITY_IDS));
        }
        let at = self.find(key);
        if self.key(at) == FREE {
            self.put(at, key, 0);
            self.taken += 1;
        }
        at
    }

    /// Returns the slot of this key, or the slot where it would be inserted.
    fn find(&self, key: u64) -> usize {
        let (mask, group) = (self.places() - 1, GROUP as u64);
        let mut at = (combine(key / group, 0) / group * group + key % group) as usize & mask;
        while self.key(at) != key && self.key(at) != FREE {
            at = (at + 1) & mask;
        }
        at
    }

    fn resize(&mut self, places: usize) {
        for group in std::mem::replace(&mut self.groups, vec![EMPTY; places / GROUP]) {
            for (key, members) in group.keys.into_iter().zip(group.members).filter(|(_, members)| *members != 0) {
                let at = self.find(key);
                self.put(at, key, members);
            }
        }
        self.last.1 = FREE;
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

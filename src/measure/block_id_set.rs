//! A set of ids, thirty-two neighbours to a place.
//!
//! Public traces number their blocks in the order of first appearance: the new ids of a prompt follow each other, and so
//! do those that a later one shares with it. Neighbours are then found with one look into memory, which is most of what
//! a large table costs, and take twelve bytes together; so does an id that has no neighbours.

use super::prefix_cache::mix;

/// Lowest bits of an id, by which neighbours differ; the others are its key.
const BITS: u32 = u32::BITS.ilog2();
/// Places of a group, next to each other in memory: neighbouring keys begin in the same group, so that the new ids of a
/// row are mostly where the row before has fetched them from memory.
const GROUP: usize = 8;
/// A table with fewer places is half free: a fuller one is slow to tell that a key is not there.
const SMALL: usize = 1 << 20;
/// No key.
const FREE: u64 = u64::MAX;
const MIN_CAPACITY_IDS: usize = 1 << 10;

/// Ids, in an open table with linear probing.
#[derive(Clone, Debug)]
pub(super) struct BlockIdSet {
    /// A power of two of places, of which at least an eighth is [`FREE`].
    groups: Vec<IdGroup>,
    taken: usize,
    len: usize,
    /// The place that was asked for last, and its key.
    last: (usize, u64),
}

/// Keys with what belongs to them, for one fetch from memory.
#[derive(Clone, Debug)]
struct IdGroup {
    keys: [u64; GROUP],
    /// Which of the ids with each key are in the set.
    members: [u32; GROUP],
}

const EMPTY: IdGroup = IdGroup { keys: [FREE; GROUP], members: [0; GROUP] };

/// Ids of one key that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdRun {
    /// What neighbours have in common.
    pub(super) key: u64,
    bit: u32,
    /// Ids, one at least.
    pub(super) length: usize,
}

impl IdRun {
    /// The first id, and the neighbours after it that follow each other; `None` without any.
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
    /// Ids.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Places that they take.
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Takes neighbours in that follow each other: how many of them were there before the first that is new.
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

    /// Ids of whose keys it is true.
    pub(super) fn count(&self, of: impl Fn(u64) -> bool) -> usize {
        let places = self.groups.iter().flat_map(|group| group.keys.iter().zip(&group.members));
        places.filter(|(key, _)| of(**key)).map(|(_, members)| members.count_ones() as usize).sum()
    }

    /// Keeps those of whose keys it is true, in the same table: another one would be as large again.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        (self.len, self.taken, self.last.1) = (0, 0, FREE);
        let places = self.places();
        let first = (0..places).find(|at| self.key(*at) == FREE).unwrap_or(0);
        // From a free place on, each goes to the first that is free from its own on: at most to where it was.
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

    /// The place that has this key, or gets it.
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

    /// The place that has this key, or would.
    fn find(&self, key: u64) -> usize {
        let (mask, group) = (self.places() - 1, GROUP as u64);
        let mut at = (mix(key / group, 0) / group * group + key % group) as usize & mask;
        while self.key(at) != key && self.key(at) != FREE {
            at = (at + 1) & mask;
        }
        at
    }

    /// Into a table of so many places.
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

    /// Whether it is new.
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

//! A set of ids, thirty-two neighbours to a place.
//!
//! Public traces number their blocks in the order of first appearance: the new ids of a prompt follow each other, and so
//! do those that a later one shares with it. Neighbours are then found with one look into memory, which is most of what
//! a large table costs, and take twelve bytes together; so does an id that has no neighbours.

use super::reuse::mixed;

/// Lowest bits of an id, by which neighbours differ; the others are its key.
const BITS: u32 = u32::BITS.ilog2();
/// No key.
const FREE: u64 = u64::MAX;
const LEAST: usize = 1 << 10;

/// Ids, in an open table with linear probing.
#[derive(Clone, Debug)]
pub(super) struct IdSet {
    /// The key of each place: a power of two of places, of which at least an eighth is [`FREE`].
    keys: Vec<u64>,
    /// Which of the ids with that key are in the set.
    members: Vec<u32>,
    taken: usize,
    len: usize,
    /// The place that was asked for last, and its key.
    last: (usize, u64),
}

impl Default for IdSet {
    fn default() -> Self {
        Self { keys: Vec::new(), members: Vec::new(), taken: 0, len: 0, last: (0, FREE) }
    }
}

impl IdSet {
    /// Ids.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Places that they take.
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Takes in the first id, and the neighbours after it that follow each other: how many all of them are, and how many
    /// were there before the first that is new.
    #[inline]
    pub(super) fn insert_run(&mut self, ids: &[u64]) -> (usize, usize) {
        let Some(first) = ids.first() else { return (0, 0) };
        let (key, bit) = (first >> BITS, (first & u64::from(u32::BITS - 1)) as u32);
        let most = ids.len().min((u32::BITS - bit) as usize);
        let mut run = 1;
        while run < most && ids[run] == first + run as u64 {
            run += 1;
        }
        if self.last.1 != key {
            self.last = (self.place(key), key);
        }
        let members = &mut self.members[self.last.0];
        let known = (!(*members >> bit)).trailing_zeros() as usize;
        let with = *members | u32::MAX >> (u32::BITS as usize - run) << bit;
        self.len += (with ^ *members).count_ones() as usize;
        *members = with;
        (run, known.min(run))
    }

    /// Keeps those of which it is true, in the same table: another one would be as large again.
    pub(super) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        (self.len, self.taken, self.last.1) = (0, 0, FREE);
        let places = self.keys.len();
        let first = self.keys.iter().position(|key| *key == FREE).unwrap_or(0);
        // From a free place on, each goes to the first that is free from its own on: at most to where it was.
        for at in (first..places).chain(0..first) {
            let key = std::mem::replace(&mut self.keys[at], FREE);
            let before = std::mem::take(&mut self.members[at]);
            let kept = (0..u32::BITS).filter(|bit| before >> bit & 1 == 1 && keep(key << BITS | u64::from(*bit)));
            let members = kept.fold(0_u32, |members, bit| members | 1 << bit);
            if members != 0 {
                let to = self.find(key);
                (self.keys[to], self.members[to]) = (key, members);
                self.len += members.count_ones() as usize;
                self.taken += 1;
            }
        }
    }

    /// The place that has this key, or gets it.
    fn place(&mut self, key: u64) -> usize {
        if self.taken * 8 >= self.keys.len() * 7 {
            self.resize((self.keys.len() * 2).max(LEAST));
        }
        let at = self.find(key);
        if self.keys[at] == FREE {
            self.keys[at] = key;
            self.taken += 1;
        }
        at
    }

    /// The place that has this key, or would.
    fn find(&self, key: u64) -> usize {
        let mask = self.keys.len() - 1;
        let mut at = mixed(key, 0) as usize & mask;
        while self.keys[at] != key && self.keys[at] != FREE {
            at = (at + 1) & mask;
        }
        at
    }

    /// Into a table of so many places.
    fn resize(&mut self, places: usize) {
        let keys = std::mem::replace(&mut self.keys, vec![FREE; places]);
        let members = std::mem::replace(&mut self.members, vec![0; places]);
        for (key, members) in keys.into_iter().zip(members).filter(|(_, members)| *members != 0) {
            let at = self.find(key);
            (self.keys[at], self.members[at]) = (key, members);
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
            let (mut set, mut other) = (IdSet::default(), HashSet::new());
            for id in &ids {
                prop_assert_eq!(insert(&mut set, *id), other.insert(*id));
            }
            let odd = |id: u64| id % 3 == 1;
            set.retain(odd);
            other.retain(|id| odd(*id));
            prop_assert_eq!(set.len(), other.len());
            for id in ids {
                prop_assert_eq!(insert(&mut set, id), other.insert(id));
            }
        }

        #[test]
        fn a_run_is_taken_in_as_its_ids_are_one_by_one(
            runs in proptest::collection::vec((prop_oneof![0..200_u64, u64::MAX - 90..=u64::MAX], 1..80_usize), 1..40),
        ) {
            let (mut set, mut other) = (IdSet::default(), HashSet::new());
            for (from, length) in runs {
                let ids: Vec<u64> = (from..=u64::MAX).take(length).collect();
                let mut rest = &ids[..];
                while !rest.is_empty() {
                    let (run, known) = set.insert_run(rest);
                    prop_assert!(run > 0 && known <= run);
                    let were_there: Vec<bool> = rest[..run].iter().map(|id| !other.insert(*id)).collect();
                    prop_assert_eq!(known, were_there.iter().take_while(|there| **there).count());
                    rest = &rest[run..];
                }
                prop_assert_eq!(set.len(), other.len());
            }
        }
    }

    /// Whether it is new.
    fn insert(set: &mut IdSet, id: u64) -> bool {
        set.insert_run(&[id]) == (1, 0)
    }

    #[test]
    fn neighbours_share_a_place_and_others_have_one_each() {
        let places = |distance: usize| {
            let mut set = IdSet::default();
            (0..320_000_u64).step_by(distance).for_each(|id| _ = insert(&mut set, id));
            (set.len(), set.taken())
        };
        assert_eq!([places(1), places(32)], [(320_000, 10_000), (10_000, 10_000)]);
    }
}

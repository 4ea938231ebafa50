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

    /// Whether it is new.
    #[inline]
    pub(super) fn insert(&mut self, id: u64) -> bool {
        let key = id >> BITS;
        if self.last.1 != key {
            self.last = (self.place(key), key);
        }
        let members = &mut self.members[self.last.0];
        let with = *members | 1 << (id & u64::from(u32::BITS - 1));
        let new = with != *members;
        *members = with;
        self.len += usize::from(new);
        new
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
                prop_assert_eq!(set.insert(*id), other.insert(*id));
            }
            let odd = |id: u64| id % 3 == 1;
            set.retain(odd);
            other.retain(|id| odd(*id));
            prop_assert_eq!(set.len(), other.len());
            for id in ids {
                prop_assert_eq!(set.insert(id), other.insert(id));
            }
        }
    }

    #[test]
    fn neighbours_share_a_place_and_others_have_one_each() {
        let places = |distance: usize| {
            let mut set = IdSet::default();
            (0..320_000_u64).step_by(distance).for_each(|id| _ = set.insert(id));
            (set.len(), set.taken())
        };
        assert_eq!([places(1), places(32)], [(320_000, 10_000), (10_000, 10_000)]);
    }
}

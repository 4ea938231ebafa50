//! A hash for tables of numbers that come in runs: ids of blocks in the order of their first appearance, lengths.
//!
//! Eight numbers that follow each other stand next to each other in the table, so that a run is found with few reads of
//! memory, which are most of what a large table costs. It is no guard against numbers that were chosen to collide.

use std::hash::{BuildHasher, Hasher};

use super::prefix_cache::mix;

/// Makes hashers that keep what is near each other near.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildLocalityHasher;

impl BuildHasher for BuildLocalityHasher {
    type Hasher = LocalityHasher;

    fn build_hasher(&self) -> LocalityHasher {
        LocalityHasher(0)
    }
}

/// The hash of one number.
#[derive(Debug)]
pub struct LocalityHasher(u64);

impl Hasher for LocalityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    /// A table takes the place from the lowest bits, and tells neighbours apart by the highest.
    fn write_u64(&mut self, number: u64) {
        let run = mix(number >> 3, 0);
        self.0 = (run << 3 | number & 7) ^ (number << 61);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_run_lies_together_and_other_numbers_apart() {
        let place = |number: u64| BuildLocalityHasher.hash_one(number);
        for number in [0, 8, 1 << 20, u64::MAX - 7] {
            assert!((0..8).all(|at| place(number + at) & 0xffff == place(number) & 0xffff | at), "{number}");
        }
        // Whatever their distance, some thousand numbers take nearly as many places as if they had been thrown.
        for shift in 3..52 {
            let places: HashSet<u64> = (0..4_096_u64).map(|at| place(at << shift) >> 3 & 0xffff).collect();
            assert!(places.len() > 3_800, "every 2^{shift}: {}", places.len());
        }
    }
}

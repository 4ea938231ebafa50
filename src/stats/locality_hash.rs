//! A hash for tables of numbers that occur in runs: block ids in order of first appearance, lengths.
//!
//! Eight consecutive numbers map to adjacent table entries, so a run needs few memory accesses; those dominate the
//! cost of a large table. The hash does not resist numbers chosen to collide.

use std::hash::{BuildHasher, Hasher};

use super::hash::combine;

/// Builds hashers that keep adjacent numbers adjacent.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildLocalityHasher;

impl BuildHasher for BuildLocalityHasher {
    type Hasher = LocalityHasher;

    fn build_hasher(&self) -> LocalityHasher {
        LocalityHasher(0)
    }
}

/// Hash of one number.
#[derive(Debug)]
pub struct LocalityHasher(u64);

impl Hasher for LocalityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    /// The table takes the position from the lowest bits, and distinguishes neighbours by the highest bits.
    fn write_u64(&mut self, number: u64) {
        let run = combine(number >> 3, 0);
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
        // At any stride, some thousand numbers take nearly as many positions as random ones.
        for shift in 3..52 {
            let places: HashSet<u64> = (0..4_096_u64).map(|at| place(at << shift) >> 3 & 0xffff).collect();
            assert!(places.len() > 3_800, "every 2^{shift}: {}", places.len());
        }
    }
}

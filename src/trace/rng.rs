//! Deterministic randomness: depends only on the seed, on every machine and in every version. Pure.

use std::hash::Hasher as _;

use fnv::FnvHasher;
use rand_pcg::Pcg64Mcg;

use crate::stats::hash::mix;

/// The random number generator of a seed.
pub fn rng(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::new(u128::from(mix(seed)) << 64 | u128::from(mix(!seed)))
}

/// Uniform number in [0, 1) for a row, equal in every process.
pub fn uniform(seed: u64, number: u64) -> f64 {
    (mix(seed ^ mix(number)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Hash of a name (FNV-1a with a finalizer), equal in every process.
pub fn name_hash(name: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(name.as_bytes());
    mix(hasher.finish())
}

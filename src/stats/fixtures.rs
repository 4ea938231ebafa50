//! Values that tests of several estimates share.

use super::hash::mix;

/// Independent numbers from 0 to 1.
pub(super) fn uniform(count: u64, seed: u64) -> Vec<f64> {
    (0..count).map(|n| mix(mix(seed) ^ n) as f64 / u64::MAX as f64).collect()
}

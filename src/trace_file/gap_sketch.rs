//! The gaps of one request as a mergeable sketch: an exponential histogram, as OpenTelemetry defines it.
//!
//! Bucket `i` counts the inter-token latencies in (b^i, b^(i+1)] nanoseconds, with b = 2^(2^-[`SCALE`]). Sketches merge by
//! adding the counts of equal buckets, so the quantiles of a fleet need no list of gaps. A gap of 0 counts as one of 1 ns.
//!
//! # Error
//! A value in bucket `i` is estimated as b^(i + ½). The estimate is off by at most a factor of √b, which is
//! [`MAX_RELATIVE_ERROR`].

use crate::measure::time::Gap;

/// Scale of the histogram: 32 buckets between a value and its double.
pub const SCALE: u32 = 5;
/// Largest relative error of a quantile: √b − 1.
pub const MAX_RELATIVE_ERROR: f64 = 0.010_889_3;

const BUCKETS_PER_OCTAVE: u32 = 1 << SCALE;

/// The bucket of a latency.
pub fn bucket(latency: Gap) -> i32 {
    let nanos = latency.as_nanos().max(1);
    // A power of two is the upper end of its bucket, and its logarithm is exact.
    let bucket = (nanos as f64).log2() * f64::from(BUCKETS_PER_OCTAVE);
    bucket.ceil() as i32 - 1
}

/// Counts latencies by bucket, in ascending order.
pub fn sketch(latencies: impl IntoIterator<Item = Gap>) -> Vec<(i32, u64)> {
    let mut buckets: Vec<i32> = latencies.into_iter().map(bucket).collect();
    buckets.sort_unstable();
    buckets.chunk_by(|one, next| one == next).map(|equal| (equal[0], equal.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_upper_end_and_an_estimate_is_off_by_less_than_the_stated_error() {
        for (nanos, expected) in [(0, -1), (1, -1), (2, 31), (3, 50), (1 << 20, 639), ((1 << 20) + 1, 640)] {
            assert_eq!(bucket(Gap::from_nanos(nanos)), expected, "{nanos}");
        }
        let base = 2_f64.powf(1.0 / 32.0);
        assert!((base.sqrt() - 1.0 - MAX_RELATIVE_ERROR).abs() < 1e-7, "{}", base.sqrt() - 1.0);
        for nanos in (1..10_000_u64).chain((1..60).map(|at| at * 987_654_321)) {
            let estimate = base.powf(f64::from(bucket(Gap::from_nanos(nanos))) + 0.5);
            let error = (estimate / nanos as f64).max(nanos as f64 / estimate) - 1.0;
            assert!(error <= MAX_RELATIVE_ERROR + 1e-6, "{nanos}: {error}");
        }
        let merged = sketch([5, 5, 0].map(Gap::from_nanos));
        assert_eq!(merged, [(-1, 1), (74, 2)]);
    }
}

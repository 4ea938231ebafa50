//! The gaps of one request as a mergeable sketch: an exponential histogram, as OpenTelemetry defines it.
//!
//! Bucket `i` counts the inter-token latencies in (b^i, b^(i+1)] nanoseconds, with b = 2^(2^-[`SCALE`]). Sketches merge by
//! adding the counts of equal buckets, so the quantiles of a fleet need no list of gaps. A gap of 0 counts as one of 1 ns.
//!
//! # Error
//! A value in bucket `i` is estimated as b^(i + ½). The estimate is off by at most a factor of √b, which is
//! [`MAX_RELATIVE_ERROR`].

use std::sync::LazyLock;

use crate::measure::time::Gap;

/// Scale of the histogram: 32 buckets between a value and its double.
pub const SCALE: u32 = 5;
/// Largest relative error of a quantile: √b − 1.
pub const MAX_RELATIVE_ERROR: f64 = 0.010_889_3;

const BUCKETS_PER_OCTAVE: usize = 1 << SCALE;
/// Equal parts of an octave, each shorter than a bucket: at most one bucket ends in a part.
const PARTS_PER_OCTAVE: usize = 2 * BUCKETS_PER_OCTAVE;

/// The buckets of one octave, whose values have their highest bit set. A logarithm takes eight times as long.
struct OctaveBuckets {
    /// 2^(63 + k/32) is the last value before bucket k; one more that no value exceeds.
    bounds: [u64; BUCKETS_PER_OCTAVE + 1],
    /// Bounds below each part.
    bounds_below: [u8; PARTS_PER_OCTAVE],
}

static OCTAVE: LazyLock<OctaveBuckets> = LazyLock::new(|| {
    let bound = |k: usize| (2_f64.powf(k as f64 / BUCKETS_PER_OCTAVE as f64) * 2_f64.powi(63)) as u64;
    let bounds = std::array::from_fn(|k| if k < BUCKETS_PER_OCTAVE { bound(k) } else { u64::MAX });
    let begin = |part: usize| ((PARTS_PER_OCTAVE + part) as u64) << (63 - SCALE - 1);
    let bounds_below = std::array::from_fn(|part| bounds.partition_point(|bound| *bound < begin(part)) as u8);
    OctaveBuckets { bounds, bounds_below }
});

/// The bucket of a latency.
pub fn bucket(latency: Gap) -> i32 {
    let nanos = latency.as_nanos().max(1);
    let octave = nanos.ilog2();
    let value = nanos << (63 - octave);
    let part = (value >> (63 - SCALE - 1)) as usize % PARTS_PER_OCTAVE;
    let below = usize::from(OCTAVE.bounds_below[part]);
    let passed = below + usize::from(value > OCTAVE.bounds[below]);
    (octave as usize * BUCKETS_PER_OCTAVE + passed) as i32 - 1
}

/// Counts latencies by bucket, in ascending order.
pub fn sketch(latencies: impl IntoIterator<Item = Gap>) -> Vec<(i32, u64)> {
    let buckets: Vec<i32> = latencies.into_iter().map(bucket).collect();
    let (Some(least), Some(greatest)) = (buckets.iter().min(), buckets.iter().max()) else { return Vec::new() };
    // At most 32 for each of 64 octaves, and few for one stream.
    let mut counts = vec![0; (greatest - least) as usize + 1];
    buckets.iter().for_each(|bucket| counts[(bucket - least) as usize] += 1);
    (*least..).zip(counts).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_upper_end_and_an_estimate_is_off_by_less_than_the_stated_error() {
        for (nanos, expected) in [(0, -1), (1, -1), (2, 31), (3, 50), (1 << 20, 639), ((1 << 20) + 1, 640)] {
            assert_eq!(bucket(Gap::from_nanos(nanos)), expected, "{nanos}");
        }
        // Beyond, the logarithm itself rounds a value next to a power of two.
        for nanos in (1..100_000_u64).chain((0..48).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let by_logarithm = ((nanos.max(1) as f64).log2() * 32.0).ceil() as i32 - 1;
            assert_eq!(bucket(Gap::from_nanos(nanos)), by_logarithm, "{nanos}");
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

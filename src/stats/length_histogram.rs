//! Lengths in tokens, counted by value. Percentiles are exact up to 131,071, and within 1 in 65,536 above.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::locality_hash::BuildLocalityHasher;
use super::samples::percentile;

/// Significant bits of a length.
const BITS: u32 = 17;
/// Significant bits of a duration: percentiles are within 1 in 8,192.
const TIME_BITS: u32 = 14;

/// Distribution of request lengths.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct LengthSummary {
    /// Requests with a known length.
    pub requests: u64,
    /// Sum of all lengths, in tokens.
    pub sum: u64,
    /// Mean length, in tokens.
    pub mean: f64,
    /// 25th percentile in tokens.
    #[serde(serialize_with = "plain_number")]
    pub p25: f64,
    /// 50th percentile in tokens, by the rule of [`crate::stats::samples`].
    #[serde(serialize_with = "plain_number")]
    pub p50: f64,
    /// 75th percentile in tokens.
    #[serde(serialize_with = "plain_number")]
    pub p75: f64,
    /// 90th percentile in tokens.
    #[serde(serialize_with = "plain_number")]
    pub p90: f64,
    /// 99th percentile in tokens.
    #[serde(serialize_with = "plain_number")]
    pub p99: f64,
    /// Smallest length, in tokens.
    pub min: u64,
    /// Largest length, in tokens.
    pub max: u64,
}

/// Serializes whole numbers without a fraction.
fn plain_number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && *value < 9e15 {
        serializer.serialize_u64(*value as u64)
    } else {
        value.serialize(serializer)
    }
}

/// Distribution of durations, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DurationSummary {
    /// Number of durations.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// 50th percentile.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

/// Counts of lengths.
#[derive(Clone, Debug)]
pub struct LengthHistogram {
    /// Significant bits to keep.
    bits: u32,
    counts: HashMap<u64, u64, BuildLocalityHasher>,
    requests: u64,
    sum: u64,
    bounds: Option<(u64, u64)>,
}

impl Default for LengthHistogram {
    fn default() -> Self {
        Self::with_bits(BITS)
    }
}

impl LengthHistogram {
    /// Creates a histogram for durations in nanoseconds, with percentiles within 1 in 8,192.
    pub fn of_times() -> Self {
        Self::with_bits(TIME_BITS)
    }

    fn with_bits(bits: u32) -> Self {
        Self { bits, counts: HashMap::default(), requests: 0, sum: 0, bounds: None }
    }

    /// Counts one length.
    pub fn take(&mut self, length: u64) {
        let drop = (u64::BITS - length.leading_zeros()).saturating_sub(self.bits);
        *self.counts.entry(length >> drop << drop).or_default() += 1;
        self.requests += 1;
        self.sum = self.sum.saturating_add(length);
        let (min, max) = self.bounds.unwrap_or((length, length));
        self.bounds = Some((min.min(length), max.max(length)));
    }

    /// Number of lengths.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Summarizes the lengths; `None` if there are none.
    pub fn distribution(&self) -> Option<LengthSummary> {
        let (min, max) = self.bounds?;
        let sorted = self.sorted();
        let nth = |n: u64| {
            let mut seen = 0;
            let at = sorted.iter().find(|(_, count)| {
                seen += count;
                seen > n
            });
            at.map_or(max, |(length, _)| *length) as f64
        };
        // A length without its lowest bits may be below the minimum.
        let (shortest, longest) = (min as f64, max as f64);
        let percentile = |percent| percentile(self.requests, percent, nth).unwrap_or_default().clamp(shortest, longest);
        Some(LengthSummary {
            requests: self.requests,
            sum: self.sum,
            mean: self.sum as f64 / self.requests as f64,
            p25: percentile(25.0),
            p50: percentile(50.0),
            p75: percentile(75.0),
            p90: percentile(90.0),
            p99: percentile(99.0),
            min,
            max,
        })
    }

    /// Summarizes durations in nanoseconds; `None` if there are none.
    pub fn times(&self) -> Option<DurationSummary> {
        let of = self.distribution()?;
        let millis = |nanos: f64| nanos / 1e6;
        Some(DurationSummary {
            count: of.requests,
            mean_ms: of.mean / 1e6,
            p50_ms: millis(of.p50),
            p90_ms: millis(of.p90),
            p99_ms: millis(of.p99),
            max_ms: millis(of.max as f64),
        })
    }

    /// Lengths and their counts, ascending.
    fn sorted(&self) -> Vec<(u64, u64)> {
        let mut sorted: Vec<(u64, u64)> = self.counts.iter().map(|(length, count)| (*length, *count)).collect();
        sorted.sort_unstable();
        sorted
    }

    /// KS distance: the largest difference of the two distribution functions. `None` if either histogram is empty.
    pub fn ks(&self, other: &Self) -> Option<f64> {
        if self.requests == 0 || other.requests == 0 {
            return None;
        }
        let (ours, theirs) = (self.sorted(), other.sorted());
        let (mut ours, mut theirs) = (ours.iter().peekable(), theirs.iter().peekable());
        let (mut below, mut below_theirs, mut most) = (0, 0, 0.0_f64);
        while let (Some((one, _)), Some((another, _))) = (ours.peek(), theirs.peek()) {
            let length = one.min(another);
            below += ours.next_if(|(at, _)| at == length).map_or(0, |(_, count)| *count);
            below_theirs += theirs.next_if(|(at, _)| at == length).map_or(0, |(_, count)| *count);
            let apart = below as f64 / self.requests as f64 - below_theirs as f64 / other.requests as f64;
            most = most.max(apart.abs());
        }
        Some(most)
    }

    /// Request counts per power of two (inclusive upper bound), from the first non-empty bucket to the last; zero has
    /// its own.
    pub fn histogram(&self) -> Vec<(u64, u64)> {
        let bin = |length: u64| match length {
            0 => 0,
            length => (u64::BITS - (length - 1).leading_zeros()) as usize + 1,
        };
        let mut bins = [0_u64; 66];
        self.counts.iter().for_each(|(length, count)| bins[bin(*length)] += count);
        let has = |bins: &[u64; 66]| (bins.iter().position(|n| *n > 0), bins.iter().rposition(|n| *n > 0));
        let (Some(first), Some(last)) = has(&bins) else { return Vec::new() };
        let edge = |bin: usize| if bin == 0 { 0 } else { 1_u64.checked_shl(bin as u32 - 1).unwrap_or(u64::MAX) };
        (first..=last).map(|bin| (edge(bin), bins[bin])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_interpolated_between_lengths() {
        let mut lengths = LengthHistogram::default();
        (1..=100).for_each(|length| lengths.take(length));
        let d = lengths.distribution().unwrap();
        assert_eq!((d.p50, d.min, d.max, d.sum), (50.5, 1, 100, 5050));
        assert!((d.p90 - 90.1).abs() < 1e-9 && (d.p99 - 99.01).abs() < 1e-9, "{d:?}");
        let document = serde_json::to_value(d).unwrap();
        assert_eq!((&document["p50"], &document["max"]), (&50.5.into(), &100.into()));
        lengths.take(u64::MAX);
        assert_eq!(lengths.distribution().unwrap().max, u64::MAX);
    }

    #[test]
    fn no_percentile_is_below_the_shortest_or_above_the_longest() {
        for length in [1_000_001, u64::MAX] {
            let mut lengths = LengthHistogram::default();
            lengths.take(length);
            let d = lengths.distribution().unwrap();
            assert_eq!(([d.min, d.max], [d.p50, d.p99]), ([length; 2], [length as f64; 2]));
        }
    }

    #[test]
    fn the_distance_of_two_distributions_is_where_they_are_furthest_apart() {
        let of = |lengths: &[u64]| {
            let mut all = LengthHistogram::default();
            lengths.iter().for_each(|length| all.take(*length));
            all
        };
        assert_eq!(of(&[1, 2, 3, 4]).ks(&of(&[4, 3, 2, 1])), Some(0.0));
        assert_eq!(of(&[1, 2]).ks(&of(&[3, 4])), Some(1.0));
        // Up to length 2: half of the first, all of the second.
        assert_eq!(of(&[1, 2, 3, 4]).ks(&of(&[1, 2])), Some(0.5));
        assert_eq!(of(&[1]).ks(&of(&[])), None);
    }

    #[test]
    fn a_histogram_counts_every_request_once() {
        let mut lengths = LengthHistogram::default();
        [0, 1, 2, 3, 4, 5, 8, 9].into_iter().for_each(|length| lengths.take(length));
        assert_eq!(lengths.histogram(), [(0, 1), (1, 1), (2, 1), (4, 2), (8, 2), (16, 1)]);
    }
}

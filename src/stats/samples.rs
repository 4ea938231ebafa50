//! Exact statistics over many values of one number.
//!
//! # Percentile rule
//! Of n values in ascending order, numbered from 0, percentile p is the value at position (n − 1) · p ÷ 100,
//! interpolated linearly between positions. This is definition 7 of Hyndman and Fan, *Sample Quantiles in Statistical
//! Packages* (1996). It is the default of numpy, and so the rule of AIPerf and vLLM's benchmark. The deviation is that
//! of the population (÷ n), also numpy's default. Every reported percentile of individual values follows this rule;
//! percentiles of histograms are limited by their buckets.
//!
//! # Memory
//! Values below 256 are counted, which takes at most 2 KiB. Values below 2³² (4.29 s in nanoseconds) take four bytes at
//! first. Every 2¹⁶ of them move to buckets by their upper 16 bits, which hold the lower 16. These take at most two
//! bytes each, and at most 64 KiB for all values of a bucket that are not equal. Larger values take eight bytes. All
//! lists have an eighth of spare capacity and are sorted in place.

use std::collections::BTreeMap;

use super::growing_list::push;
use super::sample_bucket::SampleBucket;

/// Percentile `percent` of `count` values by the module's rule; `nth` returns the value of a rank, from 0. `None` if
/// `count` is 0.
pub fn percentile(count: u64, percent: f64, nth: impl Fn(u64) -> f64) -> Option<f64> {
    let last = count.checked_sub(1)?;
    let place = (last as f64 * percent / 100.0).clamp(0.0, last as f64);
    let (rank, between) = (place as u64, place.fract());
    let below = nth(rank);
    Some(if between > 0.0 { below + (nth(rank + 1) - below) * between } else { below })
}

/// Maximum values in four bytes.
const MAX_SMALL: usize = 1 << 16;

/// Values in no order, or sorted.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Occurrences of 0, 1, 2, …
    tiny: Vec<u64>,
    /// Values below 2³². Empty in sorted values that have `buckets`.
    small: Vec<u32>,
    /// Values below 2³²: the lower halves by the upper one.
    buckets: BTreeMap<u16, SampleBucket>,
    large: Vec<u64>,
}

/// A value of its halves.
fn joined(upper: u16, lower: u16) -> u32 {
    u32::from(upper) << 16 | u32::from(lower)
}

impl Samples {
    /// Adds a value.
    pub fn push(&mut self, value: u64) {
        match (u8::try_from(value), u32::try_from(value)) {
            (Ok(tiny), _) => self.count(usize::from(tiny), 1),
            (_, Ok(small)) => self.push_small(small),
            _ => push(&mut self.large, value),
        }
    }

    fn push_small(&mut self, value: u32) {
        push(&mut self.small, value);
        if self.small.len() >= MAX_SMALL {
            self.split_small();
        }
    }

    /// Moves the values of four bytes to the buckets, in runs of one bucket.
    fn split_small(&mut self) {
        self.small.sort_unstable();
        for run in self.small.chunk_by(|a, b| a >> 16 == b >> 16) {
            let bucket = self.buckets.entry((run[0] >> 16) as u16).or_default();
            run.iter().for_each(|value| bucket.push(*value as u16));
        }
        self.small.clear();
    }

    fn count(&mut self, tiny: usize, times: u64) {
        if tiny >= self.tiny.len() {
            self.tiny.resize(tiny + 1, 0);
        }
        self.tiny[tiny] += times;
    }

    /// Adds all values of another list.
    pub fn extend(&mut self, other: &Self) {
        other.tiny.iter().enumerate().for_each(|(tiny, times)| self.count(tiny, *times));
        other.small.iter().for_each(|value| self.push_small(*value));
        for (upper, bucket) in &other.buckets {
            let ours = self.buckets.entry(*upper).or_default();
            bucket.for_each(|value, times| ours.push_times(value, times));
        }
        self.large.extend_from_slice(&other.large);
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        let counted = self.tiny.iter().sum::<u64>() + self.buckets.values().map(SampleBucket::len).sum::<u64>();
        counted as usize + self.small.len() + self.large.len()
    }

    /// Passes on each value and how often it occurs, or one after the other; in order if sorted.
    fn for_each(&self, mut take: impl FnMut(u64, u64)) {
        (0..).zip(&self.tiny).filter(|(_, times)| **times > 0).for_each(|(value, times)| take(value, *times));
        for (upper, bucket) in &self.buckets {
            bucket.for_each(|lower, times| take(joined(*upper, lower).into(), times));
        }
        self.small.iter().for_each(|value| take((*value).into(), 1));
        self.large.iter().for_each(|value| take(*value, 1));
    }

    /// Sum of all values.
    pub fn sum(&self) -> u128 {
        let mut sum = 0;
        self.for_each(|value, times| sum += u128::from(value) * u128::from(times));
        sum
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the values in bytes, spare capacity included.
    pub fn bytes(&self) -> usize {
        self.tiny.capacity() * size_of::<u64>()
            + self.small.capacity() * size_of::<u32>()
            + self.buckets.values().map(|bucket| size_of_val(bucket) + bucket.bytes()).sum::<usize>()
            + self.large.capacity() * size_of::<u64>()
    }

    /// Sorts the values; `None` if there are none.
    pub fn sorted(&mut self) -> Option<SortedSamples<'_>> {
        if self.buckets.is_empty() {
            self.small.sort_unstable();
        } else {
            self.split_small();
            self.buckets.values_mut().for_each(SampleBucket::sort);
        }
        self.large.sort_unstable();
        (!self.is_empty()).then_some(SortedSamples(self))
    }
}

/// At least one value, in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct SortedSamples<'a>(&'a Samples);

impl SortedSamples<'_> {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// Value of a rank, from 0; the largest value for ranks past the end.
    pub fn nth(&self, rank: u64) -> u64 {
        let Samples { tiny, small, buckets, large } = self.0;
        let mut rank = rank.min(self.count() - 1);
        for (value, times) in (0..).zip(tiny) {
            match rank.checked_sub(*times) {
                Some(beyond) => rank = beyond,
                None => return value,
            }
        }
        for (upper, bucket) in buckets {
            match rank.checked_sub(bucket.len()) {
                Some(beyond) => rank = beyond,
                None => return joined(*upper, bucket.nth(rank)).into(),
            }
        }
        let rank = rank as usize;
        small.get(rank).map_or_else(|| large[rank - small.len()], |value| u64::from(*value))
    }

    /// Smallest value.
    pub fn min(&self) -> u64 {
        self.nth(0)
    }

    /// Largest value.
    pub fn max(&self) -> u64 {
        self.nth(u64::MAX)
    }

    /// Percentile by the module's rule.
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(self.count(), percent, |rank| self.nth(rank) as f64).unwrap_or_default()
    }

    /// Number of values up to and including `limit`.
    pub fn up_to(&self, limit: u64) -> u64 {
        let Samples { tiny, small, buckets, large } = self.0;
        let tiny: u64 = (0..=limit).zip(tiny).map(|(_, times)| times).sum();
        let small = small.partition_point(|value| u64::from(*value) <= limit);
        let of_bucket = |(upper, bucket): (&u16, &SampleBucket)| match u32::try_from(limit) {
            Ok(limit) if limit >> 16 < u32::from(*upper) => 0,
            Ok(limit) if limit >> 16 == u32::from(*upper) => bucket.up_to(limit as u16),
            _ => bucket.len(),
        };
        let buckets: u64 = buckets.iter().map(of_bucket).sum();
        tiny + buckets + (small + large.partition_point(|value| *value <= limit)) as u64
    }

    /// Passes on each value in order and how often it occurs, or equal ones one after the other.
    pub fn for_each(&self, take: impl FnMut(u64, u64)) {
        self.0.for_each(take);
    }

    /// Sum of all values.
    pub fn sum(&self) -> u128 {
        self.0.sum()
    }

    /// Mean.
    pub fn mean(&self) -> f64 {
        self.sum() as f64 / self.count() as f64
    }

    /// Standard deviation of the population.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let mut squares = 0.0;
        self.for_each(|value, times| squares += (value as f64 - mean).powi(2) * times as f64);
        (squares / self.count() as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl IntoIterator<Item = u64>) -> Samples {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(value));
        samples
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        // numpy.percentile([15, 20, 35, 40, 50], [0, 5, 30, 40, 50, 90, 100])
        let mut five = samples([50, 15, 40, 35, 20]);
        let five = five.sorted().unwrap();
        let values = [0.0, 5.0, 30.0, 40.0, 50.0, 90.0, 100.0].map(|percent| five.percentile(percent));
        assert_eq!(values, [15.0, 16.0, 23.0, 29.0, 35.0, 46.0, 50.0]);
        assert_eq!(percentile(1, 99.9, |_| 7.0), Some(7.0));
        assert_eq!(percentile(0, 50.0, |_| 7.0), None);
    }

    #[test]
    fn mean_and_deviation_are_those_of_all_values() {
        // numpy.std([2, 4, 4, 4, 5, 5, 7, 9]) is 2.
        let mut eight = samples([9, 2, 4, 7, 4, 5, 4, 5]);
        let eight = eight.sorted().unwrap();
        assert_eq!((eight.mean(), eight.deviation(), eight.sum()), (5.0, 2.0, 40));
        assert_eq!((eight.min(), eight.max(), eight.up_to(4), eight.up_to(100)), (2, 9, 4, 8));
        assert!(samples([]).sorted().is_none());
    }

    #[test]
    fn values_of_all_sizes_are_one_list() {
        let mut mixed = samples([u64::MAX, 1, 256, 1 << 32, 255, u64::from(u32::MAX)]);
        mixed.extend(&samples([2]));
        let sorted = mixed.sorted().unwrap();
        let all: Vec<u64> = (0..7).map(|rank| sorted.nth(rank)).collect();
        assert_eq!(all, [1, 2, 255, 256, u64::from(u32::MAX), 1 << 32, u64::MAX]);
        let up_to = [0, 2, 255, 256, u64::from(u32::MAX), 1 << 32].map(|limit| sorted.up_to(limit));
        assert_eq!(up_to, [0, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn ten_million_gaps_take_at_most_24_megabytes_and_6_where_they_lie_close_together() {
        let gaps = |range: u64| samples((0..10_000_000).map(|gap| 18_000_000 + gap * 997 % range)).bytes();
        let (apart, close, equal) = (gaps(500_000_000), gaps(5_000_000), gaps(1));
        assert!(apart <= 24_000_000 && close <= 6_000_000 && equal <= 400_000, "{apart}, {close}, {equal}");
    }

    #[test]
    fn many_values_have_the_ranks_of_a_sorted_list() {
        // A fixed sequence over all sizes; a third of it shares its upper bits, and a part of that is one value.
        let close = |n: u64| 20_000_000 + if n.is_multiple_of(2) { n % 40_000 } else { 7 };
        let far = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (27 + n % 30);
        let values = || (0..300_000u64).map(|n| if n % 3 == 0 { close(n / 3) } else { far(n) });
        let mut expected: Vec<u64> = values().collect();
        expected.sort_unstable();
        let mut many = samples(values().take(100_000));
        many.extend(&samples(values().skip(100_000)));
        let sorted = many.sorted().unwrap();
        assert_eq!(sorted.count(), 300_000);
        for rank in (0..300_000).step_by(997) {
            assert_eq!(sorted.nth(rank), expected[rank as usize], "{rank}");
            let limit = expected[rank as usize];
            assert_eq!(sorted.up_to(limit), expected.partition_point(|value| *value <= limit) as u64, "{limit}");
        }
        assert_eq!(sorted.sum(), expected.iter().map(|value| u128::from(*value)).sum());
    }
}

//! Exact statistics over many values of one number.
//!
//! # Percentile rule
//! Of n values in ascending order, numbered from 0, percentile p is the value at position (n − 1) · p ÷ 100,
//! interpolated linearly between positions. This is definition 7 of Hyndman and Fan, *Sample Quantiles in Statistical
//! Packages* (1996), the default of numpy, and so the rule of AIPerf and vLLM's benchmark. The deviation is that of
//! the population (÷ n), also numpy's default. Every reported percentile of individual values follows this rule;
//! percentiles of histograms are limited by their buckets.
//!
//! # Memory
//! Values below 256 are counted, which takes at most 2 KiB. Values below 2³² (4.29 s in nanoseconds) take four bytes,
//! larger ones eight, plus an eighth of spare capacity. Values are sorted in place.

/// Percentile `percent` of `count` values by the module's rule; `nth` returns the value of a rank, from 0. `None` if
/// `count` is 0.
pub fn percentile(count: u64, percent: f64, nth: impl Fn(u64) -> f64) -> Option<f64> {
    let last = count.checked_sub(1)?;
    let place = (last as f64 * percent / 100.0).clamp(0.0, last as f64);
    let (rank, between) = (place as u64, place.fract());
    let below = nth(rank);
    Some(if between > 0.0 { below + (nth(rank + 1) - below) * between } else { below })
}

/// Appends to a list of unpredictable length. Capacity grows by an eighth: a `Vec` would double, and could waste half
/// a gigabyte. The allocator moves a large list by remapping its pages, without a copy.
pub fn push<T>(list: &mut Vec<T>, element: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(64));
    }
    list.push(element);
}

/// Values in insertion order, or sorted.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Occurrences of 0, 1, 2, …
    tiny: Vec<u64>,
    small: Vec<u32>,
    large: Vec<u64>,
}

impl Samples {
    /// Adds a value.
    pub fn push(&mut self, value: u64) {
        match (u8::try_from(value), u32::try_from(value)) {
            (Ok(tiny), _) => self.count(usize::from(tiny), 1),
            (_, Ok(small)) => push(&mut self.small, small),
            _ => push(&mut self.large, value),
        }
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
        self.small.extend_from_slice(&other.small);
        self.large.extend_from_slice(&other.large);
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.tiny.iter().sum::<u64>() as usize + self.small.len() + self.large.len()
    }

    /// Sum of all values.
    pub fn sum(&self) -> u128 {
        self.values().map(u128::from).sum()
    }

    fn values(&self) -> impl Iterator<Item = u64> {
        let Self { tiny, small, large } = self;
        let tiny = (0..).zip(tiny).flat_map(|(value, times)| std::iter::repeat_n(value, *times as usize));
        tiny.chain(small.iter().map(|value| u64::from(*value))).chain(large.iter().copied())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the values in bytes, spare capacity included.
    pub fn bytes(&self) -> usize {
        self.tiny.capacity() * size_of::<u64>()
            + self.small.capacity() * size_of::<u32>()
            + self.large.capacity() * size_of::<u64>()
    }

    /// Sorts the values; `None` if there are none.
    pub fn sorted(&mut self) -> Option<SortedSamples<'_>> {
        self.small.sort_unstable();
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
        let Samples { tiny, small, large } = self.0;
        let mut rank = rank.min(self.count() - 1);
        for (value, times) in (0..).zip(tiny) {
            match rank.checked_sub(*times) {
                Some(beyond) => rank = beyond,
                None => return value,
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
        let Samples { tiny, small, large } = self.0;
        let tiny: u64 = (0..=limit).zip(tiny).map(|(_, times)| times).sum();
        let small = small.partition_point(|value| u64::from(*value) <= limit);
        tiny + (small + large.partition_point(|value| *value <= limit)) as u64
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
        (self.0.values().map(|value| (value as f64 - mean).powi(2)).sum::<f64>() / self.count() as f64).sqrt()
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
    fn ten_million_gaps_take_at_most_67_megabytes() {
        let gaps = samples((0..10_000_000).map(|gap| 18_000_000 + gap % 5_000_000));
        assert!(gaps.bytes() <= 67_108_864, "{}", gaps.bytes());
    }
}

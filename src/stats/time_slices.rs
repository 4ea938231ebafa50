//! Values of one metric, cut into slices of time.
//!
//! A bootstrap needs no single values: the sums and counts of a few hundred slices carry all that it resamples.

use super::samples::percentile;

/// Blocks of a run; [`super::bootstrap`] explains the number.
pub(super) const BLOCKS: usize = 12;
/// Most slices of a run: 20 for each block, so that blocks can begin at many places.
pub(super) const MAX_SLICES: usize = 20 * BLOCKS;

/// Which of `parts` equal parts of the span from `first` to `last`, both included, has `at`.
pub fn equal_part(at: u64, (first, last): (u64, u64), parts: usize) -> usize {
    (u128::from(at - first) * parts as u128 / (u128::from(last - first) + 1)) as usize
}

/// Number of slices that `parts` values or finer slices allow: a multiple of [`BLOCKS`], 0 if there are too few.
pub(super) fn slice_count(parts: usize) -> usize {
    (parts / BLOCKS * BLOCKS).min(MAX_SLICES)
}

/// Sums `parts` into slices of (nearly) equal numbers of parts.
pub(super) fn regroup(parts: &[f64]) -> Vec<f64> {
    let slices = slice_count(parts.len());
    (0..slices).map(|n| parts[n * parts.len() / slices..(n + 1) * parts.len() / slices].iter().sum()).collect()
}

/// Values of one metric whose slice of time is known.
pub trait SlicedValues {
    /// Number of values.
    fn count(&self) -> u64;
    /// Value of a rank, from 0.
    fn nth(&self, rank: u64) -> f64;
    /// Number of values in each slice.
    fn counts(&self) -> &[f64];
    /// Sum of the values in each slice.
    fn sums(&self) -> &[f64];
    /// For each cut, the number of values above it in each slice. Cuts are ascending.
    fn counts_above(&self, cuts: &[f64]) -> Vec<Vec<f64>>;
    /// Variance of all values.
    fn variance(&self) -> f64;

    /// Percentile by the rule of [`super::samples`]; `None` without values.
    fn percentile(&self, percent: f64) -> Option<f64> {
        percentile(self.count(), percent, |rank| self.nth(rank))
    }
}

/// Single values, at most some millions; for more, see [`super::slice_histogram`].
#[derive(Clone, Debug)]
pub struct ValueSlices {
    /// Values with the number of their slice.
    values: Vec<(u16, f64)>,
    sorted: Vec<f64>,
    counts: Vec<f64>,
    sums: Vec<f64>,
}

impl ValueSlices {
    /// Cuts values in the order of their times into slices of equal counts.
    pub fn of_values(values: &[f64]) -> Self {
        let end = values.len() as u64;
        Self::of_positions((0..).zip(values.iter().copied()), end)
    }

    /// Cuts (position, value) pairs into slices of equal spans between position 0 and `end`. A position is a time, or
    /// a row of the plan: rows of one plan pair two runs, even if some requests failed.
    pub fn of_positions(positions: impl IntoIterator<Item = (u64, f64)>, end: u64) -> Self {
        let positions: Vec<(u64, f64)> = positions.into_iter().collect();
        let slices = slice_count(positions.len());
        let slice = |position: u64| {
            let slice = u128::from(position) * slices as u128 / u128::from(end.max(1));
            (slice as usize).min(slices.saturating_sub(1)) as u16
        };
        let values: Vec<(u16, f64)> = positions.into_iter().map(|(position, value)| (slice(position), value)).collect();
        let mut sorted: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (mut counts, mut sums) = (vec![0.0; slices], vec![0.0; slices]);
        for (slice, value) in values.iter().filter(|_| slices > 0) {
            counts[usize::from(*slice)] += 1.0;
            sums[usize::from(*slice)] += value;
        }
        Self { values, sorted, counts, sums }
    }
}

impl SlicedValues for ValueSlices {
    fn count(&self) -> u64 {
        self.sorted.len() as u64
    }

    fn nth(&self, rank: u64) -> f64 {
        self.sorted.get(rank as usize).copied().unwrap_or_default()
    }

    fn counts(&self) -> &[f64] {
        &self.counts
    }

    fn sums(&self) -> &[f64] {
        &self.sums
    }

    fn counts_above(&self, cuts: &[f64]) -> Vec<Vec<f64>> {
        let slices = self.counts.len();
        // Values between each pair of cuts first; one search per value serves all cuts.
        let mut above = vec![vec![0.0; slices]; cuts.len()];
        for (slice, value) in self.values.iter().filter(|_| slices > 0) {
            if let Some(highest) = cuts.partition_point(|cut| cut < value).checked_sub(1) {
                above[highest][usize::from(*slice)] += 1.0;
            }
        }
        for cut in (1..cuts.len()).rev() {
            let (lower, higher) = above.split_at_mut(cut);
            lower[cut - 1].iter_mut().zip(&higher[0]).for_each(|(lower, higher)| *lower += higher);
        }
        above
    }

    fn variance(&self) -> f64 {
        let count = self.sorted.len().max(1) as f64;
        let mean = self.sorted.iter().sum::<f64>() / count;
        self.sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_equal_counts_and_their_sums() {
        let values: Vec<f64> = (0..500).map(f64::from).collect();
        let slices = ValueSlices::of_values(&values);
        assert_eq!((slices.counts().len(), slices.count()), (240, 500));
        assert!(slices.counts().iter().all(|count| [2.0, 3.0].contains(count)));
        // 0, 1 and 2 make the first slice: 2 · 240 ÷ 500 is below 1.
        assert_eq!((slices.sums()[0], slices.sums().iter().sum::<f64>()), (3.0, 124_750.0));
        assert_eq!(slices.variance(), (500.0 * 500.0 - 1.0) / 12.0);
        assert_eq!(slices.percentile(50.0), Some(249.5));
    }

    #[test]
    fn values_above_each_cut_are_counted_by_slice() {
        let values: Vec<f64> = (0..24).map(|n| f64::from(n % 4)).collect();
        let above = ValueSlices::of_values(&values).counts_above(&[-1.0, 0.0, 2.0, 3.0]);
        let pattern = |even: f64, odd: f64| [even, odd].repeat(12);
        // One value in each slice.
        assert_eq!(above[0], vec![1.0; 24]);
        assert_eq!(above[1], [0.0, 1.0, 1.0, 1.0].repeat(6));
        assert_eq!(above[2], [0.0, 0.0, 0.0, 1.0].repeat(6));
        assert_eq!(above[3], pattern(0.0, 0.0));
    }

    #[test]
    fn rows_that_failed_leave_the_others_in_their_slices() {
        let all = ValueSlices::of_positions((0..2_400).map(|row| (row, 1.0)), 2_400);
        let some = ValueSlices::of_positions((0..2_400).filter(|row| row / 10 != 7).map(|row| (row, 1.0)), 2_400);
        assert_eq!((all.counts()[7], some.counts()[7]), (10.0, 0.0));
        assert_eq!(all.counts()[8..], some.counts()[8..]);
    }

    #[test]
    fn few_values_have_no_slices() {
        for count in 0..12 {
            let few = ValueSlices::of_values(&vec![1.0; count]);
            assert_eq!((few.counts().len(), few.count()), (0, count as u64));
            assert_eq!(few.counts_above(&[0.0]), [Vec::<f64>::new()]);
        }
        assert_eq!(regroup(&[1.0; 11]), Vec::<f64>::new());
        assert_eq!(regroup(&[1.0; 30]).iter().sum::<f64>(), 30.0);
        assert_eq!(regroup(&[1.0; 1_000]).len(), 240);
    }
}

//! Values by the thousand million, counted in slices of time: gaps between tokens.
//!
//! # Layout
//! A slice counts values below 2,048 one by one and larger ones in bins of 1 in 1,024 of their value, the layout of
//! HdrHistogram. Slices begin at 1 ms. Where a run outgrows them, two neighbors become one. So a histogram has at most
//! 480 slices, whatever the run lasts and in whatever order values come. Two histograms can be added.
//!
//! # Memory
//! Four bytes a bin from 0 to the largest value of a slice: for gaps below one second 80 KiB a slice, 40 MB a run.

use super::time_slices::{MAX_SLICES, SlicedValues, slice_count};

/// Bits of a value that select its bin.
const BITS: u32 = 10;
/// First length of a slice in nanoseconds, a power of two.
const FIRST_SLICE_NANOS: u64 = 1 << 20;
/// Slices after which neighbors are joined: the joined ones still suffice.
const MAX_FINE_SLICES: usize = 2 * MAX_SLICES;

/// Number of the bin of a value.
fn bin(value: u64) -> usize {
    let drop = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    (u64::from(drop) << BITS) as usize + (value >> drop) as usize
}

/// Lowest value of a bin and the width of the bin.
fn bin_bounds(bin: usize) -> (u64, u64) {
    let drop = (bin >> BITS).saturating_sub(1) as u32;
    (((bin - ((drop as usize) << BITS)) as u64) << drop, 1 << drop)
}

/// Accumulates (time, value) pairs.
#[derive(Clone, Debug)]
pub struct SliceHistogram {
    slice_nanos: u64,
    slices: Vec<SliceBins>,
}

#[derive(Clone, Debug, Default)]
struct SliceBins {
    counts: Vec<u32>,
    count: u64,
    /// Whole numbers: their sum is the same in every order.
    sum: u128,
    squares: u128,
}

impl Default for SliceHistogram {
    fn default() -> Self {
        Self { slice_nanos: FIRST_SLICE_NANOS, slices: Vec::new() }
    }
}

impl SliceHistogram {
    /// Adds a value at a time in nanoseconds since the start of the run.
    pub fn push(&mut self, at_nanos: u64, value: u64) {
        while at_nanos / self.slice_nanos >= MAX_FINE_SLICES as u64 {
            self.join_neighbors();
        }
        let slice = (at_nanos / self.slice_nanos) as usize;
        if slice >= self.slices.len() {
            self.slices.resize_with(slice + 1, SliceBins::default);
        }
        self.slices[slice].add(value);
    }

    /// Adds all values of another histogram of the same run.
    pub fn extend(&mut self, mut other: Self) {
        while self.slice_nanos < other.slice_nanos {
            self.join_neighbors();
        }
        while other.slice_nanos < self.slice_nanos {
            other.join_neighbors();
        }
        if other.slices.len() > self.slices.len() {
            self.slices.resize_with(other.slices.len(), SliceBins::default);
        }
        self.slices.iter_mut().zip(&other.slices).for_each(|(ours, theirs)| ours.extend(theirs));
    }

    fn join_neighbors(&mut self) {
        self.slice_nanos = self.slice_nanos.saturating_mul(2);
        let fine = std::mem::take(&mut self.slices);
        let mut fine = fine.into_iter();
        while let Some(mut first) = fine.next() {
            fine.next().into_iter().for_each(|second| first.extend(&second));
            self.slices.push(first);
        }
    }

    /// Joins the slices to at most `most` columns of equal length, from the first value on.
    pub fn columns(&self, most: usize) -> HistogramColumns {
        let used = |slice: &SliceBins| slice.count > 0;
        let last = self.slices.iter().rposition(used).map_or(0, |last| last + 1);
        let first = self.slices.iter().position(used).unwrap_or(0);
        let joined = (last - first).div_ceil(most.max(1)).max(1);
        let column = |slices: &[SliceBins]| {
            let mut column = SliceBins::default();
            slices.iter().for_each(|slice| column.extend(slice));
            HistogramColumn(column)
        };
        HistogramColumns {
            from_nanos: first as u64 * self.slice_nanos,
            column_nanos: self.slice_nanos.saturating_mul(joined as u64),
            columns: self.slices[first..last].chunks(joined).map(column).collect(),
        }
    }

    /// Ends the run: slices of equal lengths from the first value to the last.
    pub fn finish(self) -> HistogramSlices {
        let mut fine = self.slices;
        let used = |slice: &SliceBins| slice.count > 0;
        fine.truncate(fine.iter().rposition(used).map_or(0, |last| last + 1));
        fine.drain(..fine.iter().position(used).unwrap_or_default());
        let (count, mut all) = (slice_count(fine.len()), SliceBins::default());
        fine.iter().for_each(|slice| all.extend(slice));
        let length = fine.len();
        let mut slices: Vec<SliceBins> = std::iter::repeat_with(SliceBins::default).take(count).collect();
        if count > 0 {
            let target = |n: usize| ((n + 1) * count).div_ceil(length) - 1;
            fine.into_iter().enumerate().for_each(|(n, slice)| slices[target(n)].extend(&slice));
        }
        let counts = slices.iter().map(|slice| slice.count as f64).collect();
        let sums = slices.iter().map(|slice| slice.sum as f64).collect();
        let up_to = all.counts.iter().scan(0_u64, |sum, count| {
            *sum += u64::from(*count);
            Some(*sum)
        });
        HistogramSlices { up_to: up_to.collect(), all, slices, counts, sums }
    }
}

impl SliceBins {
    fn add(&mut self, value: u64) {
        let bin = bin(value);
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] = self.counts[bin].saturating_add(1);
        self.count += 1;
        let value = u128::from(value);
        self.sum += value;
        self.squares = self.squares.saturating_add(value * value);
    }

    fn extend(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours = ours.saturating_add(*theirs));
        self.count += other.count;
        self.sum += other.sum;
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// For each ascending cut, the number of values above it. Values are even within their bin.
    fn above(&self, cuts: &[f64]) -> Vec<f64> {
        let mut above = vec![0.0; cuts.len()];
        let (mut cut, mut seen) = (cuts.len(), 0.0);
        for (bin, count) in self.counts.iter().enumerate().rev() {
            let (low, width) = bin_bounds(bin);
            let (low, count) = (low as f64, f64::from(*count));
            while cut > 0 && cuts[cut - 1] >= low {
                let share =
                    if width == 1 { 0.0 } else { ((low + width as f64 - cuts[cut - 1]) / width as f64).max(0.0) };
                cut -= 1;
                above[cut] = seen + count * share;
            }
            seen += count;
        }
        above[..cut].fill(seen);
        above
    }
}

/// Columns of equal length in time.
#[derive(Clone, Debug, Default)]
pub struct HistogramColumns {
    /// Start of the first column.
    pub from_nanos: u64,
    /// Length of a column.
    pub column_nanos: u64,
    /// The columns.
    pub columns: Vec<HistogramColumn>,
}

/// The values of one column.
#[derive(Clone, Debug)]
pub struct HistogramColumn(SliceBins);

impl HistogramColumn {
    /// Number of values.
    pub const fn count(&self) -> u64 {
        self.0.count
    }

    /// Percentile, to the width of a bin; `None` without values.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (self.count().checked_sub(1)? as f64 * percent / 100.0).round() as u64;
        let mut before = 0;
        let bin = self.0.counts.iter().position(|count| {
            before += u64::from(*count);
            before > rank
        });
        bin.map(|bin| middle(bin_bounds(bin)))
    }

    /// Middle and number of values of each bin that has any, ascending.
    pub fn bins(&self) -> impl Iterator<Item = (f64, u32)> {
        let counts = self.0.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(bin, count)| (middle(bin_bounds(bin)), *count))
    }
}

fn middle((low, width): (u64, u64)) -> f64 {
    low as f64 + (width - 1) as f64 / 2.0
}

/// The slices of a finished run.
#[derive(Clone, Debug)]
pub struct HistogramSlices {
    all: SliceBins,
    /// Values up to and including each bin.
    up_to: Vec<u64>,
    slices: Vec<SliceBins>,
    counts: Vec<f64>,
    sums: Vec<f64>,
}

impl SlicedValues for HistogramSlices {
    fn count(&self) -> u64 {
        self.up_to.last().copied().unwrap_or_default()
    }

    /// Within 1 in 2,048 of the exact value.
    fn nth(&self, rank: u64) -> f64 {
        let bin = self.up_to.partition_point(|up_to| *up_to <= rank).min(self.up_to.len().saturating_sub(1));
        let (low, width) = bin_bounds(bin);
        let before = bin.checked_sub(1).map_or(0, |before| self.up_to[before]);
        let inside = self.all.counts.get(bin).copied().unwrap_or(1).max(1);
        match width {
            1 => low as f64,
            width => low as f64 + width as f64 * ((rank.saturating_sub(before)) as f64 + 0.5) / f64::from(inside),
        }
    }

    fn counts(&self) -> &[f64] {
        &self.counts
    }

    fn sums(&self) -> &[f64] {
        &self.sums
    }

    fn counts_above(&self, cuts: &[f64]) -> Vec<Vec<f64>> {
        let by_slice: Vec<Vec<f64>> = self.slices.iter().map(|slice| slice.above(cuts)).collect();
        (0..cuts.len()).map(|cut| by_slice.iter().map(|slice| slice[cut]).collect()).collect()
    }

    fn variance(&self) -> f64 {
        let count = self.all.count.max(1) as f64;
        (self.all.squares as f64 / count - (self.all.sum as f64 / count).powi(2)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::time_slices::ValueSlices;
    use super::*;

    #[test]
    fn bins_are_exact_below_2_048_and_within_a_thousandth_above() {
        for value in [0, 1, 1_023, 1_024, 2_047, 2_048, 20_000_000, u64::MAX] {
            let (low, width) = bin_bounds(bin(value));
            assert!(low <= value && value - low < width, "{value}: {low} {width}");
            assert!(width == 1 || width <= low / 1_024, "{value}: {width}");
        }
        assert_eq!((bin(2_047), bin(2_048), bin(2_049), bin(2_050)), (2_047, 2_048, 2_048, 2_049));
    }

    #[test]
    fn a_run_of_any_length_has_240_slices_of_equal_lengths() {
        for seconds in [1, 60, 3_600, 1_000_000] {
            let mut histogram = SliceHistogram::default();
            (0..100_000_u64).for_each(|n| histogram.push(n * seconds * 10_000, n % 50));
            let slices = histogram.finish();
            assert_eq!((slices.counts().len(), slices.count()), (240, 100_000));
            let (least, most) = slices.counts().iter().fold((f64::MAX, 0.0_f64), |(a, b), n| (a.min(*n), b.max(*n)));
            assert!(most <= 2.0 * least + 2.0, "{seconds}: {least} to {most}");
            assert_eq!(slices.sums().iter().sum::<f64>(), 2_450_000.0);
        }
    }

    #[test]
    fn shards_in_any_order_add_up_to_the_whole() {
        let value = |n: u64| (n * n) % 30_000_001;
        let (mut whole, mut early, mut late) =
            (SliceHistogram::default(), SliceHistogram::default(), SliceHistogram::default());
        for n in (0..20_000_u64).rev() {
            whole.push(n * 1_000_000, value(n));
            (if n < 5_000 { &mut early } else { &mut late }).push(n * 1_000_000, value(n));
        }
        early.extend(late);
        let (whole, shards) = (whole.finish(), early.finish());
        assert_eq!((whole.counts(), whole.sums()), (shards.counts(), shards.sums()));
        assert_eq!(whole.counts_above(&[1e7, 2e7]), shards.counts_above(&[1e7, 2e7]));
    }

    #[test]
    fn sums_do_not_depend_on_the_order_of_values() {
        // 2⁵³ + 1 is no double, so a sum of doubles loses a 1 that comes after 2⁵³.
        let of = |values: [u64; 3]| {
            let mut histogram = SliceHistogram::default();
            values.into_iter().for_each(|value| histogram.push(0, value));
            // Fewer than a dozen fine slices make none.
            histogram.push(11 * FIRST_SLICE_NANOS, 0);
            let slices = histogram.finish();
            (slices.sums().to_vec(), slices.variance())
        };
        assert_eq!(of([1 << 53, 1, 1]), of([1, 1, 1 << 53]));
        assert_eq!(of([1 << 53, 1, 1]).0[0], 9_007_199_254_740_994.0);
    }

    #[test]
    fn percentiles_and_counts_are_those_of_the_single_values() {
        let values: Vec<f64> = (0..48_000_u64).map(|n| ((n * 7_919) % 40_000_003) as f64).collect();
        let mut histogram = SliceHistogram::default();
        (0..).zip(&values).for_each(|(n, value)| histogram.push(n * 1_000_000, *value as u64));
        let (counted, single) = (histogram.finish(), ValueSlices::of_values(&values));
        for percent in [0.0, 1.0, 50.0, 99.0, 100.0] {
            let (a, b) = (counted.percentile(percent).unwrap(), single.percentile(percent).unwrap());
            assert!((a - b).abs() <= b / 1_024.0 + 1.0, "p{percent}: {a} is not {b}");
        }
        assert!((counted.variance() / single.variance() - 1.0).abs() < 1e-9);
        let total = |above: Vec<Vec<f64>>| above.iter().map(|cut| cut.iter().sum::<f64>()).collect::<Vec<f64>>();
        let cuts = [-1.0, 1e7, 3.9e7, 1e9];
        for (a, b) in total(counted.counts_above(&cuts)).into_iter().zip(total(single.counts_above(&cuts))) {
            assert!((a - b).abs() <= 48.0, "{a} is not {b}");
        }
    }

    #[test]
    fn columns_are_equal_parts_of_the_time_with_values() {
        let mut histogram = SliceHistogram::default();
        (0..1_000_u64).for_each(|n| histogram.push((500 + n) * FIRST_SLICE_NANOS / 10, n));
        let columns = histogram.columns(10);
        assert_eq!((columns.from_nanos, columns.column_nanos), (50 * FIRST_SLICE_NANOS, 10 * FIRST_SLICE_NANOS));
        assert_eq!(columns.columns.iter().map(HistogramColumn::count).collect::<Vec<_>>(), [100; 10]);
        assert_eq!(
            (columns.columns[3].percentile(0.0), columns.columns[3].percentile(50.0)),
            (Some(300.0), Some(350.0))
        );
        assert_eq!(columns.columns[9].bins().last(), Some((999.0, 1)));
        assert!(SliceHistogram::default().columns(10).columns.is_empty());
        histogram.push(u64::MAX, u64::MAX);
        assert!(histogram.columns(120).columns.len() <= 120);
    }

    #[test]
    fn hostile_times_and_values_are_counted() {
        let mut histogram = SliceHistogram::default();
        histogram.push(0, u64::MAX);
        histogram.push(u64::MAX, 0);
        let slices = histogram.finish();
        assert_eq!((slices.count(), slices.percentile(0.0)), (2, Some(0.0)));
        assert!(slices.counts().len() <= 240 && slices.variance().is_finite());
        let empty = SliceHistogram::default().finish();
        assert_eq!((empty.count(), empty.percentile(50.0), empty.counts().len()), (0, None, 0));
        assert_eq!((empty.nth(0), empty.variance(), empty.counts_above(&[1.0])), (0.0, 0.0, vec![vec![]]));
    }
}

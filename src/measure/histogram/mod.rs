//! A mergeable histogram with explicit and exponential buckets from one set of counts.
//!
//! # Cells
//! A histogram counts in *cells*. They refine both the base-2 exponential buckets of scale (Prometheus: schema) 3, each
//! 9.05 % wide, and a metric's own explicit bounds. No cell straddles an edge of either kind, so both views are exact
//! sums of one set of counts. A scrape of either kind therefore agrees with an OTLP export to the last count. Explicit
//! bounds below, inside and above the exponential range are all legal.
//!
//! # Range
//! | unit | recorded as | exponential buckets | zero bucket |
//! |---|---|---|---|
//! | seconds | nanoseconds | 2^-20 s (0.95 µs) to 2^12 s (68 min) | up to 2^-20 s |
//! | tokens | tokens | the one that ends with 2^0, to 2^27 | nothing but 0 |
//!
//! The exponential view counts values above the range in one bucket past its end. The explicit view and the sum do
//! not depend on the range.
//!
//! # Exactness
//! Bounds are upper-inclusive. Values are integers, so recording compares integers: every cell stores its largest
//! integer by the rule `ns as f64 / 1e9 <= bound`. Division is correctly rounded, so 1,000,000 ns is in `le="0.001"`.
//! The sum is an integer too, wide enough for 10^22 years.
//! compares integers. The sum is an integer too, wide enough for 10^22 years.

mod layout;

use std::fmt;
use std::sync::Arc;

use layout::power;
pub use layout::{Layout, SCALE, Unit};

/// The exponential view of a histogram in OTLP's format.
#[derive(Clone, Debug, PartialEq)]
pub struct ExponentialBuckets {
    /// 2^scale buckets per octave.
    pub scale: i32,
    /// Values up to this threshold are in `zero`.
    pub zero_threshold: f64,
    /// Count of the zero bucket.
    pub zero: u64,
    /// Index of the first bucket; bucket `i` is `(2^(i/8), 2^((i+1)/8)]`.
    pub offset: i32,
    /// Counts from the first to the last non-empty bucket.
    pub buckets: Vec<u64>,
}

/// Histograms with different bounds cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutMismatch;

impl fmt::Display for LayoutMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the histograms have different bounds")
    }
}

impl std::error::Error for LayoutMismatch {}

/// Counts of values. Takes about 2.2 KiB.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    layout: Arc<Layout>,
    cells: Box<[u64]>,
    count: u64,
    sum: u128,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(layout: Arc<Layout>) -> Self {
        let cells = vec![0; layout.last.len()].into_boxed_slice();
        Self { layout, cells, count: 0, sum: 0 }
    }

    /// The layout, shared between series.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Counts one value, in nanoseconds or tokens.
    pub fn record(&mut self, raw: u64) {
        self.cells[self.layout.cell(raw)] += 1;
        self.count += 1;
        self.sum += u128::from(raw);
    }

    /// Adds the counts of another histogram.
    ///
    /// # Errors
    /// If the bounds differ; `self` is then unchanged.
    pub fn merge(&mut self, other: &Self) -> Result<(), LayoutMismatch> {
        if self.layout != other.layout {
            return Err(LayoutMismatch);
        }
        for (cell, more) in self.cells.iter_mut().zip(&other.cells) {
            *cell += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        Ok(())
    }

    /// Returns the counts added after `earlier`, an older state of this histogram.
    ///
    /// # Errors
    /// If the bounds differ.
    pub fn since(&self, earlier: &Self) -> Result<Self, LayoutMismatch> {
        if self.layout != earlier.layout {
            return Err(LayoutMismatch);
        }
        let cells = self.cells.iter().zip(&earlier.cells).map(|(now, then)| now.saturating_sub(*then));
        Ok(Self {
            layout: Arc::clone(&self.layout),
            cells: cells.collect(),
            count: self.count.saturating_sub(earlier.count),
            sum: self.sum.saturating_sub(earlier.sum),
        })
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the values, in the unit.
    pub fn sum(&self) -> f64 {
        self.layout.unit.value(self.sum as f64)
    }

    /// Count of every explicit bucket, not cumulative; the last is above all bounds.
    pub fn explicit(&self) -> Vec<u64> {
        let mut buckets = vec![0; self.layout.bounds.len() + 1];
        for (bucket, count) in self.layout.bucket.iter().zip(&self.cells) {
            buckets[usize::from(*bucket)] += count;
        }
        buckets
    }

    /// Cumulative counts of the explicit buckets; the last is the total count.
    pub fn cumulative(&self) -> Vec<u64> {
        let mut buckets = self.explicit();
        let mut below = 0;
        for bucket in &mut buckets {
            below += *bucket;
            *bucket = below;
        }
        buckets
    }

    /// The exponential view.
    pub fn exponential(&self) -> ExponentialBuckets {
        let (first, end) = self.layout.unit.range();
        let mut buckets = vec![0; (end - first) as usize + 2];
        for (power, count) in self.layout.power.iter().zip(&self.cells) {
            buckets[usize::from(*power)] += count;
        }
        let zero = buckets.remove(0);
        let skipped = buckets.iter().position(|count| *count > 0).unwrap_or(buckets.len());
        let used = buckets.iter().rposition(|count| *count > 0).map_or(skipped, |at| at + 1);
        let offset = if skipped < used { first + skipped as i32 } else { 0 };
        let buckets = buckets[skipped..used].to_vec();
        ExponentialBuckets { scale: SCALE, zero_threshold: power(first), zero, offset, buckets }
    }

    /// Estimates the `q`-quantile (0 to 1) in the unit by linear interpolation within the cell of the nearest rank.
    /// The error is at most the cell's width, 9.05 % of the value. `None` if the histogram is empty.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let cell = self.cells.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        let smallest = if cell == 0 { 0.0 } else { self.layout.last[cell - 1] as f64 + 1.0 };
        let width = match self.layout.last[cell] {
            u64::MAX => 0.0,
            last => last as f64 - smallest,
        };
        let within = (rank + self.cells[cell] - below) as f64 - 0.5;
        Some(self.layout.unit.value(smallest + width * within / self.cells[cell] as f64))
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::layout::OCTAVE;
    use super::*;

    const TTFT: [f64; 6] = [0.001, 0.005, 0.25, 0.5, 1.0, 120.0];
    /// Bounds below, on and above the exponential range, and an odd SLO limit.
    const ODD: [f64; 7] = [0.0, 1e-9, 0.0123, 0.25, 3.0, 4096.0, 7200.0];

    fn layouts() -> Vec<Arc<Layout>> {
        let tokens = (0..14).map(|i| 4f64.powi(i));
        [
            Layout::new(Unit::Seconds, TTFT),
            Layout::new(Unit::Seconds, ODD),
            Layout::new(Unit::Seconds, []),
            Layout::new(Unit::Tokens, tokens),
            Layout::new(Unit::Tokens, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 2e9]),
        ]
        .map(Arc::new)
        .into()
    }

    /// Reference implementation in floating point, one bucket at a time.
    fn naive(layout: &Layout, values: &[u64]) -> (Vec<u64>, u64, Vec<u64>) {
        let (first, end) = layout.unit.range();
        let (mut explicit, mut zero) = (vec![0; layout.bounds.len() + 1], 0);
        let mut exponential = vec![0; (end - first) as usize + 1];
        for raw in values {
            let value = layout.unit.value(*raw as f64);
            explicit[layout.bounds.iter().position(|b| value <= *b).unwrap_or(layout.bounds.len())] += 1;
            match (first..=end).position(|i| value <= power(i)) {
                Some(0) => zero += 1,
                Some(at) => exponential[at - 1] += 1,
                None => exponential[(end - first) as usize] += 1,
            }
        }
        (explicit, zero, exponential)
    }

    fn check(layout: &Arc<Layout>, values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new(Arc::clone(layout));
        values.iter().for_each(|raw| histogram.record(*raw));
        let (explicit, zero, exponential) = naive(layout, values);
        assert_eq!(histogram.explicit(), explicit);
        assert_eq!(histogram.cumulative().last(), Some(&(values.len() as u64)));
        let view = histogram.exponential();
        assert_eq!(view.zero, zero);
        assert_eq!(view.zero + view.buckets.iter().sum::<u64>(), values.len() as u64);
        for (at, count) in view.buckets.iter().enumerate() {
            let index = view.offset + at as i32 - layout.unit.range().0;
            assert_eq!(*count, exponential[index as usize]);
        }
        assert_eq!(histogram.count(), values.len() as u64);
        assert_eq!(histogram.sum, values.iter().map(|raw| u128::from(*raw)).sum());
        histogram
    }

    #[test]
    fn both_views_are_exact_folds_of_a_hundred_thousand_values() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(7);
        for layout in layouts() {
            let values: Vec<u64> = (0..100_000).map(|_| random.random::<u64>() >> random.random_range(0..64)).collect();
            let whole = check(&layout, &values);
            let mut parts = check(&layout, &values[..40_000]);
            let rest = check(&layout, &values[40_000..]);
            parts.merge(&rest).unwrap();
            assert_eq!(parts, whole);
            assert_eq!(whole.since(&rest).unwrap(), check(&layout, &values[..40_000]));
        }
    }

    #[test]
    fn every_edge_falls_on_its_own_side() {
        for layout in layouts() {
            let edges = layout.last.iter().flat_map(|last| [*last, last.saturating_add(1), last.saturating_sub(1)]);
            let values: Vec<u64> = edges.chain([0, 1, u64::MAX]).collect();
            check(&layout, &values);
            for (at, bound) in layout.bounds.iter().enumerate() {
                let raw = layout.unit.largest_within(*bound);
                assert_eq!((layout.bucket_of(raw), layout.bucket_of(raw + 1)), (at, at + 1), "{bound}");
            }
        }
    }

    #[test]
    fn a_millisecond_is_in_the_millisecond_bucket() {
        let mut histogram = Histogram::new(Arc::new(Layout::new(Unit::Seconds, TTFT)));
        for nanos in [999_999, 1_000_000, 1_000_001, 120_000_000_000, 120_000_000_001] {
            histogram.record(nanos);
        }
        assert_eq!(histogram.explicit(), [2, 1, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.cumulative(), [2, 3, 3, 3, 3, 4, 5]);
        assert_eq!(histogram.sum(), 240.003_000_001);
    }

    #[test]
    fn the_exponential_view_begins_and_ends_with_what_it_has() {
        let mut histogram = Histogram::new(Arc::new(Layout::new(Unit::Seconds, [])));
        let view = histogram.exponential();
        assert_eq!((view.zero, view.offset, view.buckets.len()), (0, 0, 0));
        // 0.5 s is the upper bound of bucket -9; 0.5 s plus 1 ns is in bucket -8.
        for nanos in [900, 500_000_000, 500_000_001, 500_000_002] {
            histogram.record(nanos);
        }
        let view = histogram.exponential();
        assert_eq!((view.scale, view.zero, view.offset), (3, 1, -9));
        assert_eq!(view.buckets, [1, 2]);
        assert_eq!(view.zero_threshold, 2f64.powi(-20));
    }

    #[test]
    fn one_token_is_not_none() {
        let mut histogram = Histogram::new(Arc::new(Layout::new(Unit::Tokens, [1.0, 4.0])));
        [0, 1, 1, 2, 1 << 27, (1 << 27) + 1].iter().for_each(|tokens| histogram.record(*tokens));
        let view = histogram.exponential();
        assert_eq!((view.zero, view.offset, view.buckets[0]), (1, -1, 2));
        assert_eq!(view.buckets.len(), 1 + 27 * 8 + 1, "one bucket past the end");
        assert_eq!(histogram.quantile(0.5), Some(1.0));
        assert_eq!(histogram.quantile(1.0), Some((1u64 << 27) as f64 + 1.0));
    }

    #[test]
    fn a_quantile_is_off_by_less_than_a_cell() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(11);
        let layout = Arc::new(Layout::new(Unit::Seconds, TTFT));
        let mut values: Vec<u64> = (0..10_000).map(|_| 1_000_000 + random.random::<u64>() % 3_000_000_000).collect();
        let histogram = check(&layout, &values);
        values.sort_unstable();
        for q in [0.0f64, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = values[((q * 10_000.0).ceil() as usize).saturating_sub(1)] as f64 / 1e9;
            let estimate = histogram.quantile(q).unwrap();
            assert!((estimate / exact - 1.0).abs() < 0.0906, "{q}: {estimate} for {exact}");
        }
        assert_eq!(Histogram::new(layout).quantile(0.5), None);
    }

    #[test]
    fn histograms_of_different_bounds_do_not_mix() {
        let [one, other] = [[1.0], [2.0]].map(|bounds| Histogram::new(Arc::new(Layout::new(Unit::Seconds, bounds))));
        assert_eq!(one.clone().merge(&other), Err(LayoutMismatch));
        assert_eq!(one.since(&other), Err(LayoutMismatch));
        let same = Histogram::new(Arc::new(Layout::new(Unit::Seconds, [1.0])));
        let mut one = one;
        assert_eq!(one.merge(&same), Ok(()));
    }

    #[test]
    fn the_octave_is_that_of_the_reference() {
        for (k, bound) in OCTAVE.iter().enumerate() {
            assert!((bound / 2f64.powf(k as f64 / 8.0) - 1.0).abs() < 4e-16);
        }
        assert_eq!((power(-160), power(0), power(96)), (2f64.powi(-20), 1.0, 4096.0));
    }
}

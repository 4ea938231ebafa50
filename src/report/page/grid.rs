//! Edges that charts count values between.

use crate::report::ascii_plot::needs_log_scale;
use crate::stats::samples::SortedSamples;

/// Values below the largest one by more than this factor share the first bin. Gaps within one read are a thousandth of
/// a millisecond, and would leave no room for the rest.
const MAX_LOG_RANGE: f64 = 1e5;

/// Ascending edges on a linear or logarithmic scale, in the unit of the values.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct BinEdges {
    /// Ascending edges; the first bin also has all values below it.
    pub(in crate::report) edges: Vec<f64>,
    /// Each edge is a constant multiple of the one before.
    pub(in crate::report) is_log: bool,
}

impl BinEdges {
    /// Edges of `bins` bins that reach exactly to the largest value. `None` if all values are zero.
    pub(in crate::report) fn of(sorted: &[SortedSamples<'_>], bins: usize) -> Option<Self> {
        let max = sorted.iter().map(SortedSamples::max).max()? as f64;
        if max <= 0.0 {
            return None;
        }
        let floor = max / MAX_LOG_RANGE;
        let above_floor = |of: &SortedSamples<'_>| of.nth(of.up_to(floor as u64)) as f64;
        let min = sorted.iter().map(above_floor).fold(max, f64::min);
        let bins_f = bins as f64;
        if needs_log_scale(min, max) {
            // The first bin ends a step above the smallest value.
            let ratio = (max / min).powf(1.0 / (bins_f - 1.0));
            let edge = |at: usize| if at == bins { max } else { min * ratio.powf(at as f64 - 1.0) };
            return Some(Self { edges: (0..=bins).map(edge).collect(), is_log: true });
        }
        let min = sorted.iter().map(SortedSamples::min).min()? as f64;
        // Equal values need a bin with a width.
        let low = if max > min { min } else { max * 0.95 };
        let edge = |at: usize| if at == bins { max } else { low + (max - low) * at as f64 / bins_f };
        Some(Self { edges: (0..=bins).map(edge).collect(), is_log: false })
    }

    /// Number of values in each bin.
    pub(in crate::report) fn counts(&self, sorted: &SortedSamples<'_>) -> Vec<u64> {
        let up_to: Vec<u64> = self.edges.iter().skip(1).map(|edge| sorted.up_to(*edge as u64)).collect();
        let before = std::iter::once(0).chain(up_to.iter().copied());
        up_to.iter().zip(before).map(|(up_to, before)| up_to - before).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::samples::Samples;

    fn samples(values: &[u64]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|value| samples.push(*value));
        samples
    }

    #[test]
    fn every_value_is_in_one_bin_and_the_last_edge_is_the_largest_value() {
        for values in [
            &[7][..],
            &[10_000, 10_500, 12_345],
            &[0, 0, 5_000_000, 80_000_000],
            &[3_000, 20_000_000, 900_000_000],
            &[1, u64::from(u32::MAX) * 9],
        ] {
            let mut samples = samples(values);
            let sorted = samples.sorted().unwrap();
            let bins = BinEdges::of(&[sorted], 40).unwrap();
            assert_eq!((bins.edges.len(), bins.edges[40]), (41, *values.iter().max().unwrap() as f64), "{values:?}");
            assert!(bins.edges.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", bins.edges);
            assert_eq!(bins.counts(&sorted).iter().sum::<u64>(), values.len() as u64, "{values:?}");
        }
        assert_eq!(BinEdges::of(&[samples(&[0, 0]).sorted().unwrap()], 40), None);
    }

    #[test]
    fn a_wide_range_is_logarithmic_and_two_sides_share_their_edges() {
        let (mut one, mut other) = (samples(&[1_000_000, 2_000_000]), samples(&[90_000_000]));
        let bins = BinEdges::of(&[one.sorted().unwrap(), other.sorted().unwrap()], 10).unwrap();
        assert!(bins.is_log && bins.edges[1] <= 1_000_001.0 && bins.edges[10] == 90_000_000.0, "{bins:?}");
        assert!(!BinEdges::of(&[one.sorted().unwrap()], 10).unwrap().is_log);
    }
}

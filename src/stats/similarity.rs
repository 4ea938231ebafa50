//! Whether two sides were sent the same mix of lengths: the two-sample Kolmogorov-Smirnov test.

use super::length_histogram::LengthHistogram;

/// Terms of the series; more change no digit of a p-value above 10⁻⁹.
const TERMS: i32 = 100;

/// Result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KsTest {
    /// Largest difference of the two distribution functions, 0 to 1.
    pub distance: f64,
    /// Probability of such a distance or more if both are samples of one distribution. With many requests even a
    /// negligible distance is significant: look at both numbers.
    pub p_value: f64,
}

/// Compares two distributions; `None` if either is empty. The p-value is that of Kolmogorov's limit with the correction
/// of Stephens (1970) for small samples. Values that occur often make it too large, not too small.
pub fn ks_test(a: &LengthHistogram, b: &LengthHistogram) -> Option<KsTest> {
    let distance = a.ks(b)?;
    let (n, m) = (a.requests() as f64, b.requests() as f64);
    let root = (n * m / (n + m)).sqrt();
    let scaled = distance * (root + 0.12 + 0.11 / root);
    let term = |k: i32| {
        let size = (-2.0 * (f64::from(k) * scaled).powi(2)).exp();
        if k % 2 == 1 { size } else { -size }
    };
    // Below this the series does not converge, and the p-value is 1 in all its digits.
    let p_value = if scaled < 0.2 { 1.0 } else { (2.0 * (1..=TERMS).map(term).sum::<f64>()).clamp(0.0, 1.0) };
    Some(KsTest { distance, p_value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: impl IntoIterator<Item = u64>) -> LengthHistogram {
        let mut histogram = LengthHistogram::default();
        lengths.into_iter().for_each(|length| histogram.take(length));
        histogram
    }

    #[test]
    fn the_p_value_is_that_of_scipy() {
        // scipy.stats.ks_2samp(range(1, 101), range(21, 121), method='asymp') has 0.0314, 'exact' 0.0364.
        let test = ks_test(&of(1..=100), &of(21..=120)).unwrap();
        assert!((test.distance - 0.2).abs() < 1e-12 && (test.p_value - 0.031_38).abs() < 1e-5, "{test:?}");
    }

    #[test]
    fn equal_mixes_are_similar_disjoint_ones_are_not_and_empty_ones_are_nothing() {
        assert_eq!(ks_test(&of(1..=9), &of(1..=9)), Some(KsTest { distance: 0.0, p_value: 1.0 }));
        let apart = ks_test(&of(0..50), &of(50..100)).unwrap();
        assert!(apart.distance == 1.0 && apart.p_value < 1e-9);
        assert_eq!(ks_test(&of([]), &of(1..=9)), None);
    }
}

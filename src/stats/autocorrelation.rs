//! Loss of information in a series that depends on its own past, relative to independent values.
//!
//! The variance of the mean of n values is σ² · τ ÷ n, where τ = 1 + 2 · Σ ρₖ is the integrated autocorrelation time
//! and ρₖ the autocorrelation at lag k. So n ÷ τ independent values have as much information: the effective sample
//! size. The sum ends at the first lag that is at least five times the sum itself, because later terms are noise (the
//! window of Sokal, *Monte Carlo Methods in Statistical Mechanics*, 1996, section 3).

/// Lags in units of the autocorrelation time after which the sum ends.
const WINDOW: f64 = 5.0;

/// Integrated autocorrelation time of a series in units of its steps. At least 0 and at most the length; 1 for a
/// constant series.
pub fn autocorrelation_time(series: &[f64]) -> f64 {
    let count = series.len();
    let mean = series.iter().sum::<f64>() / count.max(1) as f64;
    let covariance = |lag: usize| -> f64 {
        series.iter().zip(&series[lag..]).map(|(value, later)| (value - mean) * (later - mean)).sum()
    };
    let variance = if count > 0 { covariance(0) } else { 0.0 };
    if variance <= 0.0 || !variance.is_finite() {
        return 1.0;
    }
    let mut time = 1.0;
    for lag in 1..count {
        time += 2.0 * covariance(lag) / variance;
        if lag as f64 >= WINDOW * time {
            break;
        }
    }
    time.clamp(0.0, count as f64)
}

/// Variance of a sum over slices, as a multiple of the variance of `count` independent values. At least 1: more
/// regularity than chance is no evidence for more information.
///
/// `deviations` has the sum of the values' deviations from their mean in each slice.
pub(super) fn variance_inflation(deviations: &[f64], count: f64, variance: f64) -> f64 {
    let independent = count * variance;
    if independent <= 0.0 {
        return 1.0;
    }
    let squares: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
    (squares * autocorrelation_time(deviations) / independent).max(1.0)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_distr::StandardNormal;
    use rand_pcg::Pcg64Mcg;

    use super::*;

    /// An autoregressive series of order 1 with variance 1.
    fn autoregressive(phi: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut normal = || random.sample::<f64, _>(StandardNormal);
        let first = normal();
        let mut next = |last: &mut f64| {
            let value = *last;
            *last = phi * value + (1.0 - phi * phi).sqrt() * normal();
            Some(value)
        };
        (0..count).scan(first, |last, _| next(last)).collect()
    }

    #[test]
    fn the_time_of_an_autoregressive_series_is_that_of_theory() {
        // τ = (1 + φ) ÷ (1 − φ)
        for (phi, expected) in [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)] {
            let time = autocorrelation_time(&autoregressive(phi, 20_000, 1));
            assert!((time / expected - 1.0).abs() < 0.15, "{phi}: {time} is not {expected}");
        }
    }

    #[test]
    fn inflation_is_one_for_independent_values_and_the_time_for_others() {
        let by_slice = |values: &[f64]| values.chunks(100).map(|chunk| chunk.iter().sum()).collect::<Vec<f64>>();
        let inflation = |values: &[f64]| variance_inflation(&by_slice(values), values.len() as f64, 1.0);
        let independent = inflation(&autoregressive(0.0, 24_000, 2));
        assert!(independent < 1.3, "{independent}");
        let dependent = (0..20).map(|seed| inflation(&autoregressive(0.9, 24_000, seed))).sum::<f64>() / 20.0;
        assert!((17.0..21.0).contains(&dependent), "{dependent} is not about 19");
    }

    #[test]
    fn a_series_without_variance_is_independent() {
        assert_eq!([autocorrelation_time(&[]), autocorrelation_time(&[7.0; 9])], [1.0, 1.0]);
        assert_eq!((variance_inflation(&[], 0.0, 0.0), variance_inflation(&[1.0], 5.0, 0.0)), (1.0, 1.0));
        // Values that alternate: τ of theory is 0.
        let alternating: Vec<f64> = (0..100).map(|n| f64::from(n % 2)).collect();
        assert!(autocorrelation_time(&alternating) < 0.1);
    }
}

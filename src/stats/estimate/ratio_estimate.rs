//! Means, rates and proportions of one run with their intervals.
//!
//! # Formulas
//! A mean is Σ value ÷ Σ count over a resample's slices, a rate Σ numerator ÷ Σ denominator. Their deviations are
//! stretched ([`crate::stats::bootstrap`]) on a logarithmic scale where all are positive, as latencies are skewed to the
//! right; otherwise on a linear one.
//!
//! A proportion (goodput) of at least 20 successes and 20 failures is treated so too, on the scale of log odds. With
//! fewer, its interval is the exact binomial one (Clopper and Pearson, 1934), with counts divided by the variance
//! inflation. So a run without a miss has a lower end too.

use super::super::autocorrelation::variance_inflation;
use super::super::bootstrap::{BLOCK_DEGREES, BlockBootstrap, stretch};
use super::super::distributions::beta_quantile;
use super::super::interval::{DataUnit, NotEnoughData};
use super::super::time_slices::{BLOCKS, SlicedValues, regroup};
use super::{DECISIVE_SHARE, Estimate, MIN_VALUES_BEYOND, decisive_values, degrees};

/// Share of an independent miss that counts for the degrees of a goodput. Its width comes from the very misses that it
/// counts, so a run with few of them by chance seems surer than others.
const DECISIVE_MISS: f64 = 2.0 / 3.0;
/// Minimum number of values for slices that are more than blocks.
const MIN_VALUES: f64 = 2.0 * BLOCKS as f64;

/// Mean of all values; `None` without values.
pub fn mean(values: &impl SlicedValues, bootstrap: &BlockBootstrap) -> Option<Estimate> {
    let count = values.count() as f64;
    if count == 0.0 {
        return None;
    }
    if let Err(reason) = NotEnoughData::unless(DataUnit::Values, values.counts().len() as f64, MIN_VALUES) {
        let sum = (0..values.count()).map(|rank| values.nth(rank)).sum::<f64>();
        return Some(Estimate::without_interval(sum / count, count, reason));
    }
    ratio_of_sums(values.sums(), values.counts(), count, values.variance(), bootstrap)
}

/// Rate of a quantity per unit of another one, such as tokens per second. It is computed from their sums in slices of
/// equal lengths of time, at least 40. `None` if the denominators add up to 0. The effective sample size is in slices.
pub fn rate(numerators: &[f64], denominators: &[f64], bootstrap: &BlockBootstrap) -> Option<Estimate> {
    let (above, below) = (regroup(numerators), regroup(denominators));
    let value = numerators.iter().sum::<f64>() / denominators.iter().sum::<f64>();
    let count = above.len().min(below.len()) as f64;
    if let Err(reason) = NotEnoughData::unless(DataUnit::Values, count, MIN_VALUES) {
        return value.is_finite().then(|| Estimate::without_interval(value, count, reason));
    }
    let deviation = |(above, below): (&f64, &f64)| (above - value * below).powi(2);
    let variance = above.iter().zip(&below).map(deviation).sum::<f64>() / count;
    ratio_of_sums(&above, &below, count, variance, bootstrap)
}

/// `count` independent values of `variance` would have the variance that the effective sample size compares with.
fn ratio_of_sums(
    above: &[f64],
    below: &[f64],
    count: f64,
    variance: f64,
    bootstrap: &BlockBootstrap,
) -> Option<Estimate> {
    let value = above.iter().sum::<f64>() / below.iter().sum::<f64>();
    if !value.is_finite() {
        return None;
    }
    let deviations: Vec<f64> = above.iter().zip(below).map(|(above, below)| above - value * below).collect();
    let inflation = variance_inflation(&deviations, count, variance);
    let effective = count / inflation;
    let degrees = match decisive_values(count, inflation, DECISIVE_SHARE) {
        Ok(decisive) => degrees(decisive),
        Err(reason) => return Some(Estimate::without_interval(value, effective, reason)),
    };
    let positive = value > 0.0 && above.iter().all(|above| *above >= 0.0);
    let stretch = stretch(degrees);
    let stretched = |resampled: f64| match positive {
        true => value * (resampled / value).powf(stretch),
        false => value + stretch * (resampled - value),
    };
    let resampled = bootstrap.sums(above).into_iter().zip(bootstrap.sums(below));
    let replicates = resampled.map(|(above, below)| stretched(above / below)).collect();
    Some(Estimate::new(value, effective, replicates, degrees))
}

/// Share of requests that meet their objectives (goodput ÷ throughput), in the order of their times; `None` without
/// requests.
///
/// `inflation` is the variance inflation of the latencies that decide ([`crate::stats::percentile_estimate::inflation`]), or
/// 1: with few misses, the misses alone do not reveal how they cluster.
pub fn proportion(met: &[bool], inflation: f64, bootstrap: &BlockBootstrap) -> Option<Estimate> {
    let count = met.len() as f64;
    if met.is_empty() {
        return None;
    }
    let successes = met.iter().filter(|met| **met).count() as f64;
    let (value, fewer) = (successes / count, successes.min(count - successes));
    let ones: Vec<f64> = met.iter().map(|met| f64::from(u8::from(*met))).collect();
    let (above, below) = (regroup(&ones), regroup(&vec![1.0; met.len()]));
    let deviations: Vec<f64> = above.iter().zip(&below).map(|(above, below)| above - value * below).collect();
    let inflation = variance_inflation(&deviations, count, value * (1.0 - value)).max(inflation);
    let effective = count / inflation;
    if fewer >= MIN_VALUES_BEYOND {
        let degrees = match decisive_values(count, inflation, fewer / count) {
            Ok(decisive) => degrees(decisive * DECISIVE_MISS),
            Err(reason) => return Some(Estimate::without_interval(value, effective, reason)),
        };
        let (odds, stretch) = (value / (1.0 - value), stretch(degrees));
        let replicate = |(above, below): (f64, f64)| {
            // Without a failure in a resample the odds are infinite, and so are the stretched ones.
            let stretched = odds * (above / (below - above) / odds).powf(stretch);
            1.0 - 1.0 / (1.0 + stretched)
        };
        let resampled = bootstrap.sums(&above).into_iter().zip(bootstrap.sums(&below));
        return Some(Estimate::new(value, effective, resampled.map(replicate).collect(), degrees));
    }
    let (successes, failures) = (successes / inflation, (count - successes) / inflation);
    // Below the median the lower confidence distribution, above it the upper one: the percentiles are the exact ends.
    let quantile = |uniform: f64| match uniform < 0.5 {
        true => beta_quantile(uniform, successes, failures + 1.0),
        false => beta_quantile(uniform, successes + 1.0, failures),
    };
    Some(Estimate::new(value, effective, bootstrap.uniform().map(quantile).collect(), BLOCK_DEGREES))
}

#[cfg(test)]
mod tests {
    use super::super::super::fixtures::uniform;
    use super::super::super::interval::Interval;
    use super::super::super::time_slices::ValueSlices;
    use super::*;

    fn bootstrap() -> BlockBootstrap {
        BlockBootstrap::new(1)
    }

    /// Half the width of an interval is itself known to about a quarter.
    fn check(interval: Interval, expected: f64, half: f64) {
        let Interval { low, high } = interval;
        let off = (low - (expected - half)).abs().max((high - (expected + half)).abs());
        assert!(off < 0.4 * half, "{interval:?} is not {expected} ± {half}");
    }

    #[test]
    fn the_interval_of_a_mean_of_independent_values_is_that_of_student() {
        let values = uniform(12_000, 1);
        let estimate = mean(&ValueSlices::of_values(&values), &bootstrap()).unwrap();
        // t(0.975, 11) · √(1 ÷ 12 ÷ 12,000)
        check(estimate.interval().unwrap(), estimate.value, 0.005_8);
        assert!((estimate.value - 0.5).abs() < 0.01 && estimate.effective_count > 8_000.0);
    }

    #[test]
    fn a_rate_is_that_of_all_slices_whatever_their_loads() {
        // Tokens in each of 600 seconds; a second with more requests has more of them.
        let tokens: Vec<f64> = uniform(600, 2).iter().map(|load| (load * 100.0).floor()).collect();
        let estimate = rate(&tokens, &[1.0; 600], &bootstrap()).unwrap();
        assert_eq!(estimate.value, tokens.iter().sum::<f64>() / 600.0);
        check(estimate.interval().unwrap(), estimate.value, 2.2 * 28.9 / 600.0_f64.sqrt());
        assert!(rate(&[1.0; 60], &[0.0; 60], &bootstrap()).is_none(), "no time");
        assert_eq!(rate(&[4.0; 9], &[2.0; 9], &bootstrap()).unwrap().value, 2.0);
    }

    #[test]
    fn a_goodput_has_the_interval_of_its_binomial_distribution() {
        let met = |least: f64| uniform(4_000, 3).iter().map(|drawn| *drawn >= least).collect::<Vec<bool>>();
        let estimate = proportion(&met(0.1), 1.0, &bootstrap()).unwrap();
        check(estimate.interval().unwrap(), estimate.value, 2.2 * (0.09_f64 / 4_000.0).sqrt());
        // scipy.stats.binomtest(4000, 4000).proportion_ci(): 0.99908 to 1; 10 misses of 4,000 are consistent with
        // 0.9954.
        let Interval { low, high } = proportion(&vec![true; 4_000], 1.0, &bootstrap()).unwrap().interval().unwrap();
        assert!((low - 0.999_08).abs() < 1e-4 && high == 1.0, "{low} {high}");
        let few: Vec<bool> = (0..4_000).map(|n| n % 400 != 0).collect();
        let Interval { low, high } = proportion(&few, 1.0, &bootstrap()).unwrap().interval().unwrap();
        assert!((low - 0.995_4).abs() < 2e-4 && (high - 0.998_8).abs() < 2e-4, "{low} {high}");
        // Values that inflate the variance tenfold have the information of a tenth of them.
        let inflated = proportion(&vec![true; 4_000], 10.0, &bootstrap()).unwrap();
        let low = inflated.interval().unwrap().low;
        assert!((low - 0.990_8).abs() < 1e-3 && inflated.effective_count == 400.0, "{low}");
    }

    #[test]
    fn dependent_values_make_a_wider_interval_and_very_dependent_ones_none() {
        let width = |each: usize| {
            let values: Vec<f64> = uniform(6_000, 4).iter().flat_map(|v| vec![*v; each]).take(6_000).collect();
            mean(&ValueSlices::of_values(&values), &bootstrap()).unwrap().interval().map(|of| of.high - of.low)
        };
        let ratio = width(16).unwrap() / width(1).unwrap();
        assert!((3.0..5.5).contains(&ratio), "√16: {ratio}");
        assert_eq!(width(1_000).unwrap_err().unit, DataUnit::IndependentValues);
    }
}

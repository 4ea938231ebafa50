//! Percentiles of one run with their intervals.
//!
//! # Formulas
//! Let q be a percentile p and F the distribution function of a run. In each resample the share of values up to q
//! deviates from F(q) by d. By Bahadur's representation the percentile of the resample is F⁻¹(p − d). So only counts
//! above q are resampled, not values, and d is stretched where its size is known, as a probability. The ends of the
//! interval are order statistics, as in Woodruff (*Confidence intervals for medians and other position measures*, JASA
//! 1952).
//!
//! # When there is no interval
//! Fewer than 20 values beyond the percentile are no evidence ([`DataUnit::ValuesBeyond`]). Nor are many in a cluster
//! or two ([`super::estimate`], degrees of freedom). The effective sample size that decides on this is the least over
//! the percentile and p50, p75, p90, p95, p99, p99.5 and p99.9. Of these only those count with at least 20 values above
//! them, and at most five times as many as beyond the percentile. The percentile alone does not suffice. Of a queue
//! that grew once, the few values beyond p99 seem to decay fast, while p95 shows how slowly it moves.

use super::autocorrelation::variance_inflation;
use super::bootstrap::{BlockBootstrap, stretch};
use super::estimate::{Estimate, MIN_VALUES_BEYOND, decisive_values, degrees};
use super::interval::{DataUnit, NotEnoughData};
use super::time_slices::SlicedValues;

/// Percentiles whose variance inflation shows how slowly a run changes.
const LEVELS: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9];
/// Of how many times as many values the inflation counts for a percentile.
const WIDER: f64 = 5.0;

/// Estimates percentiles, in their order; empty without values. All share the blocks of `bootstrap`.
pub fn percentiles(values: &impl SlicedValues, percents: &[f64], bootstrap: &BlockBootstrap) -> Vec<Estimate> {
    let fixed = levels(values, &LEVELS);
    let inflation = |of: &PercentileLevel| {
        let near = |level: &&PercentileLevel| 100.0 - level.percent <= WIDER * of.percent_beyond() + 1e-6;
        largest_inflation(values, fixed.iter().filter(near)).max(of.inflation)
    };
    levels(values, percents).iter().map(|level| level.estimate(values, inflation(level), bootstrap)).collect()
}

/// Largest variance inflation over the levels of a run, at least 1: the number of values is that many times their
/// effective sample size.
pub fn inflation(values: &impl SlicedValues) -> f64 {
    largest_inflation(values, levels(values, &LEVELS).iter())
}

fn largest_inflation<'a>(values: &impl SlicedValues, levels: impl Iterator<Item = &'a PercentileLevel>) -> f64 {
    let known = levels.filter(|level| level.beyond(values) + 1e-6 >= MIN_VALUES_BEYOND);
    known.map(|level| level.inflation).fold(1.0, f64::max)
}

/// One percentile of a run.
struct PercentileLevel {
    percent: f64,
    value: f64,
    /// Values above the percentile in each slice.
    above: Vec<f64>,
    inflation: f64,
}

fn levels(values: &impl SlicedValues, percents: &[f64]) -> Vec<PercentileLevel> {
    let cut = |percent: &f64| Some((percent.clamp(0.0, 100.0), values.percentile(*percent)?));
    let cuts: Vec<(f64, f64)> = percents.iter().filter_map(cut).collect();
    let mut ascending: Vec<f64> = cuts.iter().map(|(_, value)| *value).collect();
    ascending.sort_by(f64::total_cmp);
    let above = values.counts_above(&ascending);
    let level = |(percent, value): (f64, f64)| {
        let at = ascending.partition_point(|cut| cut.total_cmp(&value).is_lt());
        let above = above[at].clone();
        let count = values.count() as f64;
        let share = above.iter().sum::<f64>() / count;
        let deviations: Vec<f64> = above.iter().zip(values.counts()).map(|(above, all)| above - share * all).collect();
        PercentileLevel {
            percent,
            value,
            above,
            inflation: variance_inflation(&deviations, count, share * (1.0 - share)),
        }
    };
    cuts.into_iter().map(level).collect()
}

impl PercentileLevel {
    /// Percent of the values beyond the percentile, on its shorter side.
    fn percent_beyond(&self) -> f64 {
        self.percent.min(100.0 - self.percent)
    }

    fn beyond(&self, values: &impl SlicedValues) -> f64 {
        values.count() as f64 * self.percent_beyond() / 100.0
    }

    /// `inflation` is that of the slowest level.
    fn estimate(&self, values: &impl SlicedValues, inflation: f64, bootstrap: &BlockBootstrap) -> Estimate {
        let count = values.count() as f64;
        let decisive = NotEnoughData::unless(DataUnit::ValuesBeyond, self.beyond(values), MIN_VALUES_BEYOND)
            .and_then(|()| decisive_values(count, inflation, self.percent_beyond() / 100.0));
        let effective_count = count / self.inflation;
        let degrees = match decisive {
            Ok(decisive) => degrees(decisive),
            Err(reason) => return Estimate::without_interval(self.value, effective_count, reason),
        };
        let (share, stretch) = (self.above.iter().sum::<f64>() / count, stretch(degrees));
        let resampled = bootstrap.sums(&self.above).into_iter().zip(bootstrap.sums(values.counts()));
        let replicate = |(above, all): (f64, f64)| {
            // More values above the percentile than in the run: the percentile of the resample is higher.
            let percent = self.percent + 100.0 * stretch * (above / all - share);
            let inside = Some(percent.clamp(0.0, 100.0)).filter(|percent| percent.is_finite());
            inside.and_then(|percent| values.percentile(percent)).unwrap_or(self.value)
        };
        Estimate::new(self.value, effective_count, resampled.map(replicate).collect(), degrees)
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::Interval;
    use super::super::slice_histogram::SliceHistogram;
    use super::super::time_slices::ValueSlices;
    use super::*;

    /// Independent numbers from 0 to 1,000.
    fn uniform(count: u64) -> Vec<f64> {
        super::super::fixtures::uniform(count, 7).into_iter().map(|value| value * 1_000.0).collect()
    }

    fn of(values: &[f64], percents: &[f64]) -> Vec<Estimate> {
        percentiles(&ValueSlices::of_values(values), percents, &BlockBootstrap::new(1))
    }

    #[test]
    fn the_ends_are_order_statistics_as_far_off_as_student_has_it() {
        let values = uniform(12_000);
        for (estimate, share) in of(&values, &[50.0, 90.0, 99.0]).iter().zip([0.5, 0.1, 0.01_f64]) {
            // t(0.975, 11) · √(p (1 − p) ÷ n) · 1,000, since the density is 1 ÷ 1,000.
            let half = 2.2 * (share * (1.0 - share) / 12_000.0).sqrt() * 1_000.0;
            let Interval { low, high } = estimate.interval().unwrap();
            assert!((0.6..1.4).contains(&((high - low) / (2.0 * half))), "{share}: {low} {high}");
            assert!(estimate.value - low > 0.4 * half && high - estimate.value > 0.4 * half);
        }
    }

    #[test]
    fn twenty_values_beyond_are_needed_on_either_side() {
        let reason = |count, percent| of(&uniform(count), &[percent])[0].interval().err();
        assert_eq!((reason(2_000, 99.0), reason(2_000, 1.0)), (None, None));
        let short = |have, need| Some(NotEnoughData { unit: DataUnit::ValuesBeyond, have, need });
        assert_eq!(reason(1_900, 99.0), short(19.0, 20.0));
        assert_eq!(reason(1_900, 1.0), short(19.0, 20.0));
        assert_eq!(reason(2_000, 99.9).map(|reason| reason.factor()).map(f64::round), Some(10.0));
        assert_eq!(reason(2_000, 100.0), short(0.0, 20.0));
    }

    #[test]
    fn many_values_in_one_cluster_are_not_enough() {
        let mut values = uniform(4_000);
        values[1_000..1_040].iter_mut().for_each(|value| *value += 5_000.0);
        let [median, tail] = &of(&values, &[50.0, 99.0])[..] else { panic!() };
        assert!(median.interval().is_ok());
        assert_eq!(tail.interval().unwrap_err().unit, DataUnit::IndependentValues);
        assert!(tail.effective_count < 500.0 && inflation(&ValueSlices::of_values(&values)) > 8.0);
    }

    #[test]
    fn gaps_that_are_counted_have_the_intervals_of_single_ones() {
        let values: Vec<f64> = uniform(24_000).iter().map(|value| (value * 40_000.0).round()).collect();
        let mut histogram = SliceHistogram::default();
        (0..).zip(&values).for_each(|(n, value)| histogram.push(n * 1_000_000, *value as u64));
        let counted = percentiles(&histogram.finish(), &[50.0, 99.0], &BlockBootstrap::new(1));
        for (counted, single) in counted.iter().zip(of(&values, &[50.0, 99.0])) {
            let (a, b) = (counted.interval().unwrap(), single.interval().unwrap());
            assert!((counted.value / single.value - 1.0).abs() < 1e-3);
            assert!(((a.high - a.low) / (b.high - b.low) - 1.0).abs() < 0.25, "{a:?} is not {b:?}");
        }
    }

    #[test]
    fn no_values_have_no_percentiles_and_equal_ones_are_certain() {
        assert!(of(&[], &[50.0]).is_empty());
        assert_eq!(of(&[3.0; 500], &[50.0])[0].interval(), Ok(Interval { low: 3.0, high: 3.0 }));
        assert_eq!(of(&[1.0; 5], &[50.0, 99.0]).iter().map(|of| of.value).collect::<Vec<f64>>(), [1.0, 1.0]);
        // Six in ten gaps are 0: so is the whole interval of the median.
        let zeros: Vec<f64> = (0..5_000).map(|n| f64::from(u8::from(n % 10 >= 6))).collect();
        assert_eq!(of(&zeros, &[50.0])[0].interval(), Ok(Interval { low: 0.0, high: 0.0 }));
    }
}

//! A figure of one run with its interval.
//!
//! [`mean`], [`rate`] and [`proportion`] make estimates, and [`super::percentile_estimate`] makes those of percentiles.
//!
//! # Degrees of freedom
//! The values that decide a figure come in clusters, one for each queue that built up. The variance of a sum of k
//! clusters is itself known to about k degrees. So Student's t has the degrees of the blocks, but at most k = s · n*.
//! Here n* is the effective sample size, and s the share of values that decide, at most a twentieth. These are the
//! values beyond a percentile, or the misses of a goodput; a mean has a twentieth. With k < 2 there is no interval.
//! Half a degree is added: so chosen, rates of coverage are nearest to 95 % over the processes of `tests/stats`.

mod ratio_estimate;

use super::bootstrap::BLOCK_DEGREES;
use super::change::{Change, Scale};
use super::interval::{DataUnit, Interval, NotEnoughData};

pub use ratio_estimate::{mean, proportion, rate};

/// Minimum number of values beyond a percentile, and of successes and failures of a proportion.
pub(super) const MIN_VALUES_BEYOND: f64 = 20.0;
/// Minimum number of independent values among those that decide a figure.
const MIN_INDEPENDENT_DECISIVE: f64 = 2.0;
/// Share of values that decide a mean, and most that decide any figure.
pub(super) const DECISIVE_SHARE: f64 = 0.05;

/// A figure, and how far it would be off in other runs of the same length.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Effective sample size: the number of independent values with as much information. At most the number of values.
    pub effective_count: f64,
    spread: Result<Spread, NotEnoughData>,
}

#[derive(Clone, Debug)]
struct Spread {
    /// The figure of every resample, stretched to the width of Student's t.
    replicates: Vec<f64>,
    degrees_of_freedom: f64,
}

impl Estimate {
    /// A replicate that is not a number, of a resample without values, becomes the figure: replicates of several
    /// figures stay in step.
    pub(super) fn new(value: f64, effective_count: f64, mut replicates: Vec<f64>, degrees_of_freedom: f64) -> Self {
        replicates.iter_mut().filter(|replicate| !replicate.is_finite()).for_each(|replicate| *replicate = value);
        Self { value, effective_count, spread: Ok(Spread { replicates, degrees_of_freedom }) }
    }

    pub(super) fn without_interval(value: f64, effective_count: f64, reason: NotEnoughData) -> Self {
        Self { value, effective_count, spread: Err(reason) }
    }

    /// The 95 % interval.
    pub fn interval(&self) -> Result<Interval, NotEnoughData> {
        self.spread().map(|spread| Interval::of_replicates(&spread.replicates, self.value))
    }

    /// Ratio of two figures of one run, such as p99 ÷ p50. `None` if `other` is 0.
    pub fn ratio(&self, other: &Self) -> Option<Self> {
        let value = self.value / other.value;
        let effective_count = self.effective_count.min(other.effective_count);
        value.is_finite().then(|| match self.combine(other, |ours, theirs| ours / theirs) {
            Ok((replicates, degrees_of_freedom)) => Self::new(value, effective_count, replicates, degrees_of_freedom),
            Err(reason) => Self::without_interval(value, effective_count, reason),
        })
    }

    /// Change from `before` to this figure in its own unit.
    pub fn difference_from(&self, before: &Self) -> Result<Change, NotEnoughData> {
        let (replicates, degrees) = self.combine(before, |after, before| after - before)?;
        Ok(Change::of_replicates(Scale::Linear, self.value - before.value, &replicates, degrees))
    }

    /// Relative change from `before` to this figure: 0.05 is 5 % more. Values below `resolution` count as it, so 0 has a
    /// change too.
    pub fn relative_change_from(&self, before: &Self, resolution: f64) -> Result<Change, NotEnoughData> {
        let change = |after: f64, before: f64| after.max(resolution).ln() - before.max(resolution).ln();
        let (replicates, degrees) = self.combine(before, change)?;
        Ok(Change::of_replicates(Scale::Log, change(self.value, before.value), &replicates, degrees))
    }

    /// A function of both figures in each resample, and its degrees of freedom.
    fn combine(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> Result<(Vec<f64>, f64), NotEnoughData> {
        let (ours, theirs) = (self.spread()?, other.spread()?);
        let replicates = ours.replicates.iter().zip(&theirs.replicates).map(|(ours, theirs)| of(*ours, *theirs));
        Ok((replicates.collect(), ours.degrees_of_freedom.min(theirs.degrees_of_freedom)))
    }

    fn spread(&self) -> Result<&Spread, NotEnoughData> {
        self.spread.as_ref().map_err(|reason| *reason)
    }
}

/// Number of independent values among those that decide a figure, `share` of all.
pub(super) fn decisive_values(count: f64, inflation: f64, share: f64) -> Result<f64, NotEnoughData> {
    let (independent, share) = (count / inflation, share.min(DECISIVE_SHARE));
    NotEnoughData::unless(DataUnit::IndependentValues, independent, MIN_INDEPENDENT_DECISIVE / share)?;
    Ok(independent * share)
}

/// Degrees of freedom of a figure.
pub(super) fn degrees(decisive_values: f64) -> f64 {
    BLOCK_DEGREES.min(decisive_values + 0.5)
}

#[cfg(test)]
mod tests {
    use super::super::bootstrap::BlockBootstrap;
    use super::super::fixtures::uniform;
    use super::super::time_slices::ValueSlices;
    use super::mean;
    use super::*;

    fn bootstrap() -> BlockBootstrap {
        BlockBootstrap::new(1)
    }

    #[test]
    fn changes_of_paired_runs_are_known_better_than_those_of_others() {
        let before = uniform(3_000, 5).iter().map(|v| 1.0 + v).collect::<Vec<f64>>();
        let after: Vec<f64> = before.iter().map(|value| value * 1.1).collect();
        let figure = |values: &[f64], seed| mean(&ValueSlices::of_values(values), &BlockBootstrap::new(seed)).unwrap();
        let change = |seed| figure(&after, seed).relative_change_from(&figure(&before, 1), 1e-9).unwrap();
        let width = |change: Change| change.interval().high - change.interval().low;
        assert!((change(1).value() - 0.1).abs() < 1e-12 && width(change(1)) < 1e-9 && width(change(2)) > 0.01);
        let difference = figure(&after, 2).difference_from(&figure(&before, 1)).unwrap();
        assert!((difference.value() - 0.1 * figure(&before, 1).value).abs() < 1e-12);
        assert!(difference.interval().contains(difference.value()));
    }

    #[test]
    fn the_ratio_of_two_figures_has_an_interval_of_its_own() {
        let values = uniform(3_000, 6);
        let a = mean(&ValueSlices::of_values(&values), &bootstrap()).unwrap();
        let twice = Estimate::new(2.0 * a.value, 9.0, vec![1.0; 3], 5.0);
        assert_eq!((a.ratio(&a).unwrap().value, twice.ratio(&a).unwrap().value), (1.0, 2.0));
        assert_eq!(a.ratio(&a).unwrap().interval(), Ok(Interval { low: 1.0, high: 1.0 }));
        let zero = Estimate::new(0.0, 9.0, vec![0.0; 3], 5.0);
        assert!(a.ratio(&zero).is_none());
        let from_zero = a.relative_change_from(&zero, a.value / 4.0).unwrap();
        assert!((from_zero.value() - 3.0).abs() < 1e-9, "four times the resolution");
        assert_eq!(zero.relative_change_from(&zero, 1.0).unwrap().interval(), Interval { low: 0.0, high: 0.0 });
        let none = mean(&ValueSlices::of_values(&[1.0]), &bootstrap()).unwrap();
        assert_eq!((none.value, a.difference_from(&none).unwrap_err().unit), (1.0, DataUnit::Values));
    }
}

//! Tests on runs: each number is the figure of one run, for example its p99.
//!
//! The unit is the run, because runs differ by more than the requests of one run show: another placement, clock rate or
//! cache. So three rounds of each side are three values of each side, however many requests they sent.
//!
//! # Formulas
//! The difference of two sides has the standard error √(s₁² ÷ n₁ + s₂² ÷ n₂) and the degrees of freedom of Welch
//! (*The generalization of Student's problem when several different population variances are involved*, Biometrika
//! 1947). Rounds that alternate (A B A B) may be paired: drift of the machine then cancels. Relative changes are
//! differences of logarithms.

use super::change::{Change, Scale};
use super::interval::{DataUnit, NotEnoughData};

/// Minimum number of runs on each side: one alone has no variance.
const MIN_RUNS: f64 = 2.0;

/// Difference of two sides by Welch's t-test.
pub fn welch(before: &[f64], after: &[f64]) -> Result<Change, NotEnoughData> {
    on_scale(Scale::Linear, before, after)
}

/// Relative change by Welch's t-test on logarithms. Values below `resolution` count as it, so 0 has a change too.
pub fn welch_relative(before: &[f64], after: &[f64], resolution: f64) -> Result<Change, NotEnoughData> {
    on_scale(Scale::Log, &logarithms(before, resolution), &logarithms(after, resolution))
}

/// Difference of paired rounds by the paired t-test. Rounds without a counterpart are left out.
pub fn paired(before: &[f64], after: &[f64]) -> Result<Change, NotEnoughData> {
    paired_on_scale(Scale::Linear, before, after)
}

/// Relative change of paired rounds. Values below `resolution` count as it.
pub fn paired_relative(before: &[f64], after: &[f64], resolution: f64) -> Result<Change, NotEnoughData> {
    paired_on_scale(Scale::Log, &logarithms(before, resolution), &logarithms(after, resolution))
}

/// Effect size: the difference in standard deviations of the runs, with the correction for small samples (Hedges, 1981).
/// About 0.2 is small, 0.8 large (Cohen). Unlike Cliff's delta it still grows once the sides do not overlap, as three
/// runs a side often do not. `None` without two runs on each side, or without any variance.
pub fn hedges_g(before: &[f64], after: &[f64]) -> Option<f64> {
    let (a, b) = (Moments::of(before), Moments::of(after));
    a.enough().and(b.enough()).ok()?;
    let degrees = a.count + b.count - 2.0;
    let pooled = ((a.variance * (a.count - 1.0) + b.variance * (b.count - 1.0)) / degrees).sqrt();
    Some((b.mean - a.mean) / pooled * (1.0 - 3.0 / (4.0 * degrees - 1.0))).filter(|effect| effect.is_finite())
}

/// [`hedges_g`] on logarithms, as [`welch_relative`] compares them.
pub fn hedges_g_relative(before: &[f64], after: &[f64], resolution: f64) -> Option<f64> {
    hedges_g(&logarithms(before, resolution), &logarithms(after, resolution))
}

/// Geometric mean: a relative change of runs is the change of this mean. Values below `resolution` count as it.
pub fn geometric_mean(values: &[f64], resolution: f64) -> f64 {
    Moments::of(&logarithms(values, resolution)).mean.exp()
}

/// p-values adjusted for their number, in the order given. If those at most 0.05 count, the family has a false alarm in
/// at most 5 of 100 cases (step-down; Holm, *A simple sequentially rejective multiple test procedure*, 1979).
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut least = 0.0_f64;
    for (at, left) in order.into_iter().zip((1..=p_values.len()).rev()) {
        least = least.max((p_values[at] * left as f64).min(1.0));
        adjusted[at] = least;
    }
    adjusted
}

fn logarithms(values: &[f64], resolution: f64) -> Vec<f64> {
    values.iter().map(|value| value.max(resolution).ln()).collect()
}

fn on_scale(scale: Scale, before: &[f64], after: &[f64]) -> Result<Change, NotEnoughData> {
    let (a, b) = (Moments::of(before), Moments::of(after));
    a.enough().and(b.enough())?;
    let (of_a, of_b) = (a.variance / a.count, b.variance / b.count);
    let squared = of_a + of_b;
    let degrees = squared.powi(2) / (of_a.powi(2) / (a.count - 1.0) + of_b.powi(2) / (b.count - 1.0));
    let degrees = if degrees.is_finite() { degrees } else { a.count + b.count - 2.0 };
    Ok(Change::of_standard_error(scale, b.mean - a.mean, squared.sqrt(), degrees))
}

fn paired_on_scale(scale: Scale, before: &[f64], after: &[f64]) -> Result<Change, NotEnoughData> {
    let differences: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    let of = Moments::of(&differences);
    of.enough()?;
    Ok(Change::of_standard_error(scale, of.mean, (of.variance / of.count).sqrt(), of.count - 1.0))
}

/// Mean and variance (÷ n − 1) of a sample.
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: f64,
    pub(super) variance: f64,
}

impl Moments {
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self { count, mean, variance: squares / (count - 1.0).max(1.0) }
    }

    fn enough(&self) -> Result<(), NotEnoughData> {
        NotEnoughData::unless(DataUnit::Runs, self.count, MIN_RUNS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::Interval;
    use super::*;

    const A: [f64; 4] = [100.0, 104.0, 98.0, 103.0];
    const B: [f64; 3] = [110.0, 108.0, 115.0];

    fn near(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-8 * expected.abs().max(1.0), "{actual} is not {expected}");
    }

    fn check(change: Change, value: f64, (low, high): (f64, f64), p: f64) {
        near(change.value(), value);
        near(change.interval().low, low);
        near(change.interval().high, high);
        near(change.p_value(), p);
    }

    #[test]
    fn the_test_of_welch_is_that_of_scipy() {
        // scipy.stats.ttest_ind(B, A, equal_var=False), its confidence_interval(0.95), and numpy.expm1 of those of the
        // logarithms
        check(welch(&A, &B).unwrap(), 9.75, (2.563_483_905_11, 16.936_516_094_89), 0.020_586_590_257_4);
        let relative = welch_relative(&A, &B, 1.0).unwrap();
        near(relative.value(), 0.096_218_853_474_99);
        assert!((relative.interval().low - 0.027_842_41).abs() < 1e-8, "{relative:?}");
        near(relative.p_value(), 0.016_789_790_082_3);
    }

    #[test]
    fn the_paired_test_is_that_of_scipy() {
        // scipy.stats.ttest_rel(B, A[:3])
        check(paired(&A, &B).unwrap(), 31.0 / 3.0, (-5.829_477_908_4, 26.496_144_575_1), 0.110_648_268_648_7);
        let drifting = paired_relative(&[100.0, 110.0, 121.0], &[105.0, 115.5, 127.05], 1.0).unwrap();
        near(drifting.value(), 0.05);
        assert!(drifting.interval().high - drifting.interval().low < 1e-9, "drift cancels");
    }

    #[test]
    fn the_effect_size_is_corrected_for_few_runs() {
        // (B.mean - A.mean) / pooled * (1 - 3 / 19)
        near(hedges_g(&A, &B).unwrap(), 2.629_472_841_43);
        assert_eq!(hedges_g(&A, &[1.0]), None);
        assert_eq!(hedges_g(&[1.0; 3], &[2.0; 3]), None);
    }

    #[test]
    fn p_values_are_adjusted_in_order() {
        // By hand: 0.01 · 4, 0.02 · 3, 0.03 · 2 (at least the one before), 0.5.
        assert_eq!(holm(&[0.02, 0.5, 0.01, 0.03]), [0.06, 0.5, 0.04, 0.06]);
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn few_runs_are_not_enough_and_equal_runs_are_certain() {
        assert_eq!(welch(&A, &[1.0]).unwrap_err().unit, DataUnit::Runs);
        assert_eq!(paired(&[], &B).unwrap_err(), NotEnoughData { unit: DataUnit::Runs, have: 0.0, need: 2.0 });
        // From nothing to twice the resolution, and from nothing to nothing.
        near(welch_relative(&[0.0; 3], &[0.5; 3], 0.25).unwrap().value(), 1.0);
        near(paired_relative(&[0.0; 3], &[0.1; 3], 0.25).unwrap().value(), 0.0);
        let certain = welch(&[5.0; 3], &[6.0; 3]).unwrap();
        assert_eq!((certain.interval(), certain.p_value()), (Interval { low: 1.0, high: 1.0 }, 0.0));
    }
}

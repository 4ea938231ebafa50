//! Slope of a line as the median slope of all pairs of points. Up to 29 % of the points may be outliers (Theil, 1950;
//! Sen, *Estimates of the regression coefficient based on Kendall's tau*, JASA 1968).

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::samples::percentile;

/// Most pairs to look at; above that, this many are drawn.
const MAX_PAIRS: usize = 500_000;

/// Slopes of all pairs of points with different x, ascending. With more than 1,000 points it is a sample of pairs, the
/// same in every run.
pub(super) fn slopes(points: &[(f64, f64)]) -> Vec<f64> {
    let slope = |(x, y): (f64, f64), (later_x, later_y): (f64, f64)| {
        let slope = (later_y - y) / (later_x - x);
        (later_x != x && slope.is_finite()).then_some(slope)
    };
    let count = points.len();
    let mut slopes: Vec<f64> = if count.saturating_mul(count.saturating_sub(1)) / 2 <= MAX_PAIRS {
        let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
        pairs.filter_map(|(first, second)| slope(points[first], points[second])).collect()
    } else {
        let mut random = Pcg64Mcg::seed_from_u64(count as u64);
        let mut point = || points[random.random_range(0..count)];
        (0..MAX_PAIRS).filter_map(|_| slope(point(), point())).collect()
    };
    slopes.sort_unstable_by(f64::total_cmp);
    slopes
}

/// Median of values; `None` without any.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    percentile(sorted.len() as u64, 50.0, |rank| sorted[rank as usize])
}

/// Slope and intercept; the intercept is the median of y − slope · x. `None` unless two points differ in x.
pub(super) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let slopes = slopes(points);
    let slope = percentile(slopes.len() as u64, 50.0, |rank| slopes[rank as usize])?;
    let intercept = median(points.iter().map(|(x, y)| y - slope * x))?;
    Some((slope, intercept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_outliers_does_not_move_the_line() {
        let outlier = |x: f64| if (x as u64).is_multiple_of(5) { 1e6 } else { 3.0 + 2.0 * x };
        for count in [50, 5_000] {
            let points: Vec<(f64, f64)> = (0..count).map(f64::from).map(|x| (x, outlier(x))).collect();
            let (slope, intercept) = line(&points).unwrap();
            assert!((slope - 2.0).abs() < 1e-6 && (intercept - 3.0).abs() < 0.1, "{count}: {slope} {intercept}");
        }
    }

    #[test]
    fn points_at_one_place_have_no_line() {
        assert_eq!((line(&[]), line(&[(1.0, 1.0)]), line(&[(1.0, 1.0), (1.0, 2.0)])), (None, None, None));
        assert_eq!(line(&[(1.0, 1.0), (3.0, 5.0)]), Some((2.0, -1.0)));
        assert_eq!(median([].into_iter()), None);
    }
}

//! A line through the requests of a run: TTFT against prompt tokens, ITL against requests in flight.
//!
//! The line is that of least squares, because its parts are means. Over a run, the slope times the mean prompt plus the
//! intercept is the mean TTFT. Its interval comes from [`super::bootstrap`], since neighboring requests share a queue.
//! The sums of 1, x, y, x² and xy over slices of time are all that a resample needs. A few stalls pull such a line, so
//! the one of Theil and Sen stands beside it: where both differ, outliers decide the first.

use super::autocorrelation::variance_inflation;
use super::bootstrap::{BlockBootstrap, stretch};
use super::estimate::{DECISIVE_SHARE, Estimate, decisive_values, degrees};
use super::theil_sen;
use super::time_slices::regroup;

/// A fitted line.
#[derive(Clone, Debug)]
pub struct LineFit {
    /// Units of y per unit of x.
    pub slope: Estimate,
    /// Value at x = 0.
    pub intercept: Estimate,
    /// Share of the variance of y that the line explains, 0 to 1.
    pub r_squared: f64,
    /// Median slope of pairs, which outliers do not move.
    pub robust_slope: f64,
    /// Median distance from the line of that slope.
    pub robust_intercept: f64,
}

/// Sums over some points, with x and y relative to their means.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Sums {
    /// Slope, and the value of the line at the mean of all x.
    fn line(self) -> (f64, f64) {
        let Self { count, x, y, xx, xy } = self;
        let slope = (xy - x * y / count) / (xx - x * x / count);
        (slope, (y - slope * x) / count)
    }
}

/// Fits a line to (x, y) points in the order of their times. `None` unless two points differ in x.
pub fn fit_line(points: &[(f64, f64)], bootstrap: &BlockBootstrap) -> Option<LineFit> {
    let (robust_slope, robust_intercept) = theil_sen::line(points)?;
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let centered: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x - mean_x, y - mean_y)).collect();
    let total = |of: fn(&(f64, f64)) -> f64| centered.iter().map(of).sum::<f64>();
    let (xx, xy, yy) = (total(|p| p.0 * p.0), total(|p| p.0 * p.1), total(|p| p.1 * p.1));
    let slope = xy / xx;
    if !slope.is_finite() {
        return None;
    }
    let r_squared = if yy > 0.0 { (slope * xy / yy).clamp(0.0, 1.0) } else { 1.0 };
    let intercept = mean_y - slope * mean_x;
    // Contribution of each point to the error of the slope, and of the intercept.
    let of_slope = |(x, y): &(f64, f64)| x * (y - slope * x);
    let of_intercept = |(x, y): &(f64, f64)| (y - slope * x) * (1.0 - mean_x * x * count / xx);
    let inflation = |part: &dyn Fn(&(f64, f64)) -> f64| {
        let parts: Vec<f64> = centered.iter().map(part).collect();
        let variance = parts.iter().map(|part| part * part).sum::<f64>() / count;
        variance_inflation(&regroup(&parts), count, variance)
    };
    let inflation = (inflation(&of_slope), inflation(&of_intercept));
    let effective = (count / inflation.0, count / inflation.1);
    let (slope, intercept) = match decisive_values(count, inflation.0.max(inflation.1), DECISIVE_SHARE) {
        Err(reason) => (
            Estimate::without_interval(slope, effective.0, reason),
            Estimate::without_interval(intercept, effective.1, reason),
        ),
        Ok(decisive) => {
            let degrees = degrees(decisive);
            let stretch = stretch(degrees);
            let lines = resampled(&centered, bootstrap).into_iter().map(|(resampled, height)| {
                let off = resampled - slope;
                (slope + stretch * off, intercept + stretch * (height - off * mean_x))
            });
            let (slopes, intercepts) = lines.unzip();
            (
                Estimate::new(slope, effective.0, slopes, degrees),
                Estimate::new(intercept, effective.1, intercepts, degrees),
            )
        }
    };
    Some(LineFit { slope, intercept, r_squared, robust_slope, robust_intercept })
}

/// Slope and value at the mean of x for each resample.
fn resampled(centered: &[(f64, f64)], bootstrap: &BlockBootstrap) -> Vec<(f64, f64)> {
    let sums = |of: fn(&(f64, f64)) -> f64| bootstrap.sums(&regroup(&centered.iter().map(of).collect::<Vec<f64>>()));
    let (count, x, y) = (sums(|_| 1.0), sums(|point| point.0), sums(|point| point.1));
    let (xx, xy) = (sums(|point| point.0 * point.0), sums(|point| point.0 * point.1));
    let line = |n: usize| Sums { count: count[n], x: x[n], y: y[n], xx: xx[n], xy: xy[n] }.line();
    (0..count.len()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: f64, expected: f64) {
        assert!((actual / expected - 1.0).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn the_lines_are_those_of_scipy() {
        // scipy.stats.linregress, and the slope of scipy.stats.theilslopes
        let points = [(100.0, 0.06), (200.0, 0.071), (400.0, 0.092), (800.0, 0.13), (1_600.0, 0.21)];
        let fit = fit_line(&points, &BlockBootstrap::new(1)).unwrap();
        near(fit.slope.value, 9.942_204_301_075_269e-5);
        near(fit.intercept.value, 0.050_958_333_333_333_33);
        near(fit.r_squared, 0.999_816_265_363_176);
        near(fit.robust_slope, 1e-4);
        // By hand the distances are 0.05, 0.051, 0.052, 0.05 and 0.05.
        near(fit.robust_intercept, 0.05);
        assert_eq!(fit.slope.interval().unwrap_err().need, 40.0);
    }

    #[test]
    fn intervals_contain_the_line_that_made_the_points() {
        // Pseudo-random prompts and waits that do not depend on them.
        let noise = |n: u64| super::super::hash::mix(n) as f64 / u64::MAX as f64;
        let points: Vec<(f64, f64)> = (0..5_000)
            .map(|n| (4_000.0 * noise(n), 0.05 + 1e-4 * 4_000.0 * noise(n) + 0.1 * noise(n + 9_999)))
            .collect();
        let fit = fit_line(&points, &BlockBootstrap::new(1)).unwrap();
        let (slope, intercept) = (fit.slope.interval().unwrap(), fit.intercept.interval().unwrap());
        assert!(slope.contains(1e-4) && slope.high - slope.low < 3e-6, "{slope:?}");
        assert!(intercept.contains(0.1) && intercept.high - intercept.low < 6e-3, "{intercept:?}");
    }

    #[test]
    fn stalls_move_the_line_of_least_squares_and_not_the_other() {
        let stalled = |n: u32| if n % 50 == 49 { 60.0 } else { 1.0 + f64::from(n % 100) };
        let points: Vec<(f64, f64)> = (0..5_000).map(|n| (f64::from(n % 100), stalled(n))).collect();
        let fit = fit_line(&points, &BlockBootstrap::new(1)).unwrap();
        near(fit.robust_slope, 1.0);
        assert!((fit.slope.value - 1.0).abs() > 1e-3, "{}", fit.slope.value);
    }

    #[test]
    fn any_points_have_a_line_or_none() {
        let bootstrap = BlockBootstrap::new(1);
        assert!(fit_line(&[], &bootstrap).is_none() && fit_line(&[(1.0, 2.0); 50], &bootstrap).is_none());
        let flat: Vec<(f64, f64)> = (0..50).map(|n| (f64::from(n), 3.0)).collect();
        let fit = fit_line(&flat, &bootstrap).unwrap();
        assert_eq!((fit.slope.value, fit.intercept.value, fit.r_squared), (0.0, 3.0, 1.0));
        assert!(fit.slope.interval().unwrap().contains(0.0));
    }
}

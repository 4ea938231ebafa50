//! The estimate of a coefficient, from the planes that explain the points about equally well.

use super::robust::PlaneFit;
use crate::twin::parameter::ParameterEstimate;

/// Relative standard error above which a coefficient is a range.
const MAX_RELATIVE_ERROR: f64 = 0.1;
/// Share of the time that a cost must be able to reach to matter.
const MIN_SHARE: f64 = 0.01;
/// Times are whole nanoseconds: a cost that reaches less is one of rounding.
const MIN_TIME: f64 = 1.0;
/// A plane explains the points about as well as the best if its residual is at most this many times as large.
pub(super) const EQUAL_RESIDUAL: f64 = 1.02;

/// A plane, and the largest value of the column in question among its points.
pub(super) type PlaneColumn = (PlaneFit, f64);

/// What the planes say of a coefficient: the first has the value, and the interval spans all. `typical` is the median
/// time of the points.
pub(super) fn estimate_of(planes: &[PlaneColumn], column: usize, typical: f64) -> ParameterEstimate {
    let mut estimates = planes.iter().map(|plane| estimate_of_plane(plane, column, typical));
    let Some(first) = estimates.next() else { return ParameterEstimate::range(Some(0.0), None, 0.0) };
    let whole = estimates.fold(first, |whole, other| ParameterEstimate {
        low: whole.low.zip(other.low).map(|(a, b)| a.min(b)),
        high: whole.high.zip(other.high).map(|(a, b)| a.max(b)),
        ..whole
    });
    let (Some(value), Some(low), Some(high)) = (whole.value, whole.low, whole.high) else { return whole };
    let largest = planes.iter().map(|(_, largest)| *largest).fold(0.0, f64::max);
    let is_narrow = (high - value).max(value - low) <= 2.0 * MAX_RELATIVE_ERROR * value;
    match is_narrow || high * largest <= MIN_SHARE * typical {
        true => whole,
        false => ParameterEstimate::range(Some(low), Some(high), value),
    }
}

/// A value if its standard error is small, or if the cost cannot matter; else a range.
fn estimate_of_plane((plane, largest): &PlaneColumn, column: usize, typical: f64) -> ParameterEstimate {
    let (value, error) = (plane.coefficients[column], plane.errors[column]);
    let (low, high) = ((value - 2.0 * error).max(0.0), value + 2.0 * error);
    if high * largest < MIN_TIME {
        return ParameterEstimate::between(0.0, value, high);
    }
    if error.is_finite() && error <= MAX_RELATIVE_ERROR * value {
        return ParameterEstimate::between(low, value, high);
    }
    if *largest == 0.0 {
        return ParameterEstimate::range(Some(0.0), None, 0.0);
    }
    // The cost that would show in the residuals.
    let visible = (2.0 * plane.residual / largest).max(if error.is_finite() { high } else { 0.0 });
    match visible * largest <= MIN_SHARE * typical {
        true => ParameterEstimate::between(0.0, value, visible),
        false => ParameterEstimate::range(Some(low), Some(visible), value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(value: f64, error: f64) -> PlaneColumn {
        let (mut coefficients, mut errors) = ([0.0; 4], [f64::INFINITY; 4]);
        (coefficients[1], errors[1]) = (value, error);
        (PlaneFit { coefficients, errors, residual: 1.0, total_residual: 1.0 }, 100.0)
    }

    #[test]
    fn planes_that_differ_give_a_range_that_spans_them() {
        let of = |planes: &[PlaneColumn]| estimate_of(planes, 1, 1_000.0);
        assert_eq!(of(&[plane(100.0, 1.0)]), ParameterEstimate::between(98.0, 100.0, 102.0));
        assert_eq!(of(&[plane(100.0, 1.0), plane(110.0, 2.0)]), ParameterEstimate::between(98.0, 100.0, 114.0));
        let range = ParameterEstimate::range(Some(8.0), Some(102.0), 100.0);
        assert_eq!(of(&[plane(100.0, 1.0), plane(10.0, 1.0)]), range);
        assert_eq!(of(&[plane(0.001, 0.000_01)]).low, Some(0.0), "0.1 ns at most");
        // The other plane has no such cost, and its residuals would show one of 0.02.
        assert_eq!(of(&[plane(100.0, 1.0), plane(0.0, f64::INFINITY)]).low, Some(0.0));
    }
}

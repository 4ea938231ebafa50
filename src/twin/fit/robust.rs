//! Robust linear regression with few columns: coefficients of at least 0, and their standard errors.

/// Number of columns of every regression; unused ones are 0.
pub(super) const COLUMNS: usize = 4;
/// Rounds of reweighting.
pub(super) const ROUNDS: usize = 40;
/// Rounds that suffice to compare fits.
pub(super) const COMPARISON_ROUNDS: usize = 5;
/// Points that a regression uses; of more, evenly spaced ones.
const MAX_POINTS: usize = 5_000;
/// Share of a column that the other columns must leave unexplained.
const MIN_INDEPENDENT_SHARE: f64 = 1e-9;
/// Residuals beyond this many median absolute deviations are outliers.
const MAX_DEVIATIONS: f64 = 5.0;

/// One point: the columns, and y.
pub(super) type Point = ([f64; COLUMNS], f64);

/// The step between the points that a regression uses, of so many.
pub(super) fn stride(count: usize) -> usize {
    count.div_ceil(MAX_POINTS).max(1)
}

/// The upper median of values; `None` without any.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// A fitted plane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlaneFit {
    pub(super) coefficients: [f64; COLUMNS],
    /// Standard errors; infinite for a column that the points do not determine.
    pub(super) errors: [f64; COLUMNS],
    /// Mean absolute residual of the points that are no outliers.
    pub(super) residual: f64,
    /// Mean absolute residual of all points.
    pub(super) total_residual: f64,
}

impl PlaneFit {
    pub(super) fn predict(&self, columns: &[f64; COLUMNS]) -> f64 {
        self.coefficients.iter().zip(columns).map(|(coefficient, column)| coefficient * column).sum()
    }
}

/// Fits y to the columns by least absolute deviations, and then by least squares over the points that are no outliers.
/// A column whose coefficient would be negative is left out, because costs are not.
pub(super) fn fit_plane(points: &[Point], rounds: usize) -> Option<PlaneFit> {
    let mut used = [true; COLUMNS];
    for (column, used) in used.iter_mut().enumerate() {
        *used = points.iter().any(|(columns, _)| columns[column] != 0.0);
    }
    loop {
        let fit = fit_columns(points, used, rounds)?;
        let worst = (0..COLUMNS).filter(|column| fit.coefficients[*column] < 0.0).min_by(|a, b| {
            let score = |column: usize| fit.coefficients[column] / fit.errors[column].max(f64::MIN_POSITIVE);
            score(*a).total_cmp(&score(*b))
        });
        match worst {
            Some(column) => used[column] = false,
            None => return Some(fit),
        }
    }
}

/// [`fit_plane`] to some of the columns.
pub(super) fn fit_plane_to(points: &[Point], used: [bool; COLUMNS], rounds: usize) -> Option<PlaneFit> {
    let part = |(columns, y): &Point| (std::array::from_fn(|at| if used[at] { columns[at] } else { 0.0 }), *y);
    fit_plane(&points.iter().map(part).collect::<Vec<_>>(), rounds)
}

fn fit_columns(points: &[Point], used: [bool; COLUMNS], rounds: usize) -> Option<PlaneFit> {
    let count = used.iter().filter(|used| **used).count();
    if count == 0 || points.len() < count {
        return None;
    }
    // Columns of similar size keep the normal equations well conditioned.
    let mut scale = [1.0; COLUMNS];
    for (column, scale) in scale.iter_mut().enumerate() {
        let largest = points.iter().map(|(columns, _)| columns[column].abs()).fold(0.0, f64::max);
        *scale = if largest > 0.0 { largest } else { 1.0 };
    }
    let scaled = |columns: &[f64; COLUMNS]| {
        let mut scaled = [0.0; COLUMNS];
        for column in 0..COLUMNS {
            scaled[column] = if used[column] { columns[column] / scale[column] } else { 0.0 };
        }
        scaled
    };
    let rows: Vec<Point> = points.iter().map(|(columns, y)| (scaled(columns), *y)).collect();
    let largest = rows.iter().map(|(_, y)| y.abs()).fold(0.0, f64::max);
    let mut weights = vec![1.0; rows.len()];
    let mut solution = solve(&rows, &weights, used)?.0;
    for _ in 0..rounds {
        let floor = largest * 1e-7 + f64::MIN_POSITIVE;
        for (weight, row) in weights.iter_mut().zip(&rows) {
            *weight = 1.0 / residual(row, &solution).abs().max(floor);
        }
        solution = solve(&rows, &weights, used)?.0;
    }
    let typical = median(rows.iter().map(|row| residual(row, &solution).abs()))?;
    let limit = MAX_DEVIATIONS * typical + largest * 1e-6;
    for (weight, row) in weights.iter_mut().zip(&rows) {
        *weight = f64::from(u8::from(residual(row, &solution).abs() <= limit));
    }
    let (solution, inverse) = solve(&rows, &weights, used)?;
    let total_weight: f64 = weights.iter().sum();
    let squares: f64 = rows.iter().zip(&weights).map(|(row, weight)| weight * residual(row, &solution).powi(2)).sum();
    let absolute: f64 = rows.iter().zip(&weights).map(|(row, weight)| weight * residual(row, &solution).abs()).sum();
    let variance = squares / (total_weight - count as f64).max(1.0);
    let total: f64 = rows.iter().map(|row| residual(row, &solution).abs()).sum();
    let mut fit = PlaneFit {
        residual: absolute / total_weight.max(1.0),
        total_residual: total / rows.len() as f64,
        ..PlaneFit::default()
    };
    for column in 0..COLUMNS {
        fit.coefficients[column] = solution[column] / scale[column];
        fit.errors[column] = match used[column] {
            true => (variance * inverse[column]).max(0.0).sqrt() / scale[column],
            false => f64::INFINITY,
        };
    }
    Some(fit)
}

fn residual((columns, y): &Point, solution: &[f64; COLUMNS]) -> f64 {
    y - columns.iter().zip(solution).map(|(column, value)| column * value).sum::<f64>()
}

/// Solves the weighted normal equations. Returns the solution and the diagonal of the inverse matrix; `None` if columns
/// depend on each other.
fn solve(rows: &[Point], weights: &[f64], used: [bool; COLUMNS]) -> Option<([f64; COLUMNS], [f64; COLUMNS])> {
    let mut matrix = [[0.0; 2 * COLUMNS + 1]; COLUMNS];
    for ((columns, y), weight) in rows.iter().zip(weights) {
        for (i, line) in matrix.iter_mut().enumerate() {
            for (j, cell) in line[..COLUMNS].iter_mut().enumerate() {
                *cell += weight * columns[i] * columns[j];
            }
            line[COLUMNS] += weight * columns[i] * y;
        }
    }
    for (i, line) in matrix.iter_mut().enumerate() {
        if !used[i] {
            line[i] = 1.0;
        }
        line[COLUMNS + 1 + i] = 1.0;
    }
    // The matrix is symmetric and not negative, so the diagonal serves as pivots.
    let diagonal: Vec<f64> = (0..COLUMNS).map(|i| matrix[i][i]).collect();
    for i in 0..COLUMNS {
        let pivot = matrix[i][i];
        if pivot.is_nan() || pivot <= MIN_INDEPENDENT_SHARE * diagonal[i] {
            return None;
        }
        matrix[i].iter_mut().for_each(|cell| *cell /= pivot);
        let line = matrix[i];
        for (_, other) in matrix.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = other[i];
            other.iter_mut().zip(line).for_each(|(cell, of_line)| *cell -= factor * of_line);
        }
    }
    let (mut solution, mut inverse) = ([0.0; COLUMNS], [0.0; COLUMNS]);
    for i in 0..COLUMNS {
        solution[i] = matrix[i][COLUMNS];
        inverse[i] = matrix[i][COLUMNS + 1 + i];
    }
    Some((solution, inverse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_outliers_does_not_move_the_plane() {
        let points: Vec<Point> = (0..400_u32)
            .map(|n| {
                let columns = [1.0, f64::from(n % 17), f64::from(n * n % 1_013), 0.0];
                let y = 10.0 + 3.0 * columns[1] + 0.25 * columns[2];
                (columns, if n % 4 == 0 { y + 500.0 } else { y })
            })
            .collect();
        let fit = fit_plane(&points, ROUNDS).unwrap();
        for (found, true_value) in fit.coefficients.iter().zip([10.0, 3.0, 0.25, 0.0]) {
            assert!((found - true_value).abs() < 1e-6, "{:?}", fit.coefficients);
        }
        assert_eq!(fit.errors[3], f64::INFINITY, "an empty column is not determined");
    }

    #[test]
    fn a_cost_is_never_negative() {
        let points: Vec<Point> =
            (0..100_u32).map(|n| ([1.0, f64::from(n), 0.0, 0.0], 50.0 - f64::from(n) * 0.1)).collect();
        let fit = fit_plane(&points, ROUNDS).unwrap();
        assert_eq!(fit.coefficients[1], 0.0);
    }

    #[test]
    fn columns_that_depend_on_each_other_have_no_plane() {
        let points: Vec<Point> =
            (0..50_u32).map(|n| ([f64::from(n), 2.0 * f64::from(n), 0.0, 0.0], f64::from(n))).collect();
        assert!(fit_plane(&points, ROUNDS).is_none());
    }
}

//! One value of each request against another: TTFT against ISL, TPOT against requests in flight.

use super::chart::{Chart, ChartKind, ChartUnit, Column, MAX_CHART_ROWS};
use crate::report::ascii_plot::{format_value, needs_log_scale, with_thousands};
use crate::report::metric::MetricUnit;

/// Bins of the medians.
const BINS: usize = 24;
/// Requests that a median needs.
const MIN_BIN_REQUESTS: usize = 5;

/// Title and axes.
pub(super) struct ScatterLabels {
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
}

/// Draws (x, milliseconds) points in the order of their requests; `None` unless two differ in x.
pub(super) fn chart(labels: &ScatterLabels, points: &[(f64, f64)]) -> Option<Chart> {
    let least =
        |of: fn(&(f64, f64)) -> f64| points.iter().map(of).filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (min_x, max_x, max_y) = (least(|point| point.0), most(|point| point.0), most(|point| point.1));
    if min_x >= max_x {
        return None;
    }
    let is_log_x = needs_log_scale(min_x, max_x);
    let medians = medians(points, (min_x, max_x), is_log_x);
    let (shown, step) = thinned(points);
    let left_out = match step {
        1 => String::new(),
        step => format!(
            " Of {} requests every {step}th is drawn, and the slowest; the medians are those of all.",
            with_thousands(points.len() as u64)
        ),
    };
    let time = |millis: f64| format_value(millis, MetricUnit::Time);
    let trend = match (medians.first(), medians.last()) {
        (Some(first), Some(last)) if medians.len() > 1 => format!(
            "The median {} goes from {} at {:.0} {} to {} at {:.0}; the greatest is {}.",
            labels.y,
            time(first.1),
            first.0,
            labels.x,
            time(last.1),
            last.0,
            time(max_y)
        ),
        _ => format!("The greatest {} is {}.", labels.y, time(max_y)),
    };
    let columns = vec![
        Column::new(labels.x, ChartUnit::Number, shown.iter().map(|point| point.0)),
        Column::new(labels.y, ChartUnit::Millis, shown.iter().map(|point| point.1)),
    ];
    let scale = if is_log_x { ", logarithmic" } else { "" };
    let is_log_y = needs_log_scale(least(|point| point.1), max_y);
    let chart = Chart::new(ChartKind::Scatter, labels.title, trend + &left_out, columns)
        .x(&format!("{}{scale}", labels.x), ChartUnit::Number, is_log_x)
        .y(ChartUnit::Millis, is_log_y);
    let curve = [medians.iter().map(|point| point.0).collect(), medians.iter().map(|point| point.1).collect()];
    Some(if medians.len() > 1 { chart.block("curve", &curve) } else { chart })
}

/// Every n-th point, and the one with the greatest y: no chart ends below its greatest value.
fn thinned(points: &[(f64, f64)]) -> (Vec<(f64, f64)>, usize) {
    let step = points.len().div_ceil(MAX_CHART_ROWS - 1).max(1);
    let slowest = (0..points.len()).max_by(|a, b| points[*a].1.total_cmp(&points[*b].1));
    let drawn = points.iter().enumerate().filter(|(at, _)| at.is_multiple_of(step) || Some(*at) == slowest);
    (drawn.map(|(_, point)| *point).collect(), step)
}

/// Median x and y in bins of x that have enough points.
fn medians(points: &[(f64, f64)], (min, max): (f64, f64), is_log: bool) -> Vec<(f64, f64)> {
    let mut bins = vec![(Vec::new(), Vec::new()); BINS];
    for (x, y) in points {
        let share = if is_log { (x.max(min) / min).ln() / (max / min).ln() } else { (x - min) / (max - min) };
        let (xs, ys) = &mut bins[((share.max(0.0) * BINS as f64) as usize).min(BINS - 1)];
        xs.push(*x);
        ys.push(*y);
    }
    let median = |values: &mut Vec<f64>| {
        let middle = values.len() / 2;
        *values.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    let enough = bins.into_iter().filter(|(xs, _)| xs.len() >= MIN_BIN_REQUESTS);
    enough.map(|(mut xs, mut ys)| (median(&mut xs), median(&mut ys))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_chart_keeps_the_slowest_request() {
        let mut points: Vec<(f64, f64)> = (0..1_000_000).map(|at| (f64::from(at), 1.0)).collect();
        points[777_777].1 = 9.0;
        let (shown, step) = thinned(&points);
        assert!(shown.len() <= MAX_CHART_ROWS && shown.contains(&(777_777.0, 9.0)), "{}", shown.len());
        assert_eq!((step, thinned(&points[..5]).0.len(), thinned(&[]).0.len()), (201, 5, 0));
    }

    #[test]
    fn medians_follow_the_line_of_the_points() {
        let points: Vec<(f64, f64)> = (0..2_400).map(|at| (f64::from(at), 10.0 + 0.5 * f64::from(at))).collect();
        let medians = medians(&points, (1.0, 2_399.0), false);
        assert_eq!(medians.len(), BINS);
        assert!(medians.iter().all(|(x, y)| (y - 10.0 - 0.5 * x).abs() < 1e-9), "{medians:?}");
    }
}

//! Fewer values of the windows of a plan, for charts.

use super::PlanWindow;

/// Returns the greatest value of each of at most `points` equal parts.
pub(super) fn resample(windows: &[PlanWindow], points: usize, of: impl Fn(&PlanWindow) -> f64) -> Vec<f64> {
    let count = windows.len().min(points.max(1));
    let part = |number: usize| &windows[number * windows.len() / count..(number + 1) * windows.len() / count];
    (0..count).map(|number| part(number).iter().map(&of).fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_shows_the_greatest_of_its_windows() {
        let window = |requests| PlanWindow { from_s: 0.0, seconds: 1.0, requests, replicas: 1, serving: 1 };
        let windows = [3.0, 1.0, 2.0, 5.0, 4.0].map(window);
        assert_eq!(resample(&windows, 2, |window| window.requests), [3.0, 5.0]);
        assert_eq!(resample(&windows, 9, |window| window.requests).len(), 5);
    }
}

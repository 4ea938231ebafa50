//! Curve of the replicas under the arrivals, as SVG.

use std::fmt::Write as _;

use super::{CapacityPlan, PlanWindow};

/// Chart size.
const WIDTH: f64 = 720.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 28.0;
/// Height of each of the two panels.
const PANEL: f64 = 150.0;
const GAP: f64 = 40.0;
const HEIGHT: f64 = TOP + PANEL + GAP + PANEL + 26.0;
/// Most points of a curve.
const MAX_POINTS: usize = 640;
/// Parts of an axis.
const TICKS: u32 = 4;

/// Returns the greatest value of each of at most `points` equal parts.
pub(super) fn resample(windows: &[PlanWindow], points: usize, of: impl Fn(&PlanWindow) -> f64) -> Vec<f64> {
    let count = windows.len().min(points.max(1));
    let part = |number: usize| &windows[number * windows.len() / count..(number + 1) * windows.len() / count];
    (0..count).map(|number| part(number).iter().map(&of).fold(0.0, f64::max)).collect()
}

/// Draws the chart; empty if the rate is constant.
pub(super) fn svg(plan: &CapacityPlan) -> String {
    if plan.over_time.len() < 2 {
        return String::new();
    }
    let usable = plan.capacity.rate * (1.0 - plan.reserves.headroom);
    let failed = u64::from(plan.reserves.failed);
    let rates = resample(&plan.over_time, MAX_POINTS, |window| window.requests / window.seconds);
    let carried = resample(&plan.over_time, MAX_POINTS, |window| window.serving.saturating_sub(failed) as f64 * usable);
    let paid = resample(&plan.over_time, MAX_POINTS, |window| window.replicas as f64);
    let serving = resample(&plan.over_time, MAX_POINTS, |window| window.serving as f64);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let rate = Panel { top: TOP, most: round_up(most(&rates).max(most(&carried))), name: "requests/s" };
    let replicas = Panel { top: TOP + PANEL + GAP, most: round_up(most(&paid)), name: "replicas" };
    let mut drawn = rate.axis() + &replicas.axis();
    _ = write!(drawn, "<polygon points=\"{}\"/>", rate.area(&rates));
    _ = write!(drawn, "<polyline points=\"{}\"/>", rate.steps(&carried));
    _ = write!(drawn, "<polygon points=\"{}\"/>", replicas.area(&serving));
    _ = write!(drawn, "<polyline points=\"{}\"/>", replicas.steps(&paid));
    let (seconds, bottom) = (plan.traffic.seconds, replicas.top + PANEL + 16.0);
    for tick in 0..=TICKS {
        let share = f64::from(tick) / f64::from(TICKS);
        let anchor = match tick {
            0 => "start",
            TICKS => "end",
            _ => "middle",
        };
        let (x, time) = (LEFT + share * (WIDTH - LEFT - RIGHT), time(share * seconds));
        _ = write!(drawn, "<text x=\"{x:.1}\" y=\"{bottom}\" text-anchor=\"{anchor}\">{time}</text>");
    }
    format!(
        "<figure><svg role=\"img\" aria-labelledby=\"over-time\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\">{drawn}</svg>\n<figcaption id=\"over-time\">Above: arrivals (area), and what the replicas \
         that the arrivals need carry with the headroom (line). Below: replicas that serve (area) and that cost \
         (line).</figcaption></figure>\n"
    )
}

/// One panel of the chart.
struct Panel {
    top: f64,
    most: f64,
    name: &'static str,
}

impl Panel {
    fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - value / self.most)
    }

    /// Grid lines with their values.
    fn axis(&self) -> String {
        let mut text = format!("<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>", self.top - 8.0, self.name);
        for tick in 0..=TICKS {
            let value = self.most * f64::from(tick) / f64::from(TICKS);
            let (y, right) = (self.y(value), WIDTH - RIGHT);
            let digits = usize::from(value.fract() != 0.0) * if self.most < 4.0 { 2 } else { 1 };
            _ = write!(text, "<path d=\"M{LEFT} {y:.1}H{right}\"/>");
            _ = write!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.digits$}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        text
    }

    /// A step for each value.
    fn steps(&self, values: &[f64]) -> String {
        let width = (WIDTH - LEFT - RIGHT) / values.len() as f64;
        let step = |(at, value): (usize, &f64)| {
            let (from, y) = (LEFT + at as f64 * width, self.y(*value));
            format!("{from:.1},{y:.1} {:.1},{y:.1} ", from + width)
        };
        values.iter().enumerate().map(step).collect()
    }

    fn area(&self, values: &[f64]) -> String {
        let bottom = self.y(0.0);
        format!("{LEFT},{bottom} {}{:.1},{bottom}", self.steps(values), WIDTH - RIGHT)
    }
}

/// The next number of 1, 2, 4 or 8 times a power of ten, so that quarters are short.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].map(|times| times * power).into_iter().find(|round| *round >= value).unwrap_or(1.0)
}

fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        seconds if seconds < 600.0 => format!("{seconds:.0} s"),
        seconds if seconds < 10_800.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3_600.0),
    }
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

    #[test]
    fn an_axis_ends_at_a_short_number_above_the_values() {
        assert_eq!([0.3, 1.0, 5.0, 17.0, 99.0, 400.0].map(round_up), [0.4, 1.0, 8.0, 20.0, 100.0, 400.0]);
    }
}

//! Plots in text, and numbers formatted for people. Callers print each plotted value as a number too.

use super::metric::MetricUnit;
use crate::measure::time::Gap;
use crate::stats::samples::SortedSamples;

/// Number of bins on a linear scale.
const EVEN_BINS: f64 = 12.0;
/// Ratio of maximum to minimum above which bins become logarithmic.
const LOG_SCALE_RATIO: f64 = 20.0;
/// Blocks from empty to full in eighths.
const BLOCK_EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// ASCII characters with increasing ink, as a substitute for blocks.
const ASCII_SHADES: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '%', '#'];

/// Draws a bar with a length in eighths of a column; `plain` ASCII rounds to whole columns.
pub fn bar(eighths: usize, plain: bool) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if plain { "#".repeat(eighths.div_ceil(8)) } else { "█".repeat(eighths / 8) + PARTS[eighths % 8] }
}

/// Draws values as columns of `height` lines, top line first. `most` is the full height.
pub fn columns(values: &[f64], most: f64, height: u64, plain: bool) -> Vec<String> {
    let marks = if plain { ASCII_SHADES } else { BLOCK_EIGHTHS };
    let line = |line: u64| {
        let column = |value: &f64| {
            let eighths = (value / most * height as f64 * 8.0).round() as u64;
            marks[eighths.saturating_sub(line * 8).min(8) as usize]
        };
        values.iter().map(column).collect()
    };
    (0..height).rev().map(line).collect()
}

/// Draws points (x, y, mark) in a field of `width` by `height`, top line first. The maxima lie on the edges and zero is
/// at the origin. Y becomes logarithmic, from its minimum on, if its range is wide.
pub fn scatter(points: &[(f64, f64, char)], width: usize, height: usize) -> Vec<String> {
    let most = |of: fn(&(f64, f64, char)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let least = points.iter().map(|point| point.1).fold(top, f64::min);
    let share = |y: f64| if needs_log_scale(least, top) { (y / least).ln() / (top / least).ln() } else { y / top };
    let place = |share: f64, room: usize| (share.clamp(0.0, 1.0) * (room - 1) as f64).round() as usize;
    let mut field = vec![vec![' '; width]; height];
    for (x, y, mark) in points {
        field[height - 1 - place(share(*y), height)][place(x / right, width)] = *mark;
    }
    field.into_iter().map(|line| line.into_iter().collect()).collect()
}

/// Returns `true` if the values' range needs a logarithmic scale.
pub fn needs_log_scale(least: f64, most: f64) -> bool {
    least > 0.0 && most > least * LOG_SCALE_RATIO
}

/// Counts values up to and including each edge, from the first bin with values to the last. Edges are round numbers in
/// the display unit.
pub fn histogram_bins(sorted: SortedSamples<'_>, unit: MetricUnit) -> Vec<(f64, u64)> {
    let inside = unit.to_display(1.0);
    let (least, most) = (unit.to_display(sorted.min() as f64), unit.to_display(sorted.max() as f64));
    let mut edge = if most <= least * LOG_SCALE_RATIO {
        EdgeIterator::even(least, most, unit)
    } else {
        EdgeIterator::growing(least.max(inside))
    };
    let (mut bins, mut before) = (Vec::new(), 0);
    loop {
        let upper = edge.next();
        let up_to = sorted.up_to((upper / inside).round() as u64);
        // Many empty decades may lie between gaps within a read and gaps of the model: one empty bin replaces them.
        if edge.grows && up_to == before && bins.last().is_some_and(|(_, count)| *count == 0) {
            bins.pop();
        }
        if up_to > 0 {
            bins.push((upper, up_to - before));
        }
        before = up_to;
        if before == sorted.count() {
            return bins;
        }
    }
}

/// Iterator over ascending bin edges.
struct EdgeIterator {
    /// The next edge, in steps.
    steps: u64,
    step: f64,
    grows: bool,
}

impl EdgeIterator {
    /// Spaces edges so that [`format_value`] prints them as different numbers.
    fn even(least: f64, most: f64, unit: MetricUnit) -> Self {
        let shown = match unit {
            MetricUnit::Time => 10_f64.powf(most.log10().floor() - 2.0).max(1e-3),
            MetricUnit::Tokens | MetricUnit::Rate if most < 100.0 => 0.1,
            MetricUnit::Tokens | MetricUnit::Rate => 1.0,
        };
        let mut growing = Self::growing(((most - least) / EVEN_BINS).max(shown));
        let step = growing.next();
        Self { steps: (least / step).ceil() as u64, step, grows: false }
    }

    /// Yields 1, 2, 5, 10, …, starting at or above `least`.
    fn growing(least: f64) -> Self {
        let mut edge = Self { steps: 1, step: 10_f64.powf(least.log10().floor()), grows: true };
        while edge.value() < least {
            edge.next();
        }
        edge
    }

    fn value(&self) -> f64 {
        // Negative powers of ten are not exact in binary: round the last digits.
        let value = self.steps as f64 * self.step;
        (value * 1e9).round() / 1e9
    }

    fn next(&mut self) -> f64 {
        let value = self.value();
        match (self.grows, self.steps) {
            (false, _) => self.steps += 1,
            (true, 1) => self.steps = 2,
            (true, 2) => self.steps = 5,
            (true, _) => (self.steps, self.step) = (1, self.step * 10.0),
        }
        value
    }
}

/// Formats a display value with three significant digits.
pub fn format_value(value: f64, unit: MetricUnit) -> String {
    match unit {
        MetricUnit::Time => Gap::from_nanos((value * 1e6).round() as u64).to_string(),
        MetricUnit::Tokens if value.fract() == 0.0 => with_thousands(value as u64),
        MetricUnit::Tokens | MetricUnit::Rate if value < 100.0 => format!("{value:.1}"),
        MetricUnit::Tokens | MetricUnit::Rate => with_thousands(value.round() as u64),
    }
}

/// Formats a share: 0.125 is `12.5 %`.
pub fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats an integer with comma separators.
pub fn with_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns `true` for control characters, direction marks and zero-width characters.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Replaces unprintable characters. Names from files may contain any.
pub fn replace_unprintable(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect()
}

/// Shortens a name from a file to fit a table cell.
pub fn table_cell(name: &str) -> String {
    replace_unprintable(name).chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::samples::Samples;

    fn of(millis: &[f64]) -> Vec<(f64, u64)> {
        let mut samples = Samples::default();
        millis.iter().for_each(|millis| samples.push((millis * 1e6) as u64));
        histogram_bins(samples.sorted().unwrap(), MetricUnit::Time)
    }

    #[test]
    fn bins_have_round_edges_and_hold_every_value_once() {
        assert_eq!(
            of(&[10.5, 11.0, 12.0, 14.0, 34.0]),
            [
                (12.0, 3),
                (14.0, 1),
                (16.0, 0),
                (18.0, 0),
                (20.0, 0),
                (22.0, 0),
                (24.0, 0),
                (26.0, 0),
                (28.0, 0),
                (30.0, 0),
                (32.0, 0),
                (34.0, 1)
            ]
        );
        assert_eq!(of(&[0.3, 3.0, 40.0]), [(0.5, 1), (2.0, 0), (5.0, 1), (20.0, 0), (50.0, 1)]);
        assert_eq!(of(&[0.0, 0.0]), [(0.0, 2)]);
        assert_eq!(of(&[0.0, 1.0]).iter().map(|(_, count)| count).sum::<u64>(), 2);
        assert_eq!(of(&[20.0]), [(20.0, 1)]);
    }

    #[test]
    fn no_two_edges_of_a_histogram_are_shown_as_the_same_number() {
        for (least, most, unit) in [
            (104.12, 104.93, MetricUnit::Time),
            (999.1, 1_002.0, MetricUnit::Time),
            (0.01, 0.011, MetricUnit::Time),
            (5.01, 5.09, MetricUnit::Rate),
            (99.9, 101.3, MetricUnit::Rate),
            (1_999.0, 2_001.0, MetricUnit::Tokens),
        ] {
            let mut samples = Samples::default();
            let inside = |outside: f64| (outside / unit.to_display(1.0)).round() as u64;
            (0..=20).for_each(|part| samples.push(inside(least + (most - least) * f64::from(part) / 20.0)));
            let bins = histogram_bins(samples.sorted().unwrap(), unit);
            let mut shown: Vec<String> = bins.iter().map(|(edge, _)| format_value(*edge, unit)).collect();
            let edges = shown.len();
            shown.dedup();
            assert_eq!((shown.len(), bins.iter().map(|(_, count)| count).sum::<u64>()), (edges, 21), "{shown:?}");
        }
    }

    #[test]
    fn columns_are_drawn_in_eighths_of_a_line() {
        assert_eq!(columns(&[0.0, 1.0, 2.0], 2.0, 2, false), ["  █", " ██"]);
        assert_eq!(columns(&[0.5, 1.0], 1.0, 1, false), ["▄█"]);
        assert_eq!(columns(&[0.2, 0.5, 1.0], 1.0, 1, true), [":=#"]);
        assert_eq!((bar(9, false), bar(9, true)), ("█▏".to_owned(), "##".to_owned()));
    }

    #[test]
    fn points_are_drawn_at_their_place() {
        let even = [(0.0, 1.0, 'a'), (5.0, 5.0, 'b'), (10.0, 10.0, 'c')];
        assert_eq!(scatter(&even, 5, 3), ["    c", "  b  ", "a    "]);
        let wide = [(1.0, 1.0, 'a'), (2.0, 10.0, 'b'), (2.0, 100.0, 'c')];
        assert_eq!(scatter(&wide, 3, 3), ["  c", "  b", " a "]);
        assert_eq!(scatter(&[(0.0, 0.0, 'a')], 2, 1), ["a "], "nothing but zero");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(format_value(1_234.0, MetricUnit::Tokens), "1,234");
        assert_eq!(format_value(3.5, MetricUnit::Tokens), "3.5");
        assert_eq!(format_value(12.345, MetricUnit::Time), "12.3ms");
        assert_eq!(format_value(1_234.5, MetricUnit::Rate), "1,235");
    }
}

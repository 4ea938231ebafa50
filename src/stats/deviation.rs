//! Deviation between two traces: paired numbers, and arrivals over time.
//!
//! The KS (Kolmogorov-Smirnov) distance is the largest difference between two distribution functions: 0 for equal
//! distributions, 1 for disjoint ones.

use std::collections::HashMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::length_histogram::LengthHistogram;

const SECOND: u64 = 1_000_000_000;
/// Seconds with a counter of their own: 194 days, in 34 MB. BurstGPT covers 121 days.
const MAX_SECONDS: usize = 1 << 24;
/// Windows into which the longer span is divided.
const PARTS: usize = 24;

/// Deviation of the numbers `b` from their counterparts `a`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Deviation {
    /// Pairs in which both numbers are known.
    pub compared: u64,
    /// Share of pairs with equal numbers, 0 to 1.
    pub exact_share: f64,
    /// The mean of `b - a`, in tokens.
    pub mean_error: f64,
    /// The mean of `|b - a|`, in tokens.
    pub mean_absolute_error: f64,
    /// The KS distance.
    pub ks: f64,
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compared, exact_share, mean_error, mean_absolute_error, ks } = self;
        let exact = exact_share * 100.0;
        write!(f, "{exact:.1} % exact of {compared}, off by {mean_error:+.2} on average, ")?;
        write!(f, "by {mean_absolute_error:.2} either way; KS distance {ks:.4}")
    }
}

/// Accumulates pairs.
#[derive(Clone, Debug, Default)]
pub struct DeviationAccumulator {
    compared: u64,
    exact: u64,
    sum: i128,
    absolute: u128,
}

impl DeviationAccumulator {
    /// Adds a pair; ignores it if either number is unknown.
    pub fn take(&mut self, a: Option<u64>, b: Option<u64>) {
        let (Some(a), Some(b)) = (a, b) else { return };
        self.compared += 1;
        self.exact += u64::from(a == b);
        self.sum += i128::from(b) - i128::from(a);
        self.absolute += u128::from(a.abs_diff(b));
    }

    /// Returns the deviation, with the KS distance of these distributions; `None` if either histogram is empty.
    pub fn finish(&self, a: &LengthHistogram, b: &LengthHistogram) -> Option<Deviation> {
        let ks = a.ks(b)?;
        let mean = |sum: f64| if self.compared > 0 { sum / self.compared as f64 } else { 0.0 };
        Some(Deviation {
            compared: self.compared,
            exact_share: mean(self.exact as f64),
            mean_error: mean(self.sum as f64),
            mean_absolute_error: mean(self.absolute as f64),
            ks,
        })
    }
}

/// Arrivals counted per second.
#[derive(Clone, Debug, Default)]
pub struct ArrivalsPerSecond {
    counts: Vec<u16>,
    /// Arrivals per second beyond the range of a `u16` counter.
    more: HashMap<usize, u64>,
    bounds: Option<(u64, u64)>,
    /// True if an arrival came at or after [`MAX_SECONDS`], and was not counted.
    beyond: bool,
}

impl ArrivalsPerSecond {
    /// Adds an arrival at `at`, in nanoseconds since the start of the trace.
    pub fn take(&mut self, at: u64) {
        let (first, last) = self.bounds.unwrap_or((at, at));
        self.bounds = Some((first.min(at), last.max(at)));
        match usize::try_from(at / SECOND) {
            Ok(second) if second < MAX_SECONDS => {
                if second >= self.counts.len() {
                    self.counts.resize(second + 1, 0);
                }
                match self.counts[second].checked_add(1) {
                    Some(count) => self.counts[second] = count,
                    None => *self.more.entry(second).or_default() += 1,
                }
            }
            _ => self.beyond = true,
        }
    }

    /// Seconds from the first arrival to the last.
    pub fn span_s(&self) -> f64 {
        self.bounds.map_or(0.0, |(first, last)| (last - first) as f64 / 1e9)
    }

    fn first(&self) -> Option<usize> {
        usize::try_from(self.bounds?.0 / SECOND).ok()
    }

    /// Arrivals per window of `seconds`, starting at the second of the first arrival. The last window is omitted if
    /// it is incomplete. `None` without arrivals, or if some were not counted. An iterator, because there may be
    /// millions of windows.
    pub fn windows(&self, seconds: usize) -> Option<impl Iterator<Item = u64> + Clone> {
        let first = self.first()?;
        let whole = self.counts.len().saturating_sub(first) / seconds;
        self.windows_from(first, seconds).map(|windows| windows.take(whole))
    }

    fn windows_from(&self, first: usize, seconds: usize) -> Option<impl Iterator<Item = u64> + Clone> {
        let from = self.counts.get(first..).filter(|_| !self.beyond)?;
        let more = |second| self.more.get(&second).copied().unwrap_or(0);
        let all =
            move |(count, second): (&u16, usize)| u64::from(*count) + if *count == u16::MAX { more(second) } else { 0 };
        let starts = (first..).step_by(seconds);
        Some(from.chunks(seconds).zip(starts).map(move |(some, start)| some.iter().zip(start..).map(all).sum()))
    }
}

/// Arrivals in windows of equal length, starting at the second of the first arrival.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ArrivalWindows {
    /// Window length in seconds.
    pub window_s: u64,
    /// Requests of the first trace per window.
    pub a: Vec<u64>,
    /// Requests of the second trace per window.
    pub b: Vec<u64>,
    /// Share of requests that fall into a different window. It is half the sum of the per-window differences, divided
    /// by the mean number of requests. 0 means equal.
    pub displaced_share: f64,
}

impl ArrivalWindows {
    /// Compares both traces on a common time axis.
    pub fn of(a: &ArrivalsPerSecond, b: &ArrivalsPerSecond) -> Self {
        let window = (a.span_s().max(b.span_s()) / PARTS as f64).ceil().max(1.0) as usize;
        let first = a.first().into_iter().chain(b.first()).min().unwrap_or_default();
        let windows = |seconds: &ArrivalsPerSecond| -> Vec<u64> {
            seconds.windows_from(first, window).map(Iterator::collect).unwrap_or_default()
        };
        let (a, b) = (windows(a), windows(b));
        let count = |windows: &[u64], at: usize| windows.get(at).copied().unwrap_or(0);
        let apart: u64 = (0..a.len().max(b.len())).map(|at| count(&a, at).abs_diff(count(&b, at))).sum();
        let all: u64 = a.iter().chain(&b).sum();
        let displaced_share = if all > 0 { apart as f64 / all as f64 } else { 0.0 };
        Self { window_s: window as u64, a, b, displaced_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_ms: &[u64]) -> ArrivalsPerSecond {
        let mut seconds = ArrivalsPerSecond::default();
        times_ms.iter().for_each(|ms| seconds.take(ms * 1_000_000));
        seconds
    }

    #[test]
    fn windows_begin_for_both_at_the_first_arrival_of_either() {
        let moved = ArrivalWindows::of(&of(&[60_000, 60_500, 61_000]), &of(&[61_200, 61_300, 61_400]));
        assert_eq!(moved, ArrivalWindows { window_s: 1, a: vec![2, 1], b: vec![0, 3], displaced_share: 4.0 / 6.0 });
        // 48 s in 24 windows of 2 s each.
        let long = ArrivalWindows::of(&of(&[0, 48_000]), &of(&[0, 48_000]));
        assert_eq!((long.window_s, long.a.len(), long.displaced_share), (2, 25, 0.0));
        assert_eq!(ArrivalWindows::of(&of(&[]), &of(&[])), ArrivalWindows { window_s: 1, ..ArrivalWindows::default() });
    }

    #[test]
    fn a_second_may_have_any_number_of_arrivals_and_the_longest_span_takes_two_bytes_a_second() {
        let full = usize::from(u16::MAX) + 5;
        let mut seconds = of(&[&vec![3_500; full][..], &[2_000, 4_000, 4_001]].concat());
        let windows = |length| seconds.windows(length).unwrap().collect::<Vec<_>>();
        assert_eq!(windows(1), [1, full as u64, 2]);
        assert_eq!(windows(2), [1 + full as u64], "the second would have no second half");
        seconds.take((MAX_SECONDS as u64 - 1) * SECOND);
        assert_eq!(size_of_val(&seconds.counts[..]), 2 * MAX_SECONDS);
        seconds.take(MAX_SECONDS as u64 * SECOND);
        assert!(seconds.counts.len() == MAX_SECONDS && seconds.windows(1).is_none());
    }

    #[test]
    fn pairs_of_which_one_is_unknown_are_not_compared() {
        let mut errors = DeviationAccumulator::default();
        errors.take(None, Some(1));
        errors.take(Some(4), Some(1));
        let (mut a, mut b) = (LengthHistogram::default(), LengthHistogram::default());
        a.take(4);
        b.take(1);
        let expected = Deviation { compared: 1, exact_share: 0.0, mean_error: -3.0, mean_absolute_error: 3.0, ks: 1.0 };
        assert_eq!(errors.finish(&a, &b), Some(expected));
        assert_eq!(errors.finish(&a, &LengthHistogram::default()), None);
    }
}

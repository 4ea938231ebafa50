//! How far what came is from what was to come: numbers in pairs, and arrivals over time.
//!
//! The KS distance (Kolmogorov-Smirnov) is the largest difference of the two distribution functions: 0 where they are
//! alike, 1 where they have nothing in common.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::length_histogram::LengthHistogram;

const SECOND: u64 = 1_000_000_000;
/// Seconds that are counted each by itself: 194 days, in 34 MB. BurstGPT has 121.
const MAX_SECONDS: usize = 1 << 24;
/// Parts of the longer span in which arrivals are counted.
const PARTS: usize = 24;

/// How far one number is from the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Deviation {
    /// Pairs of which both are known.
    pub compared: u64,
    /// Share of them that are alike.
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

/// Adds pairs up.
#[derive(Clone, Debug, Default)]
pub struct DeviationStats {
    compared: u64,
    exact: u64,
    sum: i128,
    absolute: u128,
}

impl DeviationStats {
    /// One pair more; nothing where one of it is unknown.
    pub fn take(&mut self, a: Option<u64>, b: Option<u64>) {
        let (Some(a), Some(b)) = (a, b) else { return };
        self.compared += 1;
        self.exact += u64::from(a == b);
        self.sum += i128::from(b) - i128::from(a);
        self.absolute += u128::from(a.abs_diff(b));
    }

    /// What they come to, with the distance of these distributions; `None` where one has no number.
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

/// Arrivals, counted by second of their line of time.
#[derive(Clone, Debug, Default)]
pub struct SecondsDeviation {
    counts: Vec<u16>,
    /// Arrivals beyond those that a count has room for, by second.
    more: HashMap<usize, u64>,
    bounds: Option<(u64, u64)>,
    /// Whether there is a second beyond those that are counted.
    beyond: bool,
}

impl SecondsDeviation {
    /// One arrival more, in nanoseconds of the line.
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

    /// From the first to the last.
    pub fn span_s(&self) -> f64 {
        self.bounds.map_or(0.0, |(first, last)| (last - first) as f64 / 1e9)
    }

    /// The second of the first arrival.
    fn first(&self) -> Option<usize> {
        usize::try_from(self.bounds?.0 / SECOND).ok()
    }

    /// Arrivals in windows of so many seconds, from the second of the first to that of the last, but for a last window
    /// that is not whole; `None` without any, and where some are not counted. They are not kept: there may be millions.
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

/// Arrivals in windows of equal length, from the second of the first one on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RateDeviation {
    /// Seconds of a window.
    pub window_s: u64,
    /// Requests of the first in each.
    pub a: Vec<u64>,
    /// Requests of the second.
    pub b: Vec<u64>,
    /// Share of the requests that are in another window: half the sum of the windows' differences over the mean number
    /// of requests. 0 is alike.
    pub moved_share: f64,
}

impl RateDeviation {
    /// Both on one line of time.
    pub fn of(a: &SecondsDeviation, b: &SecondsDeviation) -> Self {
        let window = (a.span_s().max(b.span_s()) / PARTS as f64).ceil().max(1.0) as usize;
        let first = a.first().into_iter().chain(b.first()).min().unwrap_or_default();
        let windows = |seconds: &SecondsDeviation| -> Vec<u64> {
            seconds.windows_from(first, window).map(Iterator::collect).unwrap_or_default()
        };
        let (a, b) = (windows(a), windows(b));
        let count = |windows: &[u64], at: usize| windows.get(at).copied().unwrap_or(0);
        let apart: u64 = (0..a.len().max(b.len())).map(|at| count(&a, at).abs_diff(count(&b, at))).sum();
        let all: u64 = a.iter().chain(&b).sum();
        let moved_share = if all > 0 { apart as f64 / all as f64 } else { 0.0 };
        Self { window_s: window as u64, a, b, moved_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_ms: &[u64]) -> SecondsDeviation {
        let mut seconds = SecondsDeviation::default();
        times_ms.iter().for_each(|ms| seconds.take(ms * 1_000_000));
        seconds
    }

    #[test]
    fn windows_begin_for_both_at_the_first_arrival_of_either() {
        let moved = RateDeviation::of(&of(&[60_000, 60_500, 61_000]), &of(&[61_200, 61_300, 61_400]));
        assert_eq!(moved, RateDeviation { window_s: 1, a: vec![2, 1], b: vec![0, 3], moved_share: 4.0 / 6.0 });
        // 48 s in 24 windows of 2 s.
        let long = RateDeviation::of(&of(&[0, 48_000]), &of(&[0, 48_000]));
        assert_eq!((long.window_s, long.a.len(), long.moved_share), (2, 25, 0.0));
        assert_eq!(RateDeviation::of(&of(&[]), &of(&[])), RateDeviation { window_s: 1, ..RateDeviation::default() });
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
        let mut errors = DeviationStats::default();
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

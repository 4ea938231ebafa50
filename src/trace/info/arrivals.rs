//! When requests come: rate, gaps, and how uneven they are.

use std::collections::HashMap;

use serde::Serialize;

use crate::measure::difference::Seconds;
use crate::measure::near::Near;

/// Different gaps that are counted when a grid is looked for.
const MOST_GAPS: usize = 1 << 14;

/// How uneven arrivals are. A Poisson process has 1 everywhere.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Burstiness {
    /// Standard deviation of the gaps between arrivals, divided by their mean.
    pub gap_cv: f64,
    /// Variance of the arrivals in windows of 1 s, divided by their mean; absent for spans beyond 194 days.
    pub dispersion_1s: Option<f64>,
    /// The same in windows of 10 s.
    pub dispersion_10s: Option<f64>,
    /// The fullest second, in mean seconds.
    pub peak_1s: Option<f64>,
    /// The fullest 10 s, in mean ones.
    pub peak_10s: Option<f64>,
    /// Share of the gaps that are zero.
    pub zero_gaps: f64,
}

#[derive(Debug, Default)]
pub(in crate::trace) struct Arrivals {
    count: u64,
    last: u64,
    /// Gaps between neighbours in the file, where they are in order (Welford).
    gaps: u64,
    mean: f64,
    squares: f64,
    zero: u64,
    pub(in crate::trace) unsorted: u64,
    pub(in crate::trace) seconds: Seconds,
    /// Gaps that are not zero, in milliseconds, and how often they occur.
    steps: HashMap<u64, u64, Near>,
}

impl Arrivals {
    pub(in crate::trace) fn take(&mut self, at: u64) {
        if self.count > 0 {
            match at.checked_sub(self.last) {
                Some(gap) => self.take_gap(gap),
                None => self.unsorted += 1,
            }
        }
        self.count += 1;
        self.last = at;
        self.seconds.take(at);
    }

    fn take_gap(&mut self, gap: u64) {
        self.gaps += 1;
        let (value, before) = (gap as f64, self.mean);
        self.mean += (value - before) / self.gaps as f64;
        self.squares += (value - before) * (value - self.mean);
        if gap == 0 {
            self.zero += 1;
            return;
        }
        let step = (gap + 500_000) / 1_000_000;
        if self.steps.len() < MOST_GAPS || self.steps.contains_key(&step) {
            *self.steps.entry(step).or_default() += 1;
        }
    }

    pub(in crate::trace) fn burstiness(&self) -> Option<Burstiness> {
        if self.gaps < 2 || self.mean <= 0.0 {
            return None;
        }
        let (ones, tens) = (self.seconds.windows(1), self.seconds.windows(10));
        Some(Burstiness {
            gap_cv: (self.squares / self.gaps as f64).sqrt() / self.mean,
            dispersion_1s: ones.clone().and_then(dispersion),
            dispersion_10s: tens.clone().and_then(dispersion),
            peak_1s: ones.and_then(peak),
            peak_10s: tens.and_then(peak),
            zero_gaps: self.zero as f64 / self.gaps as f64,
        })
    }

    /// The step of a grid on which most arrivals come together, in nanoseconds; none where they do not.
    ///
    /// Timestamps in batches have mostly gaps of zero, and the others are mostly of one length, give or take a few
    /// milliseconds.
    pub(in crate::trace) fn grid(&self) -> Option<u64> {
        let (step, _) = self.steps.iter().max_by_key(|(step, count)| (**count, u64::MAX - **step))?;
        let near = |gap: u64| gap.abs_diff(*step) <= (*step / 200).max(1);
        let together: u64 = self.steps.iter().filter(|(gap, _)| near(**gap)).map(|(_, count)| count).sum();
        let others = self.gaps - self.zero;
        (*step >= 10 && self.zero * 2 > self.gaps && together * 2 > others && others >= 5).then_some(step * 1_000_000)
    }

    /// Arrivals in each of so many equal parts of the span, or fewer where there are fewer seconds.
    pub(in crate::trace) fn over_time(&self, parts: usize) -> Vec<u64> {
        let Some(seconds) = self.seconds.windows(1) else { return Vec::new() };
        let length = seconds.clone().count();
        let parts = parts.min(length).max(1);
        let mut sums = vec![0; parts];
        for (second, count) in seconds.enumerate() {
            sums[second * parts / length] += count;
        }
        sums
    }
}

fn mean(windows: impl Iterator<Item = u64>) -> Option<f64> {
    let (sum, count) = windows.fold((0, 0_u64), |(sum, count), n| (sum + n, count + 1));
    (count > 1 && sum > 0).then(|| sum as f64 / count as f64)
}

fn dispersion(windows: impl Iterator<Item = u64> + Clone) -> Option<f64> {
    let mean = mean(windows.clone())?;
    let (squares, count) =
        windows.fold((0.0, 0_u64), |(squares, count), n| (squares + (n as f64 - mean).powi(2), count + 1));
    Some(squares / count as f64 / mean)
}

fn peak(windows: impl Iterator<Item = u64> + Clone) -> Option<f64> {
    let mean = mean(windows.clone())?;
    windows.max().map(|most| most as f64 / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn of(times: impl IntoIterator<Item = u64>) -> Arrivals {
        let mut arrivals = Arrivals::default();
        times.into_iter().for_each(|at| arrivals.take(at));
        arrivals
    }

    #[test]
    fn a_steady_beat_has_no_burstiness_and_no_grid() {
        let steady = of((0..1_000).map(|i| i * SECOND / 4));
        let burstiness = steady.burstiness().unwrap();
        assert!(burstiness.gap_cv < 1e-9 && burstiness.dispersion_1s.unwrap() < 1e-9);
        assert_eq!((steady.grid(), steady.unsorted), (None, 0));
    }

    #[test]
    fn batches_are_seen_as_a_grid_even_a_few_milliseconds_off() {
        let batches = of((0..1_000).map(|i| (i / 10) * 3_000_000_000 + (i / 10 % 3) * 1_000_000));
        assert_eq!(batches.grid(), Some(3_001_000_000));
        assert_eq!(of((0..20).map(|i| i / 10 * SECOND)).grid(), None, "two batches are no grid");
    }

    #[test]
    fn times_out_of_order_are_counted_and_do_not_break_the_counts() {
        let arrivals = of([5 * SECOND, 3 * SECOND, 4 * SECOND, u64::MAX]);
        assert_eq!((arrivals.unsorted, arrivals.seconds.windows(1).is_none()), (1, true));
        assert!(arrivals.over_time(8).is_empty());
        let arrivals = of([5 * SECOND, 3 * SECOND, 4 * SECOND]);
        assert_eq!(arrivals.over_time(8), [1, 1, 1]);
    }
}

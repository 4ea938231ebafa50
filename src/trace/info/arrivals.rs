//! Arrival statistics: rate, gaps and burstiness.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::stats::deviation::ArrivalsPerSecond;
use crate::stats::locality_hash::BuildLocalityHasher;

/// Maximum distinct gaps counted for grid detection.
const MAX_DISTINCT_GAPS: usize = 1 << 14;
/// Maximum times that wait for earlier ones, because the rows of a capture are in completion order.
const MAX_PENDING_ARRIVALS: usize = 1 << 16;

/// Burstiness of arrivals. A Poisson process has about 1 for `gap_cv` and both dispersions.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Burstiness {
    /// Standard deviation of the gaps between arrivals, divided by their mean.
    pub gap_cv: f64,
    /// Variance of the arrivals per window of 1 s, divided by their mean; absent for spans beyond 194 days.
    pub dispersion_1s: Option<f64>,
    /// Variance divided by the mean for whole windows of 10 s.
    pub dispersion_10s: Option<f64>,
    /// Arrivals in the fullest second, divided by the mean per second.
    pub peak_1s: Option<f64>,
    /// Arrivals in the fullest window of 10 s, divided by the mean per window.
    pub peak_10s: Option<f64>,
    /// Share of gaps that are zero.
    pub zero_gaps: f64,
}

#[derive(Debug, Default)]
pub(in crate::trace) struct ArrivalStats {
    /// Time of the previous row.
    previous: u64,
    pending: Vec<u64>,
    /// The latest settled time.
    last: Option<u64>,
    /// Welford statistics of the gaps between consecutive times, except rows that came far too late.
    gaps: u64,
    mean: f64,
    squares: f64,
    zero: u64,
    pub(in crate::trace) unsorted: u64,
    pub(in crate::trace) seconds: ArrivalsPerSecond,
    /// Counts of the nonzero gaps, in milliseconds.
    steps: HashMap<u64, u64, BuildLocalityHasher>,
}

impl ArrivalStats {
    pub(in crate::trace) fn add(&mut self, at: u64) {
        self.unsorted += u64::from(at < self.previous);
        self.previous = at;
        self.seconds.take(at);
        self.pending.push(at);
        if self.pending.len() == 2 * MAX_PENDING_ARRIVALS {
            self.settle(MAX_PENDING_ARRIVALS);
        }
    }

    /// Sorts the waiting times and settles the earliest ones; `most` limits how many.
    pub(in crate::trace) fn settle(&mut self, most: usize) {
        let mut waiting = std::mem::take(&mut self.pending);
        waiting.sort_unstable();
        for at in waiting.drain(..most.min(waiting.len())) {
            if let Some(gap) = self.last.and_then(|last| at.checked_sub(last)) {
                self.add_gap(gap);
            }
            self.last = self.last.max(Some(at));
        }
        self.pending = waiting;
    }

    fn add_gap(&mut self, gap: u64) {
        self.gaps += 1;
        let (value, before) = (gap as f64, self.mean);
        self.mean += (value - before) / self.gaps as f64;
        self.squares += (value - before) * (value - self.mean);
        if gap == 0 {
            self.zero += 1;
            return;
        }
        let step = (gap + 500_000) / 1_000_000;
        if self.steps.len() < MAX_DISTINCT_GAPS || self.steps.contains_key(&step) {
            *self.steps.entry(step).or_default() += 1;
        }
    }

    /// Burstiness of the settled arrivals; the functions below also use only settled ones.
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

    /// The step of a grid that most arrivals fall on, in nanoseconds; `None` if there is no grid.
    ///
    /// With batch timestamps, most gaps are zero, and most others have one length within a tolerance of 0.5 %.
    pub(in crate::trace) fn batch_step(&self) -> Option<u64> {
        let (step, _) = self.steps.iter().max_by_key(|(step, count)| (**count, u64::MAX - **step))?;
        let near = |gap: u64| gap.abs_diff(*step) <= (*step / 200).max(1);
        let together: u64 = self.steps.iter().filter(|(gap, _)| near(**gap)).map(|(_, count)| count).sum();
        let others = self.gaps - self.zero;
        (*step >= 10 && self.zero * 2 > self.gaps && together * 2 > others && others >= 5).then_some(step * 1_000_000)
    }

    /// Arrivals in at most `most` windows of equal length, and that length in seconds. The last window may be
    /// incomplete.
    pub(in crate::trace) fn rate_windows(&self, most: usize) -> (u64, Vec<u64>) {
        let Some(seconds) = self.seconds.windows(1) else { return (1, Vec::new()) };
        let window = seconds.clone().count().div_ceil(most).max(1);
        let mut sums = Vec::new();
        for (second, count) in seconds.enumerate() {
            match sums.last_mut() {
                Some(sum) if second % window != 0 => *sum += count,
                _ => sums.push(count),
            }
        }
        (window as u64, sums)
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

    fn of(times: impl IntoIterator<Item = u64>) -> ArrivalStats {
        let mut arrivals = ArrivalStats::default();
        times.into_iter().for_each(|at| arrivals.add(at));
        arrivals.settle(usize::MAX);
        arrivals
    }

    #[test]
    fn a_steady_beat_has_no_burstiness_and_no_grid() {
        let steady = of((0..1_000).map(|i| i * SECOND / 4));
        let burstiness = steady.burstiness().unwrap();
        assert!(burstiness.gap_cv < 1e-9 && burstiness.dispersion_1s.unwrap() < 1e-9);
        assert_eq!((steady.batch_step(), steady.unsorted), (None, 0));
    }

    #[test]
    fn batches_are_seen_as_a_grid_even_a_few_milliseconds_off() {
        let batches = of((0..1_000).map(|i| (i / 10) * 3_000_000_000 + (i / 10 % 3) * 1_000_000));
        assert_eq!(batches.batch_step(), Some(3_001_000_000));
        assert_eq!(of((0..20).map(|i| i / 10 * SECOND)).batch_step(), None, "two batches are no grid");
    }

    #[test]
    fn times_out_of_order_are_counted_and_do_not_break_the_counts() {
        let arrivals = of([5 * SECOND, 3 * SECOND, 4 * SECOND, u64::MAX]);
        assert_eq!((arrivals.unsorted, arrivals.seconds.windows(1).is_none()), (1, true));
        assert!(arrivals.rate_windows(8).1.is_empty());
        let arrivals = of([5 * SECOND, 3 * SECOND, 4 * SECOND]);
        assert_eq!(arrivals.rate_windows(8), (1, vec![1, 1, 1]));
    }

    #[test]
    fn rows_in_the_order_of_ends_are_as_bursty_as_the_same_rows_in_order_of_time() {
        // A rhythm of four per second in which every other request takes ten seconds longer; far more rows than the
        // limit on waiting times.
        let beat = |n: u64| n * SECOND / 4;
        let mut ends: Vec<u64> = (0..3 * MAX_PENDING_ARRIVALS as u64).collect();
        ends.sort_by_key(|n| beat(*n) + n % 2 * 10 * SECOND);
        let arrivals = of(ends.into_iter().map(beat));
        let burstiness = arrivals.burstiness().unwrap();
        assert!(burstiness.gap_cv < 1e-9, "a beat, and not {}", burstiness.gap_cv);
        assert!(arrivals.unsorted > 0);
    }

    #[test]
    fn what_is_drawn_over_time_are_windows_of_one_length_whatever_the_span() {
        let (window, counts) = of((0..1_500).map(|i| i * SECOND / 10)).rate_windows(96);
        assert_eq!((window, counts), (2, vec![20; 75]), "a steady rate is a level line");
        let (window, counts) = of((0..970).map(|i| i * SECOND / 10)).rate_windows(96);
        assert_eq!((window, counts.len(), counts.last()), (2, 49, Some(&10)), "97 s end in the middle of a window");
    }

    #[test]
    fn a_window_that_the_trace_ends_in_is_no_lull() {
        // Ten per second for 21 s: two windows of 10 s, and an incomplete one of one second.
        let burstiness = of((0..210).map(|i| i * SECOND / 10)).burstiness().unwrap();
        assert_eq!((burstiness.dispersion_10s, burstiness.peak_10s), (Some(0.0), Some(1.0)));
    }
}

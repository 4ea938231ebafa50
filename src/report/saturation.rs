//! Detects growing load: requests in flight or waiting that keep increasing, because the server is slower than the
//! traffic. Pure.
//!
//! # The statistic
//! Each request records how many others were in flight at its send, and each scrape how many waited at the server.
//! These values are cut into ten batches of equal size. Neighboring values see the same queue, so the samples are the
//! batch means, not the values. A least-squares line is fitted through the batch means and the means of their times,
//! and its slope is divided by its standard error. The load grows if two conditions hold. That ratio exceeds its
//! one-in-1,000 quantile (Student's t). The line also rises by at least four requests and a tenth of the mean, because
//! a certain but small growth is no saturation.
//!
//! # Ramp
//! Any load grows at first. Evenly spaced requests of duration D reach a share of their final concurrency at time t
//! after the first: E\[min(D, t)\] ÷ E\[D\]. So values within one mean duration, at most half of them, are dropped, and
//! the rest are divided by that share. D comes from the first half of the requests: on an overloaded server durations
//! keep rising, and later ones would explain all growth.
//!
//! Measured on simulated queues of 4 to 128 slots, in levels of 30 s. At 80 % of capacity the correction cut false
//! positives from at most 43 in 100 levels to mostly fewer than 10. Levels of 20 s have at most 18. At twice the
//! capacity 9 in 10 levels are detected.

use crate::measure::time::{Gap, Stamp};

/// Number of batches.
const BATCHES: usize = 10;
/// Student's t with 8 degrees of freedom that chance exceeds once in 1,000 levels.
const CRITICAL_T: f64 = 4.501;
/// Minimum rise over the window, in requests.
const MIN_RISE_REQUESTS: f64 = 4.0;
/// Minimum rise, as a share of the mean.
const MIN_RISE_SHARE: f64 = 0.1;
/// Minimum number of requests for a trend.
const MIN_REQUESTS: usize = 40;
/// Minimum number of scrapes for a trend: two per batch, as in a level of twenty seconds.
const MIN_SCRAPES: usize = 20;

/// Growth of the requests in flight or waiting.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct LoadGrowth {
    /// Additional requests per second.
    pub per_second: f64,
    /// Slope in standard errors.
    pub t: f64,
}

/// One request's contribution to the load curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSample {
    /// Send time.
    pub at: Stamp,
    /// Other requests in flight at that time.
    pub others_in_flight: u32,
    /// Duration in microseconds, at most an hour: more would need twice the memory.
    micros: Option<std::num::NonZeroU32>,
}

impl LoadSample {
    /// Creates a sample; `took` is `None` if the duration is unknown.
    pub fn new(at: Stamp, others: u32, took: Option<Gap>) -> Self {
        let micros = |took: Gap| u32::try_from(took.as_nanos() / 1_000).unwrap_or(u32::MAX).max(1);
        Self { at, others_in_flight: others, micros: took.map(micros).and_then(std::num::NonZeroU32::new) }
    }
}

/// Returns the growth of the load, or `None` if it does not grow or has too few requests. `began` is the first send of
/// a warm-up, whose requests are not in `requests`.
pub fn request_growth(requests: &[LoadSample], began: Option<Stamp>) -> Option<LoadGrowth> {
    let first = requests.iter().map(|sent| sent.at).min()?;
    let last = requests.iter().map(|sent| sent.at).max()?;
    let start = began.map_or(first, |began| began.min(first));
    let half = first.after(Gap::from_nanos(last.since(first).as_nanos() / 2));
    let early = requests.iter().filter(|sent| sent.at <= half);
    let durations = Durations::of(early.filter_map(|sent| Some(f64::from(sent.micros?.get()) / 1e6)))?;
    let from = (start.after(Gap::from(std::time::Duration::from_secs_f64(durations.mean)))).max(first).min(half);
    let later = requests.iter().filter(|sent| sent.at >= from);
    let of_all =
        |sent: &LoadSample| f64::from(sent.others_in_flight) / durations.ramp_share(sent.at.since(start).as_secs());
    trend(later.map(|sent| (sent.at.since(first).as_secs(), of_all(sent))).collect(), MIN_REQUESTS)
}

/// Returns the growth of a queue, given as (time, waiting requests), or `None` like [`request_growth`].
pub fn queue_growth(queue: &[(Stamp, f64)]) -> Option<LoadGrowth> {
    let first = queue.iter().map(|(at, _)| *at).min()?;
    trend(queue.iter().map(|(at, waiting)| (at.since(first).as_secs(), *waiting)).collect(), MIN_SCRAPES)
}

/// Durations of requests, in seconds.
struct Durations {
    sorted: Vec<f64>,
    /// `sums[n]` is the sum of the `n` shortest durations.
    sums: Vec<f64>,
    mean: f64,
}

impl Durations {
    fn of(all: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = all.collect();
        sorted.sort_by(f64::total_cmp);
        let mut sums = vec![0.0];
        sums.extend(sorted.iter().scan(0.0, |sum, one| {
            *sum += one;
            Some(*sum)
        }));
        let mean = sums.last()? / sorted.len() as f64;
        (!sorted.is_empty()).then_some(Self { sorted, sums, mean })
    }

    /// Returns the share of the final load that is in flight `after` seconds past the first request.
    fn ramp_share(&self, after: f64) -> f64 {
        let shorter = self.sorted.partition_point(|one| *one <= after);
        let longer = (self.sorted.len() - shorter) as f64;
        (self.sums[shorter] + longer * after) / self.sorted.len() as f64 / self.mean
    }
}

/// Returns the growth of (seconds, value) pairs, or `None` with fewer than `fewest`.
fn trend(mut seen: Vec<(f64, f64)>, fewest: usize) -> Option<LoadGrowth> {
    if seen.len() < fewest {
        return None;
    }
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |part: usize| {
        let part = &seen[seen.len() * part / BATCHES..seen.len() * (part + 1) / BATCHES];
        let of = |which: fn(&(f64, f64)) -> f64| part.iter().map(which).sum::<f64>() / part.len() as f64;
        (of(|point| point.0), of(|point| point.1))
    };
    let means: Vec<(f64, f64)> = (0..BATCHES).map(mean).collect();
    let (slope, error) = linear_fit(&means);
    let whole = seen.last()?.0 - seen.first()?.0;
    let (rise, mean) = (slope * whole, means.iter().map(|mean| mean.1).sum::<f64>() / BATCHES as f64);
    let t = if error > 0.0 { slope / error } else { f64::MAX };
    let grows = slope > 0.0 && t > CRITICAL_T && rise >= MIN_RISE_REQUESTS && rise >= mean * MIN_RISE_SHARE;
    grows.then_some(LoadGrowth { per_second: slope, t })
}

/// Fits a least-squares line. Returns its slope and the slope's standard error.
fn linear_fit(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let from_mean = || points.iter().map(|point| (point.0 - x, point.1 - y));
    let squares: f64 = from_mean().map(|(x, _)| x * x).sum();
    let slope = from_mean().map(|(x, y)| x * y).sum::<f64>() / squares;
    let left: f64 = from_mean().map(|(x, y)| (y - slope * x).powi(2)).sum();
    (slope, (left / (count - 2.0) / squares).sqrt())
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// Simulates requests at a server with `places` slots and exponential service times with a mean of `took` seconds.
    fn sent(places: u32, took: f64, rate: f64, seconds: f64, seed: u64) -> (Vec<LoadSample>, Vec<(Stamp, f64)>) {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let mut drawn = |mean: f64| -mean * (1.0 - random.random::<f64>()).ln();
        let stamp = |at: f64| Stamp::from_nanos((at * 1e9) as u64);
        let mut free: BinaryHeap<_> = (0..places).map(|_| std::cmp::Reverse(Stamp::default())).collect();
        let (mut at, mut all) = (0.0, Vec::new());
        while at < seconds {
            let begins = stamp(at).max(free.pop().unwrap().0);
            let ends = begins.after(Gap::from_nanos((drawn(took) * 1e9) as u64));
            free.push(std::cmp::Reverse(ends));
            all.push((stamp(at), begins, ends));
            at += drawn(1.0 / rate);
        }
        let sorted = |which: fn(&(Stamp, Stamp, Stamp)) -> Stamp| {
            let mut moments: Vec<Stamp> = all.iter().map(which).collect();
            moments.sort();
            move |at: Stamp| moments.partition_point(|moment| *moment <= at)
        };
        let (arrived, began, ended) = (sorted(|one| one.0), sorted(|one| one.1), sorted(|one| one.2));
        let others = |at: Stamp| (arrived(at) - ended(at)).saturating_sub(1) as u32;
        let requests =
            all.iter().map(|(at, _, ends)| LoadSample::new(*at, others(*at), Some(ends.since(*at)))).collect();
        let waiting = |at: Stamp| (arrived(at) - began(at)) as f64;
        let scrapes = (0..=seconds as u64).map(|second| stamp(second as f64)).map(|at| (at, waiting(at))).collect();
        (requests, scrapes)
    }

    /// Returns how many of fifty 30 s levels are found to grow, by requests and by the queue.
    fn grow(places: u32, took: f64, load: f64) -> (usize, usize) {
        let level = |seed| sent(places, took, load * f64::from(places) / took, 30.0, seed);
        let (mut by_requests, mut by_queue) = (0, 0);
        for (requests, scrapes) in (0..50).map(level) {
            by_requests += usize::from(request_growth(&requests, None).is_some());
            by_queue += usize::from(queue_growth(&scrapes).is_some());
        }
        (by_requests, by_queue)
    }

    #[test]
    fn the_slope_and_its_error_are_those_of_least_squares() {
        // 1, 3, 2, 5: by hand a slope of 1.1, residuals −0.1, 0.8, −1.3, 0.6, and a standard error of √(2.7 ÷ 2 ÷ 5).
        let (slope, error) = linear_fit(&[(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)]);
        assert!((slope - 1.1).abs() < 1e-12 && (error - 0.27_f64.sqrt()).abs() < 1e-12, "{slope} {error}");
    }

    #[test]
    fn the_share_that_has_begun_is_the_mean_of_what_durations_have_had() {
        let durations = Durations::of([1.0, 3.0].into_iter()).unwrap();
        assert_eq!([0.5, 1.0, 2.0, 3.0, 9.0].map(|after| durations.ramp_share(after)), [0.25, 0.5, 0.75, 1.0, 1.0]);
    }

    #[test]
    fn a_queue_that_grows_is_found_in_a_level_of_half_a_minute_and_one_that_only_swings_is_not() {
        for (places, took) in [(1, 0.01), (8, 1.0), (32, 5.0), (128, 5.0)] {
            let (few, enough, many) = (grow(places, took, 0.6), grow(places, took, 0.8), grow(places, took, 2.0));
            assert!(few.0 <= 5 && few.1 == 0, "{places}: {few:?} of 50 at three fifths of what is served");
            assert!(enough.0 <= 5 && enough.1 <= 2, "{places}: {enough:?} of 50 at four fifths");
            assert!(many.0 >= 45 && many.1 >= 45, "{places}: {many:?} of 50 at twice as much");
        }
    }

    fn every(millis: u64, count: u64, others: impl Fn(u64) -> u64, took: u64) -> Vec<LoadSample> {
        let at = |number: u64| Stamp::from_nanos(number * millis * 1_000_000);
        (0..count)
            .map(|number| LoadSample::new(at(number), others(number) as u32, Some(Gap::from_millis(took))))
            .collect()
    }

    #[test]
    fn a_steady_growth_is_told_in_requests_a_second() {
        let load = every(10, 1_000, |number| number / 10, 1_000);
        let growth = request_growth(&load, None).unwrap();
        assert!((growth.per_second - 10.0).abs() < 0.1, "{growth:?}");
        assert_eq!(request_growth(&load[..39], None), None, "too few");
        assert_eq!(request_growth(&load[..0], None), None);
        let same = every(0, 50, |_| 3, 1_000);
        assert_eq!(request_growth(&same, None), None, "all at once");
        let unknown: Vec<_> = load.iter().map(|sent| LoadSample::new(sent.at, sent.others_in_flight, None)).collect();
        assert_eq!(request_growth(&unknown, None), None, "the length of the load is unknown");
    }

    #[test]
    fn a_machine_that_stalls_and_sends_late_hides_no_growth() {
        let at = |number: u64| Stamp::from_nanos(number / 50 * 500_000_000);
        let took = Some(Gap::from_millis(1_000));
        let load: Vec<_> = (0..400).map(|number| LoadSample::new(at(number), number as u32 / 2, took)).collect();
        assert!(request_growth(&load, None).is_some());
    }

    #[test]
    fn what_comes_before_the_first_answers_is_no_growth() {
        // Ten requests per second of five seconds each: fifty in flight in the steady state.
        let load = every(100, 300, |number| number.min(50), 5_000);
        assert_eq!(request_growth(&load, None), None);
        assert!(request_growth(&every(100, 60, |number| number.min(50), 1_000), None).is_some());
    }

    #[test]
    fn what_was_in_flight_before_a_warm_up_ended_hides_no_growth() {
        // Requests of two or eight seconds after a minute of load: 50 in flight, and one more each second.
        let took = |number: u64| if number.is_multiple_of(2) { 2_000 } else { 8_000 };
        let of =
            |number| LoadSample { others_in_flight: 50 + number as u32 / 10, ..every(100, 1, |_| 0, took(number))[0] };
        let at = |number: u64| Stamp::from_nanos(60_000_000_000 + number * 100_000_000);
        let load: Vec<_> = (0..200).map(|number| LoadSample { at: at(number), ..of(number) }).collect();
        let growth = request_growth(&load, Some(Stamp::default())).unwrap();
        assert!((growth.per_second - 1.0).abs() < 0.05, "{growth:?}");
        assert_eq!(request_growth(&load, None), None, "as a beginning it is none");
    }
}
